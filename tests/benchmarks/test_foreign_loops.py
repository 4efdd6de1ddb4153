"""Loops on other mappers' machines: graphs and mappings of theirs are read, and the wires of their machines judge plans."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.foreign import morpher, satmapit
from benchmarks.foreign.fabric import Fabric, carries
from benchmarks.foreign.loops import solve
from stowplan.hardware.se import load_machine
from stowplan.models.modulo_scheduling.assemble import make_plan
from stowplan.models.modulo_scheduling.problem import Problem, Rules
from stowplan.models.modulo_scheduling.structure import Structure
from stowplan.models.modulo_scheduling.verify import verify
from tests.models.modulo_scheduling.cases import graph

TORUS = load_machine("satmapit-2x2")
SUM = graph("i>a a>s s>s:1 s>o", TORUS, rules=Rules(siblings="none"))


def peer(folder: Path, parser: str, mapper: str) -> satmapit.Peer:
    """A checkout with modules as SAT-MapIt has them, which do what the test says."""
    (folder / "Mapper").mkdir()
    (folder / "Mapper" / "Parser.py").write_text(parser)
    (folder / "Mapper" / "Mapper.py").write_text(mapper)
    return satmapit.Peer(folder, Path(sys.executable))


PARSER = """
class Parser:
    def parseEdgeFile(self, path):
        self.edges = [tuple(map(int, line.split())) for line in open(path)]
    def getDFG(self):
        return self.edges
"""

MAPPER = """
class Mapper:
    def __init__(self, rows, columns, edges, name):
        assert (rows, columns, edges) == (2, 2, [(0, 1, 0, 1), (1, 2, 0, 1), (2, 3, 0, 1)]), edges
    def findMapping(self, allowed):
        print("II: 1")
        print("II: 2")
        self.II, self.kernel, self.schedule = 2, {0: {0: 0, 1: 2}, 1: {0: 1, 1: 3}}, {0: [0], 1: [1], 2: [2], 3: [3]}
