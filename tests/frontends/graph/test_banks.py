"""Graphs for devices with several memories: what is used most stands in the cheapest; traffic is counted in another way."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import stowplan
from stowplan.errors import InputError
from stowplan.frontends.graph.lowering import banks_problem, traffic
from stowplan.graph.graph import Graph, Op, Tensor
from stowplan.hardware.memories import is_memory_target, load_target
from stowplan.kernel.kind import kind_of
from stowplan.models.banked_packing.plan import offset_table
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.banked_packing.verify import verify
from stowplan.models.operator_order.verify import verify as verify_order
from tests.cli.conftest import run_process
from tests.paths import EXAMPLES

TARGET = """
format = "stowplan.memory_target"
version = 1
name = "two"
description = "a small one and a large one"
[[banks]]
name = "fast"
capacity = "{fast} B"
cost = 1
[[banks]]
name = "slow"
capacity = "1 MiB"
cost = 7
"""


def target_file(folder: Path, fast: int = 64) -> Path:
    path = folder / "two.toml"
    path.write_text(TARGET.format(fast=fast))
    return path


def random_graph(seed: int) -> Graph:
    """A chain of operators that read anything before them; some results are views."""
    chance = random.Random(seed)
    tensors = [Tensor(id="in", size=chance.randrange(8, 40))]
    ops = []
    for number in range(chance.randrange(2, 9)):
        reads = tuple(sorted(chance.sample(range(len(tensors)), min(len(tensors), chance.choice([1, 2])))))
        view = chance.random() < 0.25
        base = reads[0]
        size = chance.randrange(1, tensors[base].size + 1) if view else chance.randrange(1, 60)
        start = chance.randrange(tensors[base].size - size + 1) if view else 0
        tensors.append(Tensor(id=f"t{number}", size=size, alias_of=base if view else None, start=start))
        ops.append(Op(id=f"o{number}", kind="any", reads=reads, writes=(len(tensors) - 1,)))
    last = len(tensors) - 1
    return Graph(name=f"g{seed}", tensors=tuple(tensors), ops=tuple(ops), inputs=(0,), outputs=(last,), results=(last,))


def counted(graph: Graph) -> dict[str, int]:
    """Bytes read and written of each tensor with bytes of its own, by name: every access written down, then added up."""
    accesses: list[tuple[str, int]] = []

    def storage(number: int) -> str:
        tensor = graph.tensors[number]
        return tensor.id if tensor.alias_of is None else storage(tensor.alias_of)

    for op in graph.ops:
        accesses += [(storage(number), graph.tensors[number].size) for number in op.reads]
        # A view is not written: its bytes are there.
        accesses += [
            (storage(number), graph.tensors[number].size) for number in op.writes if graph.tensors[number].alias_of is None
        ]
    accesses += [(storage(number), graph.tensors[number].size) for number in (*graph.inputs, *graph.results)]
    names = {name for name, _ in accesses}
    return {name: sum(size for other, size in accesses if other == name) for name in names}


@pytest.mark.parametrize("part", range(4))
def test_traffic_is_that_of_another_count(part: int, tmp_path: Path) -> None:
    target = load_target(target_file(tmp_path))
    for seed in range(50 * part, 50 * part + 50):
        graph = random_graph(seed)
        found = {graph.tensors[number].id: total for number, total in traffic(graph).items()}
        assert {name: total for name, total in found.items() if total} == counted(graph), seed
        problem = banks_problem(graph, target)
        for number, buffer in enumerate(problem.buffers):
            total = counted(graph)[buffer.id]
            assert total <= problem.traffic(number) < total + buffer.size, seed


def test_what_is_used_most_stands_in_the_cheapest_bank(tmp_path: Path) -> None:
    """Two tensors live at once and one has room; the one that three operators read stands there."""
    graph = Graph(
        name="two",
        tensors=tuple(Tensor(id=name, size=48) for name in ("often", "seldom", "a", "b", "c")),
        ops=(
            Op(id="0", reads=(0,), writes=(2,)),
            Op(id="1", reads=(0, 2), writes=(3,)),
            Op(id="2", reads=(0, 1, 3), writes=(4,)),
        ),
        inputs=(0, 1),
        outputs=(4,),
        results=(4,),
    )
    problem = banks_problem(graph, load_target(target_file(tmp_path)))
    result = stowplan.solve(problem, time_limit=10, workers=1)
    assert result.status == "optimal"
    assert result.plan is not None
    assert verify(problem, result.plan).ok
    where = {buffer.id: problem.banks[bank].name for buffer, bank in zip(problem.buffers, result.plan.banks, strict=True)}
    assert where["often"] == "fast"
    assert {where["seldom"], where["a"], where["b"], where["c"]} == {"slow"}
    assert result.details["traffic_by_bank"] == {"fast": 48 * 4, "slow": 48 * (2 + 2 + 2 + 2)}


def test_what_only_stays_is_not_read_at_the_end(tmp_path: Path) -> None:
    """A parameter that the caller keeps is there to the end, and no result."""
    graph = Graph(
        name="kept",
        tensors=(Tensor(id="w", size=8), Tensor(id="x", size=4), Tensor(id="y", size=4)),
        ops=(Op(id="0", reads=(0, 1), writes=(2,)),),
        inputs=(0, 1),
        outputs=(0, 2),
        results=(2,),
    )
    assert traffic(graph) == {0: 16, 1: 8, 2: 8}


def test_views_and_results_have_rows(tmp_path: Path) -> None:
    """A C header finds every result, a view among them, at its bytes in the arena of its bank."""
    for seed in range(60):
        graph = random_graph(seed)
        problem = banks_problem(graph, load_target(target_file(tmp_path)))
        plan = kind_of(problem).initial(problem)["by_size"]
        table = offset_table(problem, plan)
        rows = {row.name: row for row in table.rows}
        assert [rows[graph.tensors[number].id] for number in graph.results] == [table.rows[at] for at in table.results]
        for number, tensor in enumerate(graph.tensors):
            base = graph.tensors[graph.base[number]].id
            if tensor.id in rows and base in rows:
                assert rows[tensor.id].arena == rows[base].arena
                assert rows[tensor.id].offset == rows[base].offset + graph.base_offset[number]


@pytest.mark.parametrize("name", ["branches.tflite", "cells.graph.json", "alexnet_inf_b1.hlo.txt.gz"])
def test_the_command_line(name: str, tmp_path: Path) -> None:
    path, header = tmp_path / "large.toml", tmp_path / "plan.h"
    path.write_text(TARGET.format(fast=4096).replace("1 MiB", "2 GiB"))
    command = [
        "solve",
        EXAMPLES / name,
        "--target",
        path,
        "--time-limit",
        "20",
        "--json",
        "--quiet",
        "--emit",
        f"c-header={header}",
    ]
    done = run_process(*command, capture_output=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "banked_packing"
    assert set(found["details"]["traffic_by_bank"]) == {"fast", "slow"}
    assert "SLOW" in header.read_text().upper()


def test_results_of_models_in_tflite_have_an_order_too(tmp_path: Path) -> None:
    problem = stowplan.read(EXAMPLES / "branches.tflite", "order")
    result = stowplan.solve(problem, time_limit=10, workers=1)
    assert result.plan is not None
    assert verify_order(problem, result.plan).ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("cost = 7", "cost = -1"), r"banks\[1\] \(slow\): found the cost -1, expected 0 to"),
        (('capacity = "1 MiB"', 'capacity = "1 MB/s"'), "found unit"),
        (('name = "slow"', 'name = "fast"'), "banks: found 2 of 1 names, expected one or more"),
        (("cost = 7", 'cost = 7\nreserved = "1 MiB"'), "found 1048576 reserved bytes, expected less than the capacity"),
        (("cost = 7", "price = 7"), "price"),
    ],
)
def test_bad_targets(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    path = target_file(tmp_path)
    path.write_text(path.read_text().replace(*change))
    assert is_memory_target(path)
    with pytest.raises(InputError, match=words) as error:
        stowplan.read(EXAMPLES / "branches.tflite", path)
    assert str(error.value).startswith(str(path))


def test_what_is_no_bank_target() -> None:
    assert not is_memory_target(None)
    assert not is_memory_target("order")
    assert not is_memory_target("missing.toml")
    assert is_memory_target("stm32h743")
    assert isinstance(stowplan.read(EXAMPLES / "branches.tflite", "stm32h743"), Problem)
