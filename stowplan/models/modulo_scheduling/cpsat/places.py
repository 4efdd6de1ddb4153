"""Variables and constraints of tiles: on which tile each group of instructions is, and between which tiles values can go.

A *group* is a set of instructions that must share a tile, *siblings* are instructions that must be on different tiles, and a
*start* is an instruction that the hardware starts at a set time (:mod:`stowplan.models.modulo_scheduling.structure`). A *value*
(also *edge*) goes from the instruction that produces it to one that consumes it, over links between tiles or over the
*asynchronous fabric*, a second network between tiles. Its *distance* is the number of iterations in between, and its *delay* is
the time that it waits for its consumer. Nothing here raises an error for a valid problem.

:class:`LeastIIModel` minimizes the initiation interval (II) with only these constraints and those of recurrences, which are
cycles of values over several iterations. It leaves out slots (clocks modulo the II).

:func:`bands` restricts each instruction to a few tiles, for a first plan of large graphs on a row of tiles. The loop body is
laid out along the row, and the instructions of each depth get a narrow band of tiles. The restricted model proves nothing, but
it is solved quickly. It suits butterfly networks, in which each stage needs two tiles and the next stage is one tile further.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Value
from stowplan.models.modulo_scheduling.assemble import list_schedule, make_plan
from stowplan.models.modulo_scheduling.differences import farthest
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.structure import Precedence, Structure, longest_paths, representatives, symmetries


@dataclass(frozen=True)
class Relax:
    """Says which families of constraints a model leaves out. This is how one finds out which of them make a problem infeasible.
    A solution of a model without some constraints need not be a valid plan."""

    siblings: bool = False
    """Whether siblings may share a tile."""
    starts: bool = False
    """Whether starts may share a tile."""
    reach: bool = False
    """Whether values may go between tiles that no links connect."""
    recurrences: bool = False
    """Whether values may arrive after their consumers are issued. If only instructions on recurrences have times in the model,
    this concerns the values within recurrences, since all other values have no constraint of this kind."""


#: No constraints are left out.
COMPLETE = Relax()


class PlaceModel:
    """The variables and constraints of tiles, which all models of this folder have.

    Parameters
    ----------
    ii
        The initiation interval, a number or a variable.
    model
        The CP-SAT model that variables and constraints are added to.
    relax
        Constraints to leave out.
    windows
        For each instruction, the tiles that it may be on; None for all tiles.
    """

    def __init__(
        self,
        structure: Structure,
        ii: Any,
        model: cp_model.CpModel,
        relax: Relax,
        windows: Sequence[range] | None = None,
    ):
        self.structure = structure
        self.problem = structure.problem
        self.ii = ii
        self.model = model
        self.relax = relax
        self.hops = self.problem.hops
        # If the II is a variable, the limit that registers put on waiting is left out.
        self._longest_wait = self.problem.longest_wait(ii) if isinstance(ii, int) else self.problem.rules.max_delay
        self._steps: dict[tuple[int, int], list[tuple[int, cp_model.IntVar]]] = {}
        self._starts: dict[int, list[cp_model.IntVar]] = {}
        self._place_variables(windows)
        self._capacity_constraints()
        if not relax.reach:
            self._reach_constraints()
        if not relax.siblings:
            self._sibling_constraints()
        if not relax.starts:
            self._start_constraints()

    def _place_variables(self, windows: Sequence[range] | None) -> None:
        """Add the variables ``on[group][tile]``, which say whether the group is on the tile."""
        structure, model = self.structure, self.model
        tiles = range(self.problem.machine.tiles)
        # Windows may treat all tiles differently, so they exclude the use of symmetries.
        self._least = representatives([tuple(tiles)] if windows is not None else symmetries(self.problem))
        # Symmetry breaking: of several equivalent tiles, the group with most neighbours may only be on the smallest one.
        degree = [0] * len(structure.members)
        for edge in structure.between:
            degree[structure.group[edge.source]] += 1
            degree[structure.group[edge.target]] += 1
        self.anchor = max(range(len(degree)), key=lambda group: degree[group], default=0)
        self.on: list[list[cp_model.IntVar]] = []
        for group, allowed in enumerate(structure.allowed):
            self.on.append([model.new_bool_var(f"group {group} on tile {tile}") for tile in tiles])
            model.add_exactly_one(self.on[group])
            for tile in tiles:
                elsewhere = tile not in allowed
                twin = group == self.anchor and self._least[tile][tile] != tile
                outside = windows is not None and any(tile not in windows[number] for number in structure.members[group])
                if elsewhere or twin or outside:
                    model.add(self.on[group][tile] == 0)

    def tile(self, number: int) -> list[cp_model.IntVar]:
        """For each tile, the Boolean variable that says whether an instruction is on it."""
        return self.on[self.structure.group[number]]

    def _capacity_constraints(self) -> None:
        """Limit the instructions and memory words on each tile."""
        machine, members = self.problem.machine, self.structure.members
        capacity = machine.memories * machine.memory_depth
        words = self.structure.words
        for tile in range(machine.tiles):
            load = sum(len(inside) * self.on[group][tile] for group, inside in enumerate(members))
            self.model.add(load <= self.ii)
            self.model.add(load <= machine.instruction_depth)
            if sum(words) > capacity:
                self.model.add(sum(words[group] * self.on[group][tile] for group in range(len(members))) <= capacity)

    def _reach_constraints(self) -> None:
        """Require that links connect the tiles of producer and consumer of each value that goes over links: the tile of one
        restricts the tiles of the other."""
        group = self.structure.group
        tiles = range(self.problem.machine.tiles)
        into = [[one for one in tiles if self.hops[one][two] is not None] for two in tiles]
        out = [[two for two in tiles if self.hops[one][two] is not None] for one in tiles]
        for one, two in sorted({(group[e.source], group[e.target]) for e in self.structure.between}):
            if one == two:
                continue
            for tile in tiles:
                if len(out[tile]) < len(tiles):
                    self.model.add_bool_or([self.on[one][tile].negated(), *(self.on[two][end] for end in out[tile])])
                if len(into[tile]) < len(tiles):
                    self.model.add_bool_or([self.on[two][tile].negated(), *(self.on[one][end] for end in into[tile])])

    def _sibling_constraints(self) -> None:
        """Require that siblings are on different tiles."""
        for family in self.structure.families:
            for tile in range(self.problem.machine.tiles):
                self.model.add_at_most_one(self.tile(number)[tile] for number in family)

    def _start_constraints(self) -> None:
        """Choose one instruction of each set in ``structure.start_choices`` as a start, and require that all starts are on
        different tiles. With fewer than two sets there is nothing to require."""
        choices = self.structure.start_choices
        if len(choices) < 2:
            return
        for numbers in choices:
            if len(numbers) == 1:
                self._starts[numbers[0]] = self.tile(numbers[0])
                continue
            for number in numbers:
                self._starts[number] = [
                    self.model.new_bool_var(f"{number} starts on {tile}") for tile in range(len(self.on[0]))
                ]
                for starts, on in zip(self._starts[number], self.tile(number), strict=True):
                    self.model.add_implication(starts, on)
            self.model.add_exactly_one(starts for number in numbers for starts in self._starts[number])
        for tile in range(self.problem.machine.tiles):
            self.model.add_at_most_one(starts[tile] for starts in self._starts.values())

    def value_constraint(self, edge: Precedence, source: Any, target: Any) -> None:
        """Require that a value arrives in time. Unless it goes over the asynchronous fabric, it may also wait no longer than
        the largest delay.

        ``source`` and ``target`` are the times at which producer and consumer are issued.
        """
        latency, limit = self.problem.latencies[edge.source], self._longest_wait
        delay = target - source + self.ii * edge.distance - latency - self._clocks(edge)
        self.model.add(delay >= 0)
        if limit is not None and edge.clocks is None:
            self.model.add(delay <= limit)

    def _clocks(self, edge: Precedence) -> Any:
        """The transport time of a value in clocks, as an expression or a number."""
        group = self.structure.group
        return self._hops_between(group[edge.source], group[edge.target]) if edge.clocks is None else edge.clocks

    def _hops_between(self, one: int, two: int) -> Any:
        """The clocks that a value needs from the tile of group ``one`` to that of group ``two``, as an expression.

        For each possible number of clocks, a literal (Boolean variable) says whether the two tiles are at least that far apart.
        """
        if one == two:
            return 0
        key = (one, two)
        if key not in self._steps:
            tiles = range(self.problem.machine.tiles)
            values = sorted({clocks for row in self.hops for clocks in row if clocks is not None})
            exact = self.problem.rules.max_delay is not None
            steps = []
            before = values[0]
            for value in values[1:]:
                further = self.model.new_bool_var(f"groups {one} and {two} are {value} clocks apart or more")
                for tile in tiles:
                    near = [self.on[two][end] for end in tiles if (c := self.hops[tile][end]) is not None and c < value]
                    self.model.add_bool_or([self.on[one][tile].negated(), further, *near])
                    far = [self.on[two][end] for end in tiles if (c := self.hops[tile][end]) is not None and c >= value]
                    if exact or len(far) < len(tiles):
                        self.model.add_bool_or([self.on[one][tile].negated(), further.negated(), *far])
                steps.append((value - before, further))
                before = value
            self._steps[key] = steps
        return sum(height * further for height, further in self._steps[key])

    def extract_tiles(self, value: Value) -> list[int]:
        """The tile of each instruction in a solution."""
        place = [next(tile for tile, literal in enumerate(row) if value(literal)) for row in self.on]
        return [place[group] for group in self.structure.group]

    def hint_places(self, plan: Plan) -> None:
        """Give the tiles of a valid plan as an incomplete hint."""
        cpsat_runner.add_hint(self.model, self.place_values(self.mapped_tiles(plan), plan), complete=False)

    def mapped_tiles(self, plan: Plan) -> list[int]:
        """The tiles of a plan, mapped by a symmetry of the machine such that they satisfy the model's symmetry breaking."""
        if not self.structure.count:
            return []
        twin = self._least[plan.tiles[self.structure.members[self.anchor][0]]]
        return [twin[tile] for tile in plan.tiles]

    def place_values(self, tiles: Sequence[int], plan: Plan) -> Iterator[tuple[cp_model.IntVar, int]]:
        """The values of the variables of tiles, for tiles of a plan from :meth:`mapped_tiles`."""
        members = self.structure.members if tiles else []
        for group, inside in enumerate(members):
            for tile, literal in enumerate(self.on[group]):
                yield literal, tiles[inside[0]] == tile
        chosen = set(plan.starts)
        for number, row in self._starts.items():
            if row is not self.tile(number):
                for tile, literal in enumerate(row):
                    yield literal, number in chosen and tile == tiles[number]
        for (one, two), steps in self._steps.items():
            hops = self.hops[tiles[members[one][0]]][tiles[members[two][0]]]
            total = 0
            for height, further in steps:
                total += height
                yield further, hops is not None and hops >= total