"""


def test_a_mapping_of_satmapit_becomes_a_plan(tmp_path: Path) -> None:
    mapped = satmapit.run(peer(tmp_path, PARSER, MAPPER), SUM, 20)
    assert (mapped.ii, mapped.places) == (2, {"i": (0, 0), "a": (0, 1), "s": (1, 2), "o": (1, 3)})
    plan = satmapit.plan_of(SUM, mapped)
    assert plan is not None
    assert verify(SUM, plan).ok
    # The result of a overwrites that of i in its tile, before another tile reads it.
    late = mapped._replace(places={**mapped.places, "a": (1, 3), "s": (0, 4), "o": (0, 3)})
    assert satmapit.plan_of(SUM, late) is None


def test_its_time_is_that_of_the_processor(tmp_path: Path) -> None:
    endless = MAPPER.replace('print("II: 2")', 'print("II: 2")\n        while True: pass')
    mapped = satmapit.run(peer(tmp_path, PARSER, endless), SUM, 1)
    assert (mapped.ii, mapped.at_least, mapped.places) == (None, 2, {})


def test_a_mapper_that_fails_is_no_mapper_without_a_mapping(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        satmapit.run(peer(tmp_path, PARSER, "raise ValueError('no such thing')"), SUM, 20)


def test_what_satmapit_cannot_read() -> None:
    assert satmapit.why_not(SUM) is None
    assert "distance above 1" in (satmapit.why_not(graph("a>b b>a:2", TORUS)) or "")
    assert "without values" in (satmapit.why_not(graph("a>b c", TORUS)) or "")


def test_our_search_is_proven() -> None:
    ours = solve(SUM, 20)
    assert ours.plan is not None
    assert ours.plan.ii == ours.least == 1
    assert ours.proven is not None
    assert ours.planned is not None


XML = """<MutexBB></MutexBB>
<DFG count="3">
<Node idx="4" ASAP="0" ALAP="0"BB="a"CONST="1"><OP>LOAD</OP>
<Inputs></Inputs><Outputs><Output idx="7" nextiter="0" type="P"/><Output idx="9" nextiter="0" type="PS"/></Outputs>
<RecParents></RecParents></Node>
<Node idx="7" ASAP="0" ALAP="0"BB="a"><OP>ADD</OP>
<Inputs><Input idx="4"/></Inputs><Outputs><Output idx="7" nextiter="1" type="I1"/></Outputs>
<RecParents><RecParent idx="9"/></RecParents></Node>
<Node idx="9" ASAP="0" ALAP="0"BB="a"><OP>MUL</OP><Inputs><Input idx="4"/></Inputs><Outputs></Outputs>
<RecParents></RecParents></Node>
</DFG>"""


def test_a_graph_of_morpher(tmp_path: Path) -> None:
    path = tmp_path / "loop.xml"
    path.write_text(XML)
    found = morpher.read(path)
    read = {each.id: [(o.instruction, o.distance) for o in each.operands] for each in found.dfg.instructions}
    assert read == {"4": [], "7": [("4", 0), ("7", 1)], "9": []}
    load, add, _ = found.dfg.instructions
    assert (load.latency, load.tiles, add.latency, add.tiles) == (2, (0, 4, 8, 12), None, None)
    # Where a predicate does not say whether it is negated, Morpher reads a number that it has not written.
    assert found.xml == XML.replace('type="P"', 'NPB="0" type="P"')
    machine = load_machine("adres-4x4")
    relaxed, target = morpher.relaxed_problem(found.dfg, machine), morpher.target_problem(found.dfg, machine)
    assert target.instructions[1].tiles == (1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15)
    assert relaxed.hops[0][15] == 5
    assert morpher.relaxed_problem(found.dfg, load_machine("hycube-4x4")).hops[0][15] == 1
    mapped = morpher.Mapped(2, 0.0, {"4": (0, 0), "7": (1, 0), "9": (2, 1)})
    pinned = morpher.fixed_problem(target, mapped)
    assert [(pin.tile, pin.slot) for pin in pinned.pins] == [(0, 0), (1, 0), (2, 1)]


def one_row() -> dict[str, object]:
    """Two tiles, as Morpher describes them: a result goes to the other tile or into a register, and one value waits there."""
    ports = {"FU0.DP0_T": ["THIS.EAST_O", "THIS.WEST_O", "THIS.R"], "THIS.R": ["FU0.DP0_I1"]}
    inputs = {"THIS.EAST_I": ["FU0.DP0_I1", "THIS.R"], "THIS.WEST_I": ["FU0.DP0_I1", "THIS.R"]}
    tile = {"REGS": ["R"], "SUBMODS": {"FU": [{"name": "FU0"}]}, "CONNECTIONS": ports | inputs}
    links = [
        {"FROM_PORT": "EAST_O", "TO_X": "X+1", "TO_Y": "Y", "TO_PORT": "WEST_I"},
        {"FROM_PORT": "WEST_O", "TO_X": "X-1", "TO_Y": "Y", "TO_PORT": "EAST_I"},
    ]
    tiles = [{"X": x, "Y": 0, "MOD": "PE"} for x in (0, 1)]
    grid = {"PATTERN": "GRID", "DIMS": {"X": 2, "Y": 1}, "MODS": tiles, "CONNECTIONS": links}
    return {"ARCH": {"FU": {"OPS": {"ADD": 1}, "CONNECTIONS": {}}, "PE": tile, "CGRA": {"SUBMODS": [grid]}}}


@pytest.mark.parametrize(
    ("ii", "tiles", "times", "answer"),
    [
        # To the other tile at once, or after a wait in its register.
        (4, [0, 1, 1], [0, 1, 2], "yes"),
        (4, [0, 0, 1], [0, 2, 1], "yes"),
        # In the register until after the next value is written there.
        (2, [0, 1, 0], [0, 1, 4], "no"),
        (4, [0, 1, 0], [0, 1, 4], "yes"),
    ],
)
def test_wires_and_registers_of_a_machine(tmp_path: Path, ii: int, tiles: list[int], times: list[int], answer: str) -> None:
    path = tmp_path / "arch.json"
    path.write_text(json.dumps(one_row()))
    row = load_machine("mesh-2x2")
    problem: Problem = graph("a>b a>c", row, rules=Rules(siblings="none"))
    plan = make_plan(Structure(problem), ii, tiles, times)
    assert plan is not None
    assert carries(Fabric(path), 1, problem, plan, 10) == answer
