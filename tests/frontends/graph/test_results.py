"""What a graph returns has a row in every offset table, also where it is a view, in place, an input or a constant."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan.backends.emit import emit
from stowplan.errors import InputError
from stowplan.frontends.graph.lowering import arena_problem
from stowplan.frontends.tflite.model import read_tflite
from stowplan.kernel.kind import kind
from stowplan.models.offset_table import NOWHERE, OffsetRow, OffsetTable
from stowplan.models.operator_order import problem as order
from stowplan.models.packing.csv_files import parse
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Part, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing.canonical import clip
from stowplan.report.packing import PRESENTER
from tests.frontends.tflite import tflite_models


def stacked(problem: Problem) -> Plan:
    """Every free buffer above all others, with what the kernel adds for its readers."""
    top = max((buffer.offset + buffer.size for buffer in problem.buffers if buffer.offset is not None), default=0)
    offsets = []
    for buffer in problem.buffers:
        at = top + -top % buffer.alignment if buffer.offset is None else buffer.offset
        top = max(top, at + buffer.size)
        offsets.append(at)
    plan = Plan(problem=problem.digest, objective=top, offsets=tuple(offsets))
    plan = kind("packing").finish(problem, plan, top)
    assert verify(problem, plan).ok
    return plan


def returned(problem: Problem) -> list[OffsetRow]:
    """The rows of the results, after a check that all formats say the same and that parts are inside their hosts."""
    plan = stacked(problem)
    table = OffsetTable.decode(emit(problem, plan, "json"))
    rows = {row.name: row for row in table.rows}
    assert len(rows) == len(table.rows)
    for row in table.rows:
        if row.buffer:
            host = rows[row.buffer]
            assert host.offset <= row.offset
            assert row.offset + row.size <= host.offset + host.size
            assert (row.start, row.end, row.arena) == (host.start, host.end, host.arena)
            assert row.offset % row.alignment == 0
    lines = [line for line in emit(problem, plan, "csv").decode().splitlines() if line[0] != "#"]
    for row, said in zip(table.rows, csv.DictReader(lines), strict=True):
        assert (said["name"], said["buffer"]) == (row.name, row.buffer or "")
        assert said["offset"] == ("" if row.arena == NOWHERE else str(row.offset))
        places = [str(place) for place, number in enumerate(table.results) if table.rows[number] is row]
        assert said["results"].split() == places
    # As a packing problem the table has the buffers alone, at their offsets.
    again = parse("\n".join(lines))
    assert [(each.id, each.offset, each.size) for each in again.buffers] == [
        (buffer.id, offset, buffer.size) for buffer, offset in zip(problem.buffers, plan.offsets, strict=True)
    ]
    return [table.rows[number] for number in table.results]


def places(problem: Problem) -> list[tuple[str, str | None, int, int]]:
    """Name, buffer, bytes from its begin, and size of each result."""
    rows = returned(problem)
    parts = {part.id: part for part in problem.parts or ()}
    own = {buffer.id: Part(id=buffer.id, buffer=buffer.id, size=buffer.size) for buffer in problem.buffers}
    found = [(own | parts)[row.name] for row in rows]
    assert [row.size for row in rows] == [part.size for part in found]
    return [(part.id, part.buffer, part.offset, part.size) for part in found]


onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")


def node(operator: str, inputs: str, output: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(operator, inputs.split(), [output], **attributes)


def model(path: Path, nodes: list[Any], outputs: str) -> Path:
    """From the input ``x``, 16 by 16, with the weight ``w``."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    stored = [helper.make_tensor("w", kind, [4], [0.0] * 4), helper.make_tensor("to", onnx.TensorProto.INT64, [1], [256])]
    made = [helper.make_tensor_value_info(name, kind, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, [16, 16])], made, stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


NODES = [
    node("Relu", "x", "a"),
    node("Reshape", "a to", "r"),
    node("Unsqueeze", "r zero", "u"),
    node("Flatten", "u", "f"),
    node("Identity", "x", "i"),
    node("Exp", "w", "k"),
    node("Sin", "a", "d"),
    node("Neg", "d", "a.b"),
    node("Abs", "a.b", "a_b"),
]
NODES.insert(0, node("Constant", "", "zero", value_ints=[0]))


def test_results_of_an_onnx_model(tmp_path: Path) -> None:
    path = model(tmp_path / "net.onnx", NODES, "f a_b x i w k f a.b")
    assert places(stowplan.read(path, target="arena")) == [
        ("f", "a", 0, 1024),
        ("a_b", "a_b", 0, 1024),
        ("x", "x", 0, 1024),
        ("i", "x", 0, 1024),
        ("w", None, 0, 16),
        ("k", None, 0, 16),
        ("f", "a", 0, 1024),
        ("a.b", "a.b", 0, 1024),
    ]


