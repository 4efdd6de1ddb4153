"""Offset tables, in every format; what is written for C is compiled."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowplan.backends import emit as emission
from stowplan.backends.emit import FORMATS, emit, table_of, write
from stowplan.errors import InputError, UsageError
from stowplan.kernel.kind import kind
from stowplan.models.memory_mapping import plan as mapping
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.tier_placement import plan as placement
from stowplan.models.tier_placement import problem as network
from tests.kernel.fakes import ladder_plan, ladder_problem


def packing(*names: str, capacity: int | None = None) -> tuple[Problem, Plan]:
    """Buffers of 24 bytes one above the other, 64 bytes apart."""
    buffers = tuple(Buffer(id=name, lower=-1, upper=2, size=24, alignment=[64, 3][at % 2]) for at, name in enumerate(names))
    problem = Problem(name='a "net"', buffers=buffers, capacity=capacity)
    offsets = tuple(192 * number for number in range(len(names)))
    return problem, Plan(problem=problem.digest, objective=192 * len(names) - 168, offsets=offsets)


def test_packing() -> None:
    problem, plan = packing("a", "b", capacity=1000)
    table = OffsetTable.decode(emit(problem, plan, "json"))
    assert table == table_of(problem, plan)
    assert table.problem_digest == problem.digest
    (arena,) = table.arenas
    # The arena must be aligned for both.
    assert (arena.bytes, arena.alignment, arena.capacity) == (216, 192, 1000)
    assert [(row.name, row.offset, row.size, row.start, row.end) for row in table.rows] == [
        ("a", 0, 24, -1, 2),
        ("b", 192, 24, -1, 2),
    ]


def test_memory_mapping() -> None:
    problem = ladder_problem()
    plan = ladder_plan(problem, 2)
    table = table_of(problem, plan)
    assert [(row.name, row.offset, row.size, row.start, row.end) for row in table.rows] == [
        ("t0", 0, 1, 0, 5),
        ("t1", 1, 1, 0, 5),
    ]
    assert [(each.name, each.bytes, each.capacity) for each in table.arenas] == [("fast_memory", 2, 3)]
    nothing = mapping.Plan(problem=problem.digest, objective=140)
    assert table_of(problem, nothing).arenas[0].bytes == 0
    assert b"_rows" not in emit(problem, nothing, "c-header")


def test_tier_placement_has_an_arena_for_each_tier() -> None:
    tiers = tuple(network.Tier(name=name, capacity=1000, bandwidth=1 + number, alignment=8) for number, name in enumerate("ab"))
    problem: Any = _network(tiers, address_spaces=True)
    plan = placement.Plan(
        problem=problem.digest,
        objective=0,
        weight_tiers=(0, 1),
        output_tiers=(1, 1),
        weight_offsets=(16, 0),
        output_offsets=(8, 24),
    )
    table = table_of(problem, plan)
    assert [(row.name, row.arena, row.offset, row.start, row.end) for row in table.rows] == [
        ("one.weights", 0, 16, 0, 2),
        ("one.output", 1, 8, 0, 2),
        ("two.weights", 1, 0, 0, 2),
        ("two.output", 1, 24, 1, 2),
    ]
    assert [each.bytes for each in table.arenas] == [26, 34]
    with pytest.raises(UsageError, match="--set address_spaces=yes"):
        table_of(msgspec.structs.replace(problem, address_spaces=False), plan)


def test_csv() -> None:
    problem, plan = packing("a", "b,c")
    lines = emit(problem, plan, "csv").decode().splitlines()
    assert lines[0] == f"# problem {problem.digest}"
    assert lines[2] == "# arena arena: 216 bytes, alignment 192"
    rows = list(csv.DictReader(lines[3:]))
    assert [(row["name"], row["offset"], row["size"], row["alignment"]) for row in rows] == [
        ("a", "0", "24", "64"),
        ("b,c", "192", "24", "3"),
    ]


NAMES = ("a", "a b", "a-b", "a_b_2", '"\\?\n*/', "é7", "7", "BYTES")


@pytest.mark.parametrize("compiler", [("cc", "-std=c99"), ("c++", "-std=c++11")], ids=["c", "c++"])
def test_c_header_compiles_and_says_the_same(compiler: tuple[str, str], tmp_path: Path) -> None:
    """Names that C does not take, and those that become one another's."""
    program, standard = compiler
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    problem, plan = packing(*NAMES)
    write(tmp_path / "2nd-net.h", problem, plan, "c-header")
    source = tmp_path / ("main.c" if program == "cc" else "main.cc")
    source.write_text(
        '#include "2nd-net.h"\n#include "2nd-net.h"\n#include <stdio.h>\n'
        "int main(void) {\n"
        "    for (int i = 0; i < N2ND_NET_COUNT; ++i)\n"
        '        printf("%s%c%d%c", n2nd_net_rows[i].name, 0, (int)n2nd_net_rows[i].offset, 0);\n'
        '    printf("%d %d", (int)N2ND_NET_ARENA_BYTES, (int)N2ND_NET_OFFSET_a_b_3);\n'
        "    return 0;\n}\n"
    )
    flags = [standard, "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([program, *flags, "-o", tmp_path / "main", source], check=True)
    *found, sums = subprocess.run([tmp_path / "main"], check=True, capture_output=True).stdout.decode().split("\0")
    assert found == [text for number, name in enumerate(NAMES) for text in (name, str(192 * number))]
    assert sums == f"{192 * 7 + 24} {192 * 2}"


def test_exact_names_are_kept_in_c_headers() -> None:
    """Whatever stands before them becomes the same identifier."""
    text = emit(*packing("a.b", "a_b", "a b"), "c-header", "x").decode()
    assert re.findall(r"define X_OFFSET_(\w+) UINT64_C\((\d+)\)", text) == [("a_b_2", "0"), ("a_b", "192"), ("a_b_3", "384")]


def test_equal_plans_give_equal_bytes() -> None:
    for form in FORMATS:
        assert emit(*packing("a", "b"), form) == emit(*packing("a", "b"), form)


def test_what_has_no_offsets_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, plan = packing("a")
    with pytest.raises(UsageError, match="found the format 'xml', expected one of c-header, json, csv"):
        emit(problem, plan, "xml")
    monkeypatch.setattr(emission, "kind_of", lambda problem: replace(kind("packing"), offset_table=None))
    with pytest.raises(UsageError, match="plans of packing have no offsets to emit, those of memory mapping"):
        emit(problem, plan, "json")


def test_a_result_is_exactly_one_row() -> None:
    problem, plan = packing("a", "b")
    row = OffsetRow(name="a", offset=0, size=4, start=0, end=1)
    another = msgspec.structs.replace(row, name="b")
    for rows, result, count in (([row], "c", 0), ([row, another, row], "a", 2)):
        with pytest.raises(InputError, match=f"found {count} rows of the offset table for the result '{result}', expected"):
            make_table("packing", problem, plan, {"arena": None}, rows, ["a"] * (count == 0) + [result])
    # Rows may share a name that no result has, as the residencies of a tensor do.
    table = make_table("packing", problem, plan, {"arena": None}, [row, another, row], ["b", "b"])
    assert table.results == (1, 1)


def _network(tiers: tuple[network.Tier, ...], address_spaces: bool) -> network.Problem:
    layers = tuple(
        network.Layer(name=name, weight_bytes=10, output_bytes=10, inputs=inputs)
        for name, inputs in (("one", ()), ("two", (0,)))
    )
    return network.Problem(name="two", target="none", tiers=tiers, layers=layers, address_spaces=address_spaces)


def test_operator_order() -> None:
    """An input, a result and a view of it."""
    from stowplan.models.operator_order.plan import Plan as Order
    from stowplan.models.operator_order.problem import Op, Tensor
    from stowplan.models.operator_order.problem import Problem as Graph
    from stowplan.models.operator_order.verify import verify

    problem = Graph(
        tensors=(Tensor(id="x", size=4), Tensor(id="y", size=8), Tensor(id="v", size=8, alias_of=1), Tensor(id="z", size=2)),
        ops=(Op(id="f", reads=(0,), writes=(1,)), Op(id="g", reads=(2,), writes=(3,))),
        inputs=(0,),
        outputs=(3,),
    )
    plan = Order(problem=problem.digest, objective=12, arena=12, order=(0, 1), offsets=(8, 0, 0, 8))
    assert verify(problem, plan).ok
    table = table_of(problem, plan)
    assert table.arenas[0].bytes == 12
    assert [(row.name, row.offset, row.start, row.end) for row in table.rows] == [
        ("x", 8, 0, 1),
        ("y", 0, 0, 2),
        ("v", 0, 0, 2),
        ("z", 8, 1, 2),
    ]
