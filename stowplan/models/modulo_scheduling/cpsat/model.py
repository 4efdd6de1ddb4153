"""Modulo scheduling at one initiation interval, as a CP-SAT model: variables, constraints, objective.

Space and time are apart. Every group of instructions has a tile. Only *timed* instructions have times: with unlimited delays
and single links these need be no more than the instructions on cycles, for all others can wait until a slot is free
(:func:`~stowplan.models.modulo_scheduling.assemble.list_schedule`). Such a model is small, and exact all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from stowplan.models.modulo_scheduling.assemble import list_schedule, make_plan
from stowplan.models.modulo_scheduling.cpsat.links import Links
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.structure import Structure
from stowplan.models.modulo_scheduling.symmetry import representatives, symmetries

Value = Callable[[cp_model.IntVar], int]


@dataclass(frozen=True)
class Relax:
    """Constraints to leave out, to find out which of them is to blame."""

    siblings: bool = False
    starts: bool = False
    reach: bool = False
    recurrences: bool = False


class IntervalModel:
    """A built model.

    Parameters
    ----------
    ii
        Initiation interval.
    timed
        Instructions that get times; all instructions on cycles must be among them, unless ``relax`` leaves them out.
    last_time
        Largest time of a timed instruction.
    links
        Whether to model what values take on their way, one value a link and clock; all instructions must be timed.
    makespan
        (least, largest) makespan, to minimise it; all instructions must be timed. None looks for any plan.
    """

    def __init__(
        self,
        structure: Structure,
        ii: int,
        *,
        timed: Sequence[int],
        last_time: int,
        links: bool = False,
        makespan: tuple[int, int] | None = None,
        relax: Relax = Relax(),
    ):
        self.structure = structure
        self.problem = structure.problem
        self.ii = ii
        self.timed = list(timed)
        self.model = cp_model.CpModel()
        self._relax = relax
        self._last_time = last_time
        self._hops = self.problem.hops
        self._place_variables()
        self._time_variables()
        self._capacity_constraints()
        if not relax.reach:
            self._reach_constraints()
        if not relax.siblings:
            self._sibling_constraints()
        if not relax.starts:
            self._start_constraints()
        self._time_constraints()
        self.links = Links(self) if links else None
        self.makespan: cp_model.IntVar | None = None
        if makespan is not None:
            self._makespan_objective(*makespan)

    # Variables

    def _place_variables(self) -> None:
        """``on[group][tile]``: the group stands there."""
        structure, model = self.structure, self.model
        tiles = range(self.problem.machine.tiles)
        self.renumberings = symmetries(self.problem)
        self._least = representatives(self.renumberings)
        # The group with most neighbours stands for all in breaking symmetry: only on tiles that are least of their kind.
        degree = [0] * len(structure.members)
        for edge in structure.between:
            degree[structure.group[edge.source]] += 1
            degree[structure.group[edge.target]] += 1
        self.anchor = max(range(len(degree)), key=lambda group: degree[group], default=0)
        self.on: list[list[cp_model.IntVar]] = []
        for group, demands in enumerate(structure.demands):
            self.on.append([model.new_bool_var(f"group {group} on tile {tile}") for tile in tiles])
            model.add_exactly_one(self.on[group])
            for tile in tiles:
                elsewhere = bool(demands) and set(demands) != {tile}
                twin = group == self.anchor and self._least[tile][tile] != tile
                if elsewhere or twin:
                    model.add(self.on[group][tile] == 0)

    def tile(self, number: int) -> list[cp_model.IntVar]:
        """Literals of an instruction's tiles."""
        return self.on[self.structure.group[number]]

    def _time_variables(self) -> None:
        """``at[number][tile][slot]``, ``slot[number][slot]`` and ``round``: time = ii · round + slot."""
        model, ii = self.model, self.ii
        self.at: dict[int, list[list[cp_model.IntVar]]] = {}
        self.slot: dict[int, list[cp_model.IntVar]] = {}
        self.round: dict[int, cp_model.IntVar] = {}
        self.time: dict[int, Any] = {}
        for number in self.timed:
            on = self.tile(number)
            self.slot[number] = [model.new_bool_var(f"instruction {number} in slot {slot}") for slot in range(ii)]
            model.add_exactly_one(self.slot[number])
            if ii == 1:
                self.at[number] = [[literal] for literal in on]
            else:
                self.at[number] = [
                    [model.new_bool_var(f"instruction {number} on {tile} in {slot}") for slot in range(ii)]
                    for tile in range(len(on))
                ]
                for tile, literal in enumerate(on):
                    model.add(sum(self.at[number][tile]) == literal)
                for slot in range(ii):
                    model.add(sum(row[slot] for row in self.at[number]) == self.slot[number][slot])
            self.round[number] = model.new_int_var(0, self._last_time // ii, f"round {number}")
            slot_value = sum(slot * literal for slot, literal in enumerate(self.slot[number]) if slot)
            self.time[number] = ii * self.round[number] + slot_value
            model.add(self.time[number] <= self._last_time)
        for pin in self.problem.pins:
            number = self.problem.number[pin.instruction]
            if number in self.time:
                if pin.time is not None:
                    model.add(self.time[number] == pin.time)
                if pin.slot is not None:
                    model.add_bool_and(self.slot[number][pin.slot]) if pin.slot < ii else model.add_bool_or([])

    # Constraints

    def _capacity_constraints(self) -> None:
        machine, members = self.problem.machine, self.structure.members
        room = machine.memories * machine.memory_depth
        words = self.structure.words
        for tile in range(machine.tiles):
            load = sum(len(each) * self.on[group][tile] for group, each in enumerate(members))
            self.model.add(load <= min(self.ii, machine.instruction_depth))
            if sum(words) > room:
                self.model.add(sum(words[group] * self.on[group][tile] for group in range(len(members))) <= room)
            if self.ii > 1:
                for slot in range(self.ii):
                    self.model.add_at_most_one(self.at[number][tile][slot] for number in self.timed)

    def _reach_constraints(self) -> None:
        """Producer and consumer within reach: each tile of one implies the tiles around it for the other."""
        group = self.structure.group
        tiles = range(self.problem.machine.tiles)
        into = [[one for one in tiles if self._hops[one][two] is not None] for two in tiles]
        out = [[two for two in tiles if self._hops[one][two] is not None] for one in tiles]
        for one, two in sorted({(group[e.source], group[e.target]) for e in self.structure.between}):
            if one == two:
                continue
            for tile in tiles:
                if len(out[tile]) < len(tiles):
                    self.model.add_bool_or([self.on[one][tile].negated(), *(self.on[two][end] for end in out[tile])])
                if len(into[tile]) < len(tiles):
                    self.model.add_bool_or([self.on[two][tile].negated(), *(self.on[one][end] for end in into[tile])])

    def _sibling_constraints(self) -> None:
        for family in self.structure.families:
            for tile in range(self.problem.machine.tiles):
                self.model.add_at_most_one(self.tile(number)[tile] for number in family)

    def _start_constraints(self) -> None:
        """One start of each set of choices, on different tiles."""
        choices = self.structure.start_choices
        self._starts: dict[int, list[cp_model.IntVar]] = {}
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

    def _time_constraints(self) -> None:
        """Values arrive in time, and within the longest delay."""
        latency, limit = self.problem.machine.latency, self.problem.rules.max_delay
        self._steps: dict[tuple[int, int], list[tuple[int, cp_model.IntVar]]] = {}
        component, every = self.structure.component, len(self.timed) == self.structure.count
        for edge in self.problem.edges:
            if edge.source not in self.time or edge.target not in self.time or self._relax.recurrences:
                continue
            # Where some instructions have no time, whole cycles move until their inputs are there.
            if not every and component[edge.source] != component[edge.target]:
                continue
            if edge.source == edge.target:
                waits = self.ii * edge.distance - latency
                if waits < 0 or (limit is not None and waits > limit):
                    self.model.add_bool_or([])
                continue
            hops = self._hops_between(self.structure.group[edge.source], self.structure.group[edge.target])
            delay = self.time[edge.target] - self.time[edge.source] + self.ii * edge.distance - latency - hops
            if limit is None:
                self.model.add(delay >= 0)
            else:
                self.model.add_linear_constraint(delay, 0, limit)

    def _hops_between(self, one: int, two: int) -> Any:
        """Clocks between the tiles of two groups, as a sum of steps: a literal for each number of clocks to reach."""
        if one == two:
            return 0
        key = (one, two)
        if key not in self._steps:
            tiles = range(self.problem.machine.tiles)
            values = sorted({clocks for row in self._hops for clocks in row if clocks is not None})
            exact = self.problem.rules.max_delay is not None
            steps = []
            before = values[0]
            for value in values[1:]:
                further = self.model.new_bool_var(f"groups {one} and {two} are {value} clocks apart or more")
                for tile in tiles:
                    near = [self.on[two][end] for end in tiles if (c := self._hops[tile][end]) is not None and c < value]
                    self.model.add_bool_or([self.on[one][tile].negated(), further, *near])
                    far = [self.on[two][end] for end in tiles if (c := self._hops[tile][end]) is not None and c >= value]
                    if exact or len(far) < len(tiles):
                        self.model.add_bool_or([self.on[one][tile].negated(), further.negated(), *far])
                steps.append((value - before, further))
                before = value
            self._steps[key] = steps
        return sum(height * further for height, further in self._steps[key])

    # Objective

    def _makespan_objective(self, least: int, most: int) -> None:
        self.makespan = self.model.new_int_var(least, most, "makespan")
        for number in self.timed:
            self.model.add(self.makespan >= self.time[number] + self.problem.machine.latency)
        self.model.minimize(self.makespan)

    # Hints and results

    def add_hint(self, plan: Plan, *, complete: bool = True) -> None:
        """Start the solver from a plan; ``complete`` where it is valid at this interval, otherwise only its tiles count."""
        model, structure = self.model, self.structure
        model.clear_hints()  # type: ignore[no-untyped-call]
        if not structure.count:
            return
        twin = self._least[plan.tiles[structure.members[self.anchor][0]]]
        tiles = [twin[tile] for tile in plan.tiles]
        for group, members in enumerate(structure.members):
            for tile, literal in enumerate(self.on[group]):
                model.add_hint(literal, tiles[members[0]] == tile)
        if not complete:
            return
        for number in self.timed:
            time = plan.times[number]
            model.add_hint(self.round[number], time // self.ii)
            for slot, literal in enumerate(self.slot[number]):
                model.add_hint(literal, slot == time % self.ii)
            if self.ii > 1:
                for tile, row in enumerate(self.at[number]):
                    for slot, literal in enumerate(row):
                        model.add_hint(literal, tile == tiles[number] and slot == time % self.ii)
        chosen = set(plan.starts)
        for number, row in self._starts.items():
            if row is not self.tile(number):
                for tile, literal in enumerate(row):
                    model.add_hint(literal, number in chosen and tile == tiles[number])
        for (one, two), steps in self._steps.items():
            hops = self._hops[tiles[structure.members[one][0]]][tiles[structure.members[two][0]]]
            total = 0
            for height, further in steps:
                total += height
                model.add_hint(further, hops is not None and hops >= total)
        if self.makespan is not None:
            model.add_hint(self.makespan, plan.makespan)
        if self.links is not None:
            self.links.add_hint(plan)

    def extract(self, value: Value) -> Plan | None:
        """Plan of a solution; times that the model left out by list scheduling."""
        structure = self.structure
        place = [next(tile for tile, literal in enumerate(row) if value(literal)) for row in self.on]
        tiles = [place[group] for group in structure.group]
        known = {number: self._time_of(number, value) for number in self.timed}
        times = [known[n] for n in range(structure.count)] if len(known) == structure.count else None
        if times is None:
            times = list_schedule(structure, self.ii, tiles, known)
        routes = None if self.links is None else self.links.routes(tiles, value)
        return make_plan(structure, self.ii, tiles, times, routes)

    def _time_of(self, number: int, value: Value) -> int:
        slot = next(slot for slot, literal in enumerate(self.slot[number]) if value(literal))
        return self.ii * value(self.round[number]) + slot


def size(structure: Structure, ii: int, timed: int) -> int:
    """Number of literals of a model, roughly."""
    return structure.problem.machine.tiles * (len(structure.members) + timed * ii)


def latest_time(structure: Structure, ii: int, timed: Sequence[int]) -> int:
    """A time that need not be passed: if there is a plan at an interval, there is one whose timed instructions are no later.

    With tiles and slots given, times are rounds: differences bounded from both sides. Their least solution is a longest path,
    with no instruction twice, whose steps are at most one value's way or, backwards, the distance of an edge. Pins hold one
    instruction; from it paths lead both ways.
    """
    problem = structure.problem
    hops = max((clocks for row in problem.hops for clocks in row if clocks is not None), default=0)
    forward = -(-(problem.machine.latency + hops + ii - 1) // ii)
    backward = 0 if problem.rules.max_delay is None else max((edge.distance for edge in problem.edges), default=0) + 1
    pinned = max((pin.time or 0 for pin in problem.pins), default=0)
    step = max(forward, backward)
    inside = set(timed)
    sizes: dict[int, int] = defaultdict(int)
    bound_together = structure.flow if len(inside) == structure.count else structure.component
    for number in inside:
        sizes[bound_together[number]] += 1
    longest = max(sizes.values(), default=1)
    return pinned + ii * (1 + step * (longest - 1)) + ii - 1