def test_results_in_place(tmp_path: Path) -> None:
    """They, and what is between them, are parts of the buffer at the begin of their chain."""
    path = model(tmp_path / "net.onnx", [each for each in NODES if each.output[0] != "i"], "a_b k f")
    problem = stowplan.read(path, target="arena", in_place="elementwise")
    assert places(problem) == [("a_b", "d", 0, 1024), ("k", None, 0, 16), ("f", "x", 0, 1024)]
    assert {part.id: part.buffer for part in problem.parts or ()} == dict.fromkeys(("a", "r", "u", "f"), "x") | {
        "a.b": "d",
        "a_b": "d",
        "k": None,
    }
    said = PRESENTER(kind("packing")).summarize(problem, stacked(problem))
    assert "elsewhere     k (result 1)" in said
    assert "d (holds a.b, holds a_b (result 0))" in said
    assert "holds f (result 2)" in said


def test_what_nothing_writes_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="output none: found nothing that writes it"):
        stowplan.read(model(tmp_path / "net.onnx", NODES, "f none"), target="arena")


def test_results_with_an_order_of_its_own(tmp_path: Path) -> None:
    path = model(tmp_path / "net.onnx", NODES, "f x k f")
    problem = stowplan.read(path, target="order")
    plan = stowplan.solve(problem, time_limit=5, workers=1, candidates=["heuristic"]).plan
    table = OffsetTable.decode(emit(problem, plan, "json"))
    rows = {row.name: row for row in table.rows}
    assert [table.rows[number].name for number in table.results] == ["f", "x", "k", "f"]
    assert (rows["f"].buffer, rows["f"].offset) == ("a", rows["a"].offset)
    assert (rows["k"].arena, rows["k"].size) == (NOWHERE, 16)