def longest_way(structure: Structure) -> int:
    """The largest transport time of a value in clocks, over links or over the asynchronous fabric."""
    sent = (precedence.clocks for precedence in structure.precedences if precedence.clocks is not None)
    return max([farthest(structure.problem), *sent])


class LeastIIModel(PlaceModel):
    """A model that minimizes the II subject to the constraints of tiles and recurrences; slots are left out.

    Its optimum is a lower bound on the II of every plan. If :meth:`extract` can build a valid plan from an optimal solution,
    the optimum is the least II.
    """

    def __init__(self, structure: Structure, least: int, most: int):
        model = cp_model.CpModel()
        self.ii = model.new_int_var(least, most, "II")
        super().__init__(structure, self.ii, model, COMPLETE)
        problem = structure.problem
        hops = longest_way(structure)
        # Times are at most the length of a longest path without repeated instructions.
        last = (max(problem.latencies, default=0) + hops) * max(len(structure.recurrent) - 1, 0)
        self.time = {number: model.new_int_var(0, last, f"time {number}") for number in structure.recurrent}
        component = structure.component
        for edge in structure.precedences:
            if edge.source != edge.target and component[edge.source] == component[edge.target]:
                delay = self.time[edge.target] - self.time[edge.source] + self.ii * edge.distance
                model.add(delay >= problem.latencies[edge.source] + self._clocks(edge))
        model.minimize(self.ii)

    def extract(self, value: Value) -> Plan | None:
        """The plan of a solution.

        Parameters
        ----------
        value
            Returns the value of a variable of the model in the solution.

        Returns
        -------
        Plan or None
            An unverified plan; None if no complete plan can be built from the tiles and times of the solution, for example
            because two instructions would need the same slot, which the model leaves out.
        """
        ii = value(self.ii)
        tiles = self.extract_tiles(value)
        times = {number: value(variable) for number, variable in self.time.items()}
        latency = self.problem.latencies
        # On one tile, no two instructions may be issued in the same slot, and no two may have their results in the same slot.
        for after in (dict.fromkeys(times, 0), {number: latency[number] for number in times}):
            if len({(tiles[number], (time + after[number]) % ii) for number, time in times.items()}) < len(times):
                return None
        scheduled = list_schedule(self.structure, ii, tiles, times)
        return None if scheduled is None else make_plan(self.structure, ii, tiles, scheduled)


#: Number of tiles in a band, by default.
WIDTH = 3


def bands(structure: Structure, width: int = WIDTH) -> list[range] | None:
    """[instructions] tiles of the instruction's band; None if the machine is not a row of tiles, or is too short for bands."""
    machine = structure.problem.machine
    if machine.columns != 1 or machine.tiles <= width:
        return None
    # Number of edges on the longest path to each instruction within one iteration.
    arcs = ((edge.source, edge.target, 1) for edge in structure.problem.edges if edge.distance == 0)
    depth = longest_paths(arcs, [0] * structure.count)
    deepest = max(depth, default=0)
    # The band moves by one tile for each level of depth, or by less if the graph is deeper than the row is long.
    slope = min(1.0, (machine.tiles - width) / max(deepest, 1))
    first = (machine.tiles - width - slope * deepest) / 2
    starts = [int(first + slope * level) for level in depth]
    return [range(start, start + width) for start in starts]
