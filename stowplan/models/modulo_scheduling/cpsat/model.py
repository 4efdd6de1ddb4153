"""Modulo scheduling at one initiation interval, as a CP-SAT model: variables, constraints, objective.

Space and time are apart. Every group of instructions has a tile. With unlimited delays and single links only the instructions
on cycles need times, for all others can wait until a slot is free
(:func:`~stowplan.models.modulo_scheduling.assemble.list_schedule`). Where slots decide more than that
(:attr:`Structure.slotted`), the others concerned have a slot and no round. Such a model is small, and exact all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Value
from stowplan.models.modulo_scheduling.assemble import list_schedule, make_plan
from stowplan.models.modulo_scheduling.bounds import longest_span, sharing_tiles, time_bounds
from stowplan.models.modulo_scheduling.cpsat.places import COMPLETE, PlaceModel, Relax, longest_way
from stowplan.models.modulo_scheduling.cpsat.resources import Links, Ports, Words
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.structure import Structure

#: IIs up to this have a literal for each instruction, tile and slot where all instructions are timed; beyond it, and
#: where few are, tile and slot are one number for each, all different.
MOST_LITERAL_SLOTS = 4


class ModuloModel(PlaceModel):
    """A built model.

    Parameters
    ----------
    ii
        Initiation interval.
    last_time
        Largest time.
    whole
        Whether all instructions have times and all values arrive in time. Otherwise slots that matter, and cycles.
    links
        Whether to model what values take on their way, one value a link and clock; a whole model only.
    makespan
        (least, largest) makespan, to minimise it; a whole model only. None looks for any plan.
    relax
        What to leave out; what is found then is no plan.
    windows
        Tiles that each instruction may stand on; None for all.
    """

    def __init__(
        self,
        structure: Structure,
        ii: int,
        *,
        last_time: int,
        whole: bool = False,
        links: bool = False,
        makespan: tuple[int, int] | None = None,
        relax: Relax = COMPLETE,
        windows: Sequence[range] | None = None,
    ):
        super().__init__(structure, ii, cp_model.CpModel(), relax, windows)
        self.ii = ii
        self.whole = whole
        self.timed = list(range(structure.count)) if whole else structure.slotted
        self._has_rounds = set(range(structure.count) if whole else structure.recurrent)
        self._last_time = last_time
        self._has_literals = links or (ii <= MOST_LITERAL_SLOTS and len(self.timed) == structure.count)
        # What follows from all constraints together need not hold where some are left out.
        self._bounds = time_bounds(structure, ii, whole=whole) if relax == COMPLETE else []
        if any(bound.is_refuted for bound in self._bounds):
            self.model.add_bool_or([])
            self._bounds = []
        #: Whether sets of instructions whose times are bounded against each other may be put anywhere, by whole rounds.
        limited = self.problem.rules.max_delay is not None and self.problem.is_synchronous
        self._may_move = not whole or (limited and makespan is None)
        self._time_variables()
        self._bound_constraints()
        self._slot_constraints()
        self._value_constraints()
        self.ports = Ports(self, ii, self.slot)
        self.words = Words(self, ii, self.time if whole else None, last_time)
        self.links = Links(self, ii, self.at) if links else None
        self.makespan: cp_model.IntVar | None = None
        if makespan is not None:
            self._makespan_objective(*makespan)

    def _time_variables(self) -> None:
        """time = ii · round + slot."""
        model, ii = self.model, self.ii
        self.slot: dict[int, cp_model.IntVar] = {}
        self.round: dict[int, cp_model.IntVar] = {}
        self.time: dict[int, Any] = {}
        spans = self._spans()
        for number in self.timed:
            least, most = spans.get(number, (0, self._last_time if number in self._has_rounds else ii - 1))
            self.slot[number] = model.new_int_var(0, ii - 1, f"slot {number}")
            self.round[number] = model.new_int_var(least // ii, most // ii, f"round {number}")
            self.time[number] = ii * self.round[number] + self.slot[number]
            model.add_linear_constraint(self.time[number], least, most)
        for pin in self.problem.pins:
            number = self.problem.number[pin.instruction]
            if number in self._has_rounds:
                if pin.time is not None:
                    model.add(self.time[number] == pin.time)
                if pin.slot is not None:
                    model.add(self.slot[number] == pin.slot)

    def _spans(self) -> dict[int, tuple[int, int]]:
        """Least and most time of instructions that may be moved by whole rounds, all that are bounded by them too.

        The anchor of each set is in a given round; and as all slots may be turned by as much, that of the first, the largest,
        is in slot 0. What has a pinned time, or slot, may not be moved, or turned.
        """
        spans: dict[int, tuple[int, int]] = {}
        timed = {self.problem.number[pin.instruction] for pin in self.problem.pins if pin.time is not None}
        slots = 1 if self._may_turn else self.ii
        for bound in self._bounds if self._may_move else []:
            if timed.isdisjoint(bound.members):
                windows = bound.windows(bound.anchor, self._last_time)
                first = self.ii * -(min(low for low, _ in windows) // self.ii)
                spans |= {
                    number: (first + low, first + high + slots - 1)
                    for number, (low, high) in zip(bound.members, windows, strict=True)
                }
                slots = self.ii
        return spans

    @property
    def _may_turn(self) -> bool:
        """Whether all slots may be turned by as much."""
        return all(pin.time is None and pin.slot is None for pin in self.problem.pins)

    def _bound_constraints(self) -> None:
        """What is known beforehand (:mod:`stowplan.models.modulo_scheduling.bounds`)."""
        model = self.model
        for bound in self._bounds:
            anchor = self.time[bound.members[bound.anchor]]
            for number, (low, high) in zip(bound.members, bound.windows(bound.anchor, self._last_time), strict=True):
                if number != bound.members[bound.anchor]:
                    model.add_linear_constraint(self.time[number] - anchor, low, high)
        for together in sharing_tiles(self.structure, self.ii) if self._bounds else []:
            for number in together[1:]:
                for one, two in zip(self.tile(together[0]), self.tile(number), strict=True):
                    model.add(one == two)

    def _slot_constraints(self) -> None:
        """No two timed instructions in one slot of a tile, nor their results; ``at[number][tile][slot]`` where literals are."""
        model, ii, latency = self.model, self.ii, self.problem.latencies
        apart = not self.structure.has_one_latency and ii > 1
        self.at: dict[int, list[list[cp_model.IntVar]]] = {}
        self._results: dict[int, cp_model.IntVar] = {}
        self._turns: dict[int, cp_model.IntVar] = {}
        if not self._has_literals:
            places = {number: sum(tile * on for tile, on in enumerate(self.tile(number)) if tile) for number in self.timed}
            model.add_all_different(ii * places[number] + self.slot[number] for number in self.timed)
            if apart:
                model.add_all_different(ii * places[number] + self._done(number) for number in self.timed)
            return
        for number in self.timed:
            on = self.tile(number)
            if ii == 1:
                self.at[number] = [[literal] for literal in on]
                continue
            self.at[number] = [
                [model.new_bool_var(f"instruction {number} on {tile} in {slot}") for slot in range(ii)]
                for tile in range(len(on))
            ]
            for tile, literal in enumerate(on):
                model.add(sum(self.at[number][tile]) == literal)
            model.add(self.slot[number] == sum(slot * at for row in self.at[number] for slot, at in enumerate(row) if slot))
        for tile in range(self.problem.machine.tiles):
            for slot in range(ii):
                model.add_at_most_one(self.at[number][tile][slot] for number in self.timed)
                if apart:
                    model.add_at_most_one(self.at[number][tile][(slot - latency[number]) % ii] for number in self.timed)

    def _done(self, number: int) -> cp_model.IntVar:
        """Slot in which the result of a timed instruction is there."""
        if number not in self._results:
            after = self.problem.latencies[number] % self.ii
            turns = self.model.new_bool_var(f"result {number} in the next round")
            done = self._results[number] = self.model.new_int_var(0, self.ii - 1, f"result {number}")
            self.model.add(done == self.slot[number] + after - self.ii * turns)
            self._turns[number] = turns
        return self._results[number]

    def _value_constraints(self) -> None:
        limit, component = self.problem.rules.max_delay, self.structure.component
        for edge in self.structure.precedences:
            if self.relax.recurrences:
                continue
            if edge.source == edge.target:
                waits = self.ii * edge.distance - self.problem.latencies[edge.source]
                waits -= edge.clocks or 0
                if waits < 0 or (limit is not None and edge.clocks is None and waits > limit):
                    self.model.add_bool_or([])
            # Unless all have times, whole cycles move until their inputs are there.
            elif self.whole or component[edge.source] == component[edge.target]:
                self.value_constraint(edge, self.time[edge.source], self.time[edge.target])

    def _makespan_objective(self, least: int, most: int) -> None:
        self.makespan = self.model.new_int_var(least, most, "makespan")
        for number in self.timed:
            self.model.add(self.makespan >= self.time[number] + self.problem.latencies[number])
        self.model.minimize(self.makespan)

    def add_hint(self, plan: Plan, *, complete: bool = True) -> None:
        """Start the solver from a plan; ``complete`` for a whole model and a plan of its II, otherwise only tiles count."""
        if not complete:
            self.hint_places(plan)
            return
        tiles = self.turned(plan)
        values = [*self.place_values(tiles, plan)]
        for number in self.timed:
            time = plan.times[number]
            values += [(self.round[number], time // self.ii), (self.slot[number], time % self.ii)]
            if self.ii > 1:
                for tile, row in enumerate(self.at.get(number, [])):
                    values += [(literal, tile == tiles[number] and slot == time % self.ii) for slot, literal in enumerate(row)]
        for number, done in self._results.items():
            turns, slot = divmod(plan.times[number] % self.ii + self.problem.latencies[number] % self.ii, self.ii)
            values += [(done, slot), (self._turns[number], turns)]
        values += [*self.ports.values(tiles, plan), *self.words.values(tiles, plan)]
        if self.makespan is not None:
            values.append((self.makespan, plan.makespan))
        if self.links is not None:
            values += self.links.values(plan)
        cpsat_runner.add_hint(self.model, values)

    def extract(self, value: Value) -> Plan | None:
        """Plan of a solution; times that the model left out by list scheduling.

        Parameters
        ----------
        value
            Gives the value of a variable of the model.

        Returns
        -------
        Plan or None
            None where starts would share a tile, or what ``relax`` left out is missed.
        """
        structure = self.structure
        tiles = self.extract_tiles(value)
        known = {number: self.ii * value(self.round[number]) + value(self.slot[number]) for number in self.timed}
        times = self._first_rounds(known) if self.whole else list_schedule(structure, self.ii, tiles, known)
        if times is None:
            return None
        routes = None if self.links is None else self.links.routes(tiles, value)
        return make_plan(structure, self.ii, tiles, times, routes)

    def _first_rounds(self, known: Mapping[int, int]) -> list[int]:
        """Times of a whole model, by number, as early as what was moved can be."""
        times = [known[number] for number in self.timed]
        if not self._may_move:
            return times
        timed = {self.structure.flow[self.problem.number[pin.instruction]] for pin in self.problem.pins if pin.time is not None}
        first: dict[int, int] = {}
        for flow, time in zip(self.structure.flow, times, strict=True):
            first[flow] = min(time, first.get(flow, time))
        late = {flow: 0 if flow in timed else self.ii * (time // self.ii) for flow, time in first.items()}
        times = [time - late[flow] for flow, time in zip(self.structure.flow, times, strict=True)]
        early = min(times, default=0) if self._may_turn else 0
        return [time - early for time in times]


def size(structure: Structure, ii: int, *, links: bool) -> int:
    """Number of literals of a model in which all instructions are timed, roughly."""
    machine = structure.problem.machine
    slots = ii if links or ii <= MOST_LITERAL_SLOTS else 1
    return structure.count * slots * machine.tiles * (1 + (1 + len(machine.links)) * links)


def latest_time(structure: Structure, ii: int, timed: Sequence[int]) -> int:
    """A time that need not be passed: if there is a plan at an II, there is one whose timed instructions are no later.

    With tiles and slots given, times are rounds: differences bounded from both sides. Their least solution is a longest path,
    with no instruction twice. Its steps are at most one value's way or, backwards, the distance of an edge (where delays are
    limited, or the words of values that are sent to tiles). Pins hold one instruction; from it paths lead both ways.

    With limited delays all that values link lies within a span; what they link moves by whole IIs, to begin within the first.
    """
    problem = structure.problem
    if len(timed) == structure.count and not any(pin.time is not None for pin in problem.pins):
        span = longest_span(structure, ii)
        if span is not None:
            return span + ii - 1
    hops = longest_way(structure)
    forward = -(-(max(problem.latencies, default=0) + hops + ii - 1) // ii)
    is_bounded = problem.rules.max_delay is not None or structure.buffers
    backward = 0 if not is_bounded else max((edge.distance for edge in problem.edges), default=0) + 1
    pinned = max((pin.time or 0 for pin in problem.pins), default=0)
    step = max(forward, backward)
    inside = set(timed)
    sizes: dict[int, int] = defaultdict(int)
    bound_together = structure.linked if len(inside) == structure.count else structure.component
    for number in inside:
        sizes[bound_together[number]] += 1
    longest = max(sizes.values(), default=1)
    return pinned + ii * (1 + step * (longest - 1)) + ii - 1
