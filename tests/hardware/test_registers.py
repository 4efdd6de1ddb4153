"""Machines with registers and memory tiles: what a file may say, and problems and plans for the machines of other mappers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan.errors import InputError
from stowplan.frontends.dfg import lower, read_json
from stowplan.frontends.dfg.graph import decode_json
from stowplan.hardware.se import compare, load_machine
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.machine import Registers
from stowplan.models.modulo_scheduling.problem import Rules
from stowplan.models.modulo_scheduling.verify import verify
from tests.models.modulo_scheduling.cases import graph
from tests.paths import EXAMPLES

FILE = """
name = "mine"
rows = 2
columns = 2
latency = 1
links = [{{ name = "right", rows = 0, columns = 1, clocks = {clocks} }}]
memory_tiles = {tiles}
[registers]
count = {count}
"""


#: The sum of squares, plus the last term.
SQUARES = b"""{
  "nodes": [{"id": "x", "op": "load"}, {"id": "square", "op": "mul"}, {"id": "sum", "op": "add"},
            {"id": "both", "op": "add"}, {"id": "out", "op": "store"}],
  "edges": [{"src": "x", "dst": "square", "mult": 2}, {"src": "square", "dst": "sum"}, {"src": "sum", "dst": "sum"},
            {"src": "sum", "dst": "both"}, {"src": "x", "dst": "both"}, {"src": "both", "dst": "out"}]
}"""


@pytest.mark.parametrize(
    ("clocks", "tiles", "count", "message"),
    [
        (1, [0], 4, r"machine\.registers: found them beside a link of 1 clocks, expected links of 0 clocks"),
        (0, [0], -1, r"machine\.registers\.count: found -1, expected 0 to 65536"),
        (0, [], 4, r"machine\.memory_tiles: found \[\], expected one or more of 0 to 3, ascending"),
        (0, [2, 1], 4, r"machine\.memory_tiles: found \[2, 1\]"),
        (0, [4], 4, r"machine\.memory_tiles: found \[4\]"),
    ],
)
def test_files_that_make_no_sense(tmp_path: Path, clocks: int, tiles: list[int], count: int, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE.format(clocks=0, tiles=[0, 2], count=4))
    assert load_machine(path).registers == Registers(count=4)
    path.write_text(FILE.format(clocks=clocks, tiles=tiles, count=count))
    with pytest.raises(InputError, match=message):
        load_machine(path)


def test_loads_and_stores_are_on_the_tiles_for_them() -> None:
    fir = read_json(EXAMPLES / "fir.dfg.json")
    problem = lower(fir, load_machine("adres-4x4"), inputs="instructions", rules=Rules(siblings="none"))
    tiles = {instruction.op: instruction.tiles for instruction in problem.instructions}
    assert tiles["load"] == (0, 4, 8, 12)
    assert tiles["mul"] is None
    everywhere = lower(fir, load_machine("mesh-4x4"), inputs="instructions", rules=Rules(siblings="none"))
    assert all(instruction.tiles is None for instruction in everywhere.instructions)


def test_the_digest_is_that_of_before_without_registers() -> None:
    problem = graph("a>b", load_machine("torus-2x2"))
    with_registers = graph("a>b", load_machine("satmapit-2x2"))
    assert problem.digest != with_registers.digest
    machine = msgspec.structs.replace(load_machine("satmapit-2x2"), registers=msgspec.UNSET)
    assert graph("a>b", machine).digest == problem.digest


@pytest.mark.parametrize("name", ["satmapit-3x3", "adres-4x4", "hycube-4x4"])
def test_plans_for_other_mappers_machines(name: str) -> None:
    """They are verified, proven, and compute what NumPy does."""
    problem = lower(
        decode_json(SQUARES, source="squares"), load_machine(name), inputs="instructions", rules=Rules(siblings="none")
    )
    outcome = cpsat.solve(problem, time_limit=60)
    assert outcome.plan is not None
    assert verify(problem, outcome.plan).ok
    assert outcome.bound is not None
    assert outcome.bound // 1_000_000 == outcome.plan.ii
    compare(problem, outcome.plan, 5)


def test_registers_can_make_a_loop_impossible() -> None:
    """The value of a goes to c at once, and over b; its register is written again before both have it."""
    machine = msgspec.structs.replace(load_machine("mesh-2x2"), registers=Registers(count=0))
    problem = graph("a>b b>c a>c", machine, rules=Rules(siblings="none"))
    result = stowplan.solve(problem, time_limit=20)
    assert result.status == "infeasible"
    two = graph("a>b a>b:2", machine, rules=Rules(siblings="none"))
    reason = cpsat.solve(two, time_limit=20).reason
    assert reason is not None
    assert "with registers" in reason
