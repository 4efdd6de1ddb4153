"""The wires and registers of a machine of Morpher, from its own file, and whether they carry the values of a plan.

The file describes modules with ports, registers and connections. At every clock modulo II, a port carries one value. A value
goes from port to port within a clock, across a limited number of tiles, and through a register to the next clock. With the
tiles and times of a plan, a CP-SAT model chooses a tree of ports for each value: whether it exists is the answer. It knows
nothing of the rules of our targets, so it judges them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ortools.sat.python import cp_model

from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

Answer = Literal["yes", "no", "not decided"]

#: A port: row, column, and its name within the tile.
Port = tuple[int, int, str]

#: Ports of the functional unit of a tile.
_RESULT, _OPERANDS = "FU0.DP0_T", ("FU0.DP0_I1", "FU0.DP0_I2", "FU0.DP0_P")


class Wire(NamedTuple):
    """A way from a port to another: the clocks it takes, and whether it leaves the tile."""

    start: Port
    end: Port
    clocks: int
    leaves: bool


class Fabric:
    """The wires of a machine, by the ports at their ends."""

    def __init__(self, path: Path):
        modules = json.loads(path.read_text())["ARCH"]
        (grid,) = modules["CGRA"]["SUBMODS"]
        self.into: dict[Port, list[Wire]] = defaultdict(list)
        self.out_of: dict[Port, list[Wire]] = defaultdict(list)
        self.rows, self.columns = grid["DIMS"]["Y"], grid["DIMS"]["X"]
        for tile in grid["MODS"]:
            row, column = tile["Y"], tile["X"]
            for start, end, clocks in _inside(modules, modules[tile["MOD"]], ""):
                self._add(Wire((row, column, start), (row, column, end), clocks, False))
        for link in grid["CONNECTIONS"]:
            for row in range(self.rows):
                for column in range(self.columns):
                    down, right = (_offset(link[f"TO_{axis}"]) for axis in "YX")
                    if 0 <= row + down < self.rows and 0 <= column + right < self.columns:
                        other = row + down, column + right, link["TO_PORT"]
                        self._add(Wire((row, column, link["FROM_PORT"]), other, 0, True))

    def _add(self, wire: Wire) -> None:
        self.into[wire.end].append(wire)
        self.out_of[wire.start].append(wire)

    def port(self, tile: int, name: str) -> Port:
        """A port of a tile by the tile's number."""
        return tile // self.columns, tile % self.columns, name


def _offset(text: str) -> int:
    """The offset in a coordinate such as ``X+1``."""
    return int(text[1:] or 0)


def _inside(modules: dict[str, Any], module: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, int]]:
    """The wires (start, end, clocks) inside of a tile, with the modules in it but the functional unit; and its registers, each
    with a port that is written, one that is read a clock later, and a wire between them that holds the value."""
    registers = module.get("REGS", [])

    def name(port: str, written: bool) -> str:
        owner, _, own = port.partition(".")
        if owner != "THIS":
            return f"{prefix}{port}"
        return f"{prefix}{own}{('.in' if written else '.out') if own in registers else ''}"

    for register in registers:
        yield f"{prefix}{register}.in", f"{prefix}{register}.out", 1
        yield f"{prefix}{register}.out", f"{prefix}{register}.in", 0
    for start, ends in module["CONNECTIONS"].items():
        for end in ends:
            yield name(start, written=False), name(end, written=True), 0
    for kind, inner in module.get("SUBMODS", {}).items():
        for each in inner if "OPS" not in modules[kind] else ():
            yield from _inside(modules, modules[kind], f"{prefix}{each['name']}.")


def carries(fabric: Fabric, hops: int, problem: Problem, plan: Plan, work: float) -> Answer:
    """Whether the wires and registers carry all values of a plan; ``hops`` is how many tiles a value crosses in one clock,
    and ``work`` the limit of CP-SAT's work, in its seconds that no other program changes.

    An operand may arrive at any port of its consumer's functional unit, each with one value.
    """
    model, ii = cp_model.CpModel(), plan.ii
    # (port, slot) -> what each value has there.
    users: dict[tuple[Port, int], list[cp_model.IntVar]] = defaultdict(list)
    reads: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for edge in problem.edges:
        reads[edge.source].append((edge.target, plan.times[edge.target] + ii * edge.distance))
    for source, readers in sorted(reads.items()):
        root = fabric.port(plan.tiles[source], _RESULT), plan.times[source] + problem.latencies[source]
        operands = {
            (target, clock): [(fabric.port(plan.tiles[target], operand), clock) for operand in _OPERANDS]
            for target, clock in readers
        }
        tree = _Tree(model, fabric, hops, root, {place for places in operands.values() for place in places})
        for places in operands.values():
            model.add_bool_or([tree.at[place] for place in places if place in tree.at])
        for (port, clock), literal in tree.at.items():
            users[port, clock % ii].append(literal)
    for literals in users.values():
        if len(literals) > 1:
            model.add_at_most_one(literals)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_deterministic_time = 1, work
    status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return "yes"
    return "no" if status == cp_model.INFEASIBLE else "not decided"


class _Tree:
    """The ports that one value may pass, and when: from its producer's result, forwards along wires."""

    def __init__(
        self, model: cp_model.CpModel, fabric: Fabric, hops: int, root: tuple[Port, int], reads: set[tuple[Port, int]]
    ):
        ways = _ways(fabric, root, reads)
        self.at = {place: model.new_bool_var("") for place in {root, *ways}}
        # How many tiles the value has crossed within the clock. Every circle within a clock leaves a tile, so that this number
        # also keeps a value from going around without a beginning.
        crossed = {place: model.new_int_var(0, hops, "") for place in self.at}
        for place, wires in ways.items():
            taken = []
            for wire in wires:
                before = wire.start, place[1] - wire.clocks
                taken.append(model.new_bool_var(""))
                model.add_implication(taken[-1], self.at[before])
                if wire.clocks == 0:
                    model.add(crossed[place] >= crossed[before] + wire.leaves).only_enforce_if(taken[-1])
            if place != root:
                model.add_bool_or([self.at[place].negated(), *taken])


def _ways(fabric: Fabric, root: tuple[Port, int], reads: set[tuple[Port, int]]) -> dict[tuple[Port, int], list[Wire]]:
    """The wires into each (port, clock) that lies on some way from the root to a read."""
    last = max(clock for _, clock in reads)
    reached, waiting = {root}, [root]
    while waiting:
        port, clock = waiting.pop()
        for wire in fabric.out_of.get(port, ()):
            after = wire.end, clock + wire.clocks
            if after[1] <= last and after not in reached:
                reached.add(after)
                waiting.append(after)
    ways: dict[tuple[Port, int], list[Wire]] = {}
    waiting = [place for place in reads if place in reached]
    while waiting:
        place = waiting.pop()
        if place not in ways:
            into = fabric.into.get(place[0], [])
            ways[place] = [wire for wire in into if (wire.start, place[1] - wire.clocks) in reached]
            waiting += [(wire.start, place[1] - wire.clocks) for wire in ways[place]]
    return ways
