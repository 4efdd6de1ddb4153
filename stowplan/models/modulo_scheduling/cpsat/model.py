"""The CP-SAT model of modulo scheduling at one initiation interval (II): variables, constraints, objective.

Every group of instructions that must share a tile has variables for its tile. The time of an instruction is II · round + slot,
but not every instruction needs a time in the model. The *delay* of a value is the time that it waits at its consumer. If delays
are not limited and every value takes at most one link, only instructions on recurrences need times, since all others can wait
until a slot of their tile is free (:func:`~stowplan.models.modulo_scheduling.assemble.list_schedule`). Some further
instructions may need a slot, but no round (:attr:`Structure.slotted`). Such a *partial* model is small and still exact. A
*whole* model has the times of all instructions; it is needed for limited delays, for routes over several links, and for the
makespan.
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
from stowplan.models.modulo_scheduling.cpsat.resources import Links, Ports, Waits, Words
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.structure import Structure

#: For IIs up to this number, a model with the times of all instructions has a literal for each instruction, tile and slot. For
#: larger IIs, only models of links or registers have these literals. All other models combine tile and slot of each instruction
#: into one number, and require that all these numbers differ.
MOST_LITERAL_SLOTS = 4


class ModuloModel(PlaceModel):
    """The CP-SAT model of a problem at one II.

    Parameters
    ----------
    ii
        Initiation interval.
    last_time
        Largest time in clocks.
    whole
        Whether all instructions have times. Otherwise only those on recurrences have times, and some others have slots.
    links
        Whether to model the routes of values over links; only for a whole model.
    makespan
        (least, largest) makespan, which is then minimized; only for a whole model. With None, nothing is minimized.
    relax
        Constraints to leave out. A solution is then not a valid plan.
    windows
        Tiles that each instruction may be on; None for all tiles.
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
        has_registers = bool(whole and self.problem.machine.registers)
        self._has_literals = links or has_registers or (ii <= MOST_LITERAL_SLOTS and len(self.timed) == structure.count)
        # These bounds follow from all constraints together, so they need not hold if some are left out.
        self._bounds = time_bounds(structure, ii, whole=whole) if relax == COMPLETE else []
        if any(bound.is_refuted for bound in self._bounds):
            self.model.add_bool_or([])
            self._bounds = []
        #: Whether sets of instructions whose times are bounded relative to each other may be shifted by whole rounds.
        limited = self.problem.limits_waits and self.problem.is_synchronous
        self._may_move = not whole or (limited and makespan is None)
        self._time_variables()
        self._bound_constraints()
        self._slot_constraints()
        self._value_constraints()
        self.ports = Ports(self, ii, self.slot)
        self.words = Words(self, ii, self.time if whole else None, last_time)
        self.links = Links(self, ii, self.at) if links else None
        self.waits = Waits(self, ii, self.at) if has_registers else None
        self.makespan: cp_model.IntVar | None = None
        if makespan is not None:
            self._makespan_objective(*makespan)

    def _time_variables(self) -> None:
        """Add slots and rounds of the instructions that have times in the model, with time = II · round + slot."""
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
        """The smallest and the largest time of instructions in sets that may be shifted by whole rounds.

        In each set, one instruction, the anchor, is fixed to one round. All slots may also be rotated together, so the anchor
        of the first set, which is the largest, is fixed to slot 0. Sets with pinned times are not shifted, and if any time or
        slot is pinned, nothing is rotated.
        """
        spans: dict[int, tuple[int, int]] = {}
        timed = {self.problem.number[pin.instruction] for pin in self.problem.pins if pin.time is not None}
        slots = 1 if self._may_rotate else self.ii
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
    def _may_rotate(self) -> bool:
        """Whether all slots may be rotated together: no time and no slot is pinned."""
        return all(pin.time is None and pin.slot is None for pin in self.problem.pins)

    def _bound_constraints(self) -> None:
        """Add bounds on differences of times, and sets that share a tile (:mod:`stowplan.models.modulo_scheduling.bounds`)."""
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
        """Require that no two instructions with times, and no two of their results, share a slot of a tile.

        If the model has literals for slots, they are ``at[number][tile][slot]``.
        """
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
        """The variable of the slot in which an instruction with a time has its result."""
        if number not in self._results:
            after = self.problem.latencies[number] % self.ii
            turns = self.model.new_bool_var(f"result {number} in the next round")
            done = self._results[number] = self.model.new_int_var(0, self.ii - 1, f"result {number}")
            self.model.add(done == self.slot[number] + after - self.ii * turns)
            self._turns[number] = turns
        return self._results[number]

    def _value_constraints(self) -> None:
        """Require that values arrive in time, by differences of times."""
        limit, component = self.problem.longest_wait(self.ii), self.structure.component
        for edge in self.structure.precedences:
            if self.relax.recurrences:
                continue
            if edge.source == edge.target:
                waits = self.ii * edge.distance - self.problem.latencies[edge.source]
                waits -= edge.clocks or 0
                if waits < 0 or (limit is not None and edge.clocks is None and waits > limit):
                    self.model.add_bool_or([])
            # In a partial model, list scheduling later shifts each recurrence until its inputs have arrived.
            elif self.whole or component[edge.source] == component[edge.target]:
                self.value_constraint(edge, self.time[edge.source], self.time[edge.target])

    def _makespan_objective(self, least: int, most: int) -> None:
        """Add the makespan, between ``least`` and ``most`` clocks, as objective."""
        self.makespan = self.model.new_int_var(least, most, "makespan")
        for number in self.timed:
            self.model.add(self.makespan >= self.time[number] + self.problem.latencies[number])
        self.model.minimize(self.makespan)

    def add_hint(self, plan: Plan, *, complete: bool = True) -> None:
        """Let the solver start from a plan.

        With ``complete``, which needs a whole model and a plan with its II, every variable gets a value; otherwise only the
        tiles are hinted.
        """
        if not complete:
            self.hint_places(plan)
            return
        tiles = self.mapped_tiles(plan)
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
        if self.waits is not None:
            values += self.waits.values(tiles, plan)
        cpsat_runner.add_hint(self.model, values)

    def extract(self, value: Value) -> Plan | None:
        """The plan of a solution. Times that the model leaves out are found by list scheduling.

        Parameters
        ----------
        value
            Returns the value of a variable of the model in the solution.

        Returns
        -------
        Plan or None
            An unverified plan; None if no complete plan can be built from the tiles and times of the solution: an instruction
            finds no free slot; memory requests find no port; values do not fit into memory or registers; or two *starts*,
            instructions that the hardware starts at a set time, would share a tile.
        """
        structure = self.structure
        tiles = self.extract_tiles(value)
        known_times = {number: self.ii * value(self.round[number]) + value(self.slot[number]) for number in self.timed}
        times = self._first_rounds(known_times) if self.whole else list_schedule(structure, self.ii, tiles, known_times)
        if times is None:
            return None
        routes = None if self.links is None else self.links.routes(tiles, value)
        return make_plan(structure, self.ii, tiles, times, routes)

    def _first_rounds(self, known_times: Mapping[int, int]) -> list[int]:
        """[instructions] times of a whole model, with each *flow* shifted to the first possible round.

        A flow is a set of instructions that values over links connect.
        """
        times = [known_times[number] for number in self.timed]
        if not self._may_move:
            return times
        timed = {self.structure.flow[self.problem.number[pin.instruction]] for pin in self.problem.pins if pin.time is not None}
        first: dict[int, int] = {}
        for flow, time in zip(self.structure.flow, times, strict=True):
            first[flow] = min(time, first.get(flow, time))
        late = {flow: 0 if flow in timed else self.ii * (time // self.ii) for flow, time in first.items()}
        times = [time - late[flow] for flow, time in zip(self.structure.flow, times, strict=True)]
        early = min(times, default=0) if self._may_rotate else 0
        return [time - early for time in times]


def size(structure: Structure, ii: int, *, links: bool) -> int:
    """The approximate number of literals of a model in which all instructions have times."""
    machine = structure.problem.machine
    has_registers = bool(machine.registers)
    slots = ii if links or has_registers or ii <= MOST_LITERAL_SLOTS else 1
    return structure.count * slots * machine.tiles * (1 + has_registers + (1 + len(machine.links)) * links)


def latest_time(structure: Structure, ii: int, timed: Sequence[int]) -> int:
    """A limit on times: if there is a plan at an II, there is one in which no instruction of ``timed`` is later than this.

    For fixed tiles and slots, the rounds are the unknowns, and their differences are bounded. The smallest solution is given by
    longest paths without repeated instructions. A step of such a path is at most the latency and transport of one value. If
    delays are limited or buffers limit the words of memory, a step may also lead from a consumer to its producer. It is then at
    most the distance of an edge plus one round. A pin fixes one instruction, from which paths lead in both directions.

    With limited delays, connected instructions are within a bounded number of clocks of each other. All of them can be shifted
    by multiples of the II until the first one is within the first II.
    """
    problem = structure.problem
    if len(timed) == structure.count and not any(pin.time is not None for pin in problem.pins):
        span = longest_span(structure, ii)
        if span is not None:
            return span + ii - 1
    hops = longest_way(structure)
    forward = -(-(max(problem.latencies, default=0) + hops + ii - 1) // ii)
    is_bounded = problem.limits_waits or structure.buffers
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