@pytest.mark.parametrize("compiler", [("cc", "-std=c99"), ("c++", "-std=c++11")], ids=["c", "c++"])
def test_a_header_has_the_results(compiler: tuple[str, str], tmp_path: Path) -> None:
    """Also where their names become the same identifier."""
    program, standard = compiler
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    problem = stowplan.read(model(tmp_path / "net.onnx", NODES, "f a_b w f a.b"), target="arena")
    (tmp_path / "net.h").write_bytes(emit(problem, stacked(problem), "c-header", "net"))
    source = tmp_path / ("main.c" if program == "cc" else "main.cc")
    source.write_text(
        '#include "net.h"\n#include <stdio.h>\nint main(void) {\n'
        "    for (int at = 0; at < NET_RESULTS; ++at) {\n"
        "        const struct net_row *row = &net_rows[net_results[at]];\n"
        '        printf("%s %d %d\\n", row->name, (int)row->offset, (int)row->arena);\n    }\n    return 0;\n}\n'
    )
    flags = [standard, "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([program, *flags, "-o", tmp_path / "main", source], check=True)
    found = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout.splitlines()
    assert found == [f"{row.name} {row.offset} {row.arena}" for row in returned(problem)]


def test_results_of_a_tensorflow_lite_model(tmp_path: Path) -> None:
    tensor, path = tflite_models.tensor, tmp_path / "net.tflite"
    tensors = [tensor([32]), tensor([32]), tensor([20], stored=True)]
    fields = [{0: 3, 1: [], 2: []}]
    assert fields
    tflite_models.save(path, tensors, [(tflite_models.ADD, [0], [1])])
    assert places(stowplan.read(path, target="arena")) == [("2", None, 0, 20)]
    tensors = [tensor([32]), tensor([32]), tensor([64])]
    operators = [(tflite_models.ADD, [0], [1]), (tflite_models.ADD, [1], [2])]
    tflite_models.save(path, tensors, operators)
    assert places(stowplan.read(path, target="arena")) == [("2", "2", 0, 64)]
    # Two tensors at fixed offsets that meet are one buffer.
    tflite_models.save(path, tensors, operators, offsets=[-1, 0, 16])
    problem = read_tflite(path).problem
    ((name, buffer, offset, size),) = places(problem)
    assert (name, offset, size) == ("2", 16, 64)
    assert buffer == "placed 0"


HLO = """HloModule net, is_scheduled=true

ENTRY main {
  p = f32[16]{0} parameter(0)
  q = f32[4,4]{1,0} parameter(1)
  c = f32[8]{0} constant({1, 1, 1, 1, 1, 1, 1, 1})
  s = f32[16]{0} add(p, p)
  b = f32[4,4]{1,0} bitcast(s)
  n = f32[4,4]{1,0} negate(q)
  ROOT t = (f32[4,4]{1,0}, f32[8]{0}, f32[16]{0}, f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(b, c, p, n, b)
}
"""


def test_results_of_an_hlo_module(tmp_path: Path) -> None:
    path = tmp_path / "net.hlo.txt"
    path.write_text(HLO)
    assert places(stowplan.read(path, target="arena")) == [
        ("s", "s", 0, 64),
        ("result t{1}", None, 0, 32),
        ("p", "p", 0, 64),
        ("n", "n", 0, 64),
        ("s", "s", 0, 64),
    ]


def test_parts_are_checked() -> None:
    buffer = Buffer(id="a", lower=0, upper=2, size=8)
    for parts, results, message in (
        ([Part(id="a", buffer="a", size=8)], [], r"parts\[1\] \(a\): found the id 'a' twice"),
        ([Part(id="b", buffer="c", size=8)], [], r"parts\[0\] \(b\): found buffer c, expected the id of a buffer"),
        ([Part(id="b", buffer="a", offset=4, size=8)], [], r"bytes 4 to 12, expected some of the 8 of a"),
        ([Part(id="b", buffer="a", offset=-4, size=8)], [], r"bytes -4 to 4"),
        ([Part(id="b", size=-1)], [], r"bytes 0 to -1"),
        ([], ["b"], "results: found 'b', expected the id of a buffer or part"),
    ):
        with pytest.raises(InputError, match=message):
            Problem(buffers=(buffer,), parts=tuple(parts), results=tuple(results))


def test_files_without_parts_are_read_and_plans_do_not_depend_on_them() -> None:
    buffers = (Buffer(id="a", lower=0, upper=2, size=8),)
    plain, problem = (
        Problem(buffers=buffers),
        Problem(buffers=buffers, parts=(Part(id="b", buffer="a", size=4),), results=("b",)),
    )
    assert plain.digest == problem.digest
    old = json.loads(msgspec.json.encode(plain))
    assert not {"parts", "results"} & {*old}
    assert Problem.decode(json.dumps(old).encode()) == plain
    assert Problem.decode(msgspec.json.encode(problem)) == problem
    plan = stacked(problem)
    assert (plan.parts, plan.results) == (problem.parts, problem.results)
    wrong = msgspec.structs.replace(plan, parts=(Part(id="b", buffer="a", offset=4, size=4),))
    assert [each.code for each in verify(problem, wrong).violations] == ["wrong_parts"]
    assert verify(problem, stacked(plain)).ok


def test_a_search_for_what_does_not_fit_leaves_buffers_out() -> None:
    """What remains of a problem has no parts of buffers that it lacks."""
    buffers = tuple(Buffer(id=name, lower=0, upper=2, size=8) for name in "ab")
    problem = Problem(buffers=buffers, capacity=8, parts=(Part(id="v", buffer="b", size=4),), results=("v", "a"))
    assert [buffer.id for buffer in clip(problem, [0], 0, 1).buffers] == ["a"]


def test_views_of_views_and_places_of_places() -> None:
    """Offsets of views add up; results in place follow their chain."""
    tensor = order.Tensor
    tensors = (
        tensor(id="x", size=64),
        tensor(id="v", size=32, alias_of=0, offset=16),
        tensor(id="w", size=8, alias_of=1, offset=8),
        tensor(id="y", size=64),
        tensor(id="z", size=64),
        tensor(id="u", size=4, alias_of=4, offset=60),
    )
    ops = (
        order.Op(id="0", reads=(0,), writes=(1,)),
        order.Op(id="1", reads=(1,), writes=(2,)),
        order.Op(id="2", reads=(0,), writes=(3,), in_place=((0, 3),)),
        order.Op(id="3", reads=(3,), writes=(4,), in_place=((3, 4),)),
        order.Op(id="4", reads=(4,), writes=(5,)),
    )
    graph = order.Problem(tensors=tensors, ops=ops, inputs=(0,), outputs=(5,), results=(5, 5))
    assert places(arena_problem(graph, in_place=True)) == [("u", "x", 60, 4)] * 2
    kept = msgspec.structs.replace(graph, outputs=(2, 5), results=(2, 5))
    assert places(arena_problem(kept, in_place=True)) == [("w", "x", 24, 8), ("u", "y", 60, 4)]
    with pytest.raises(InputError, match="a view of 32 bytes at offset 40, expected at most the 64 of x"):
        order.Problem(tensors=(tensors[0], tensor(id="v", size=32, alias_of=0, offset=40)), ops=())
