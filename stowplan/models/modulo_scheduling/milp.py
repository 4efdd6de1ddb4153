"""Modulo scheduling at one initiation interval (II) as a MILP, for comparison with the CP-SAT model.

It is a time-indexed formulation in the manner of Eichenberger and Davidson (1997). It has a binary column for each instruction,
tile and slot, and an integer column for the *round* of each instruction, where time = II · round + slot. Problems in which
values may pass through tiles are not supported. Registers, in which values wait for their consumers, are not modelled, so for
machines with registers it is a relaxation. Groups, siblings, flows, starts and buffers are defined in
:mod:`stowplan.models.modulo_scheduling.structure`. The *delay* of a value is the time that it waits for its consumer, and a
*slot* is a clock modulo the II. The *makespan* is the number of clocks from 0 to the last result of one iteration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from stowplan.errors import UsageError
from stowplan.models.mip import solve as mip
from stowplan.models.mip.matrix import INFINITE, FloatArray, Program, proven
from stowplan.models.modulo_scheduling.assemble import make_plan
from stowplan.models.modulo_scheduling.bounds import critical_path, find_obstacle, unrefuted_iis
from stowplan.models.modulo_scheduling.cpsat.model import latest_time
from stowplan.models.modulo_scheduling.plan import Plan, encode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure
from stowplan.models.outcome import Outcome

Terms = dict[int, float]
"""A linear expression: coefficient by column."""


class _Program(Program):
    """A program with integer columns, and shortcuts for common rows."""

    def row(self, terms: Terms, lower: float = -INFINITE, upper: float = INFINITE) -> None:
        """Add the row ``lower <= terms <= upper``."""
        self.add_row(terms.items(), lower, upper)

    def one_of(self, columns: Sequence[int], least: int = 1) -> None:
        """Add a row that requires at most one of the columns, and at least ``least``, to be 1."""
        self.row(dict.fromkeys(columns, 1.0), least, 1.0)

    def implies(self, column: int, *others: int) -> None:
        """Add a row that requires at least one of the other columns to be 1 if ``column`` is 1."""
        self.row({column: -1.0, **dict.fromkeys(others, 1.0)}, lower=0.0)


class MilpModel:
    """The MILP of a problem at one II. ``model`` is the program as arrays; its objective is the makespan.

    ``last_time`` is the largest time of an instruction in clocks. Raises UsageError if values may pass through tiles.
    """

    def __init__(self, structure: Structure, ii: int, last_time: int):
        self.structure, self.problem, self.ii = structure, structure.problem, ii
        if self.problem.rules.pass_through:
            raise UsageError("values that pass through tiles are for the CP-SAT model only")
        self._program = _Program()
        self._tiles = range(self.problem.machine.tiles)
        self._hops = self.problem.hops
        self._last = last_time
        self._places()
        self._times()
        self._space()
        self._starts()
        self._delays()
        self._ports()
        self._words(last_time)
        latest = last_time + max(self.problem.latencies, default=0)
        self.makespan = self._program.column(latest, lower=critical_path(self.problem, structure), cost=1)
        for terms, latency in zip(self.time, self.problem.latencies, strict=True):
            row = {self.makespan: 1.0, **{column: -value for column, value in terms.items()}}
            self._program.row(row, lower=latency)
        self.model = self._program.model(self.problem.name or "modulo scheduling")

    def _places(self) -> None:
        """Add the columns ``on[group][tile]``, which say whether a group of instructions is on a tile."""
        program = self._program
        self.on = []
        for allowed in self.structure.allowed:
            self.on.append([program.column(float(tile in allowed)) for tile in self._tiles])
            program.one_of(self.on[-1])

    def _tile(self, number: int) -> list[int]:
        """The columns of an instruction's tiles, by tile."""
        return self.on[self.structure.group[number]]

    def _times(self) -> None:
        """Add the columns ``at[number][tile][slot]`` and the rounds; the time of each instruction is a linear expression."""
        program, ii = self._program, self.ii
        self.at: list[list[list[int]]] = []
        self.round: list[int] = []
        self.time: list[Terms] = []
        for number in range(self.structure.count):
            at = [[program.column() for _ in range(ii)] for _ in self._tiles]
            for tile, on in enumerate(self._tile(number)):
                program.row({on: -1.0, **dict.fromkeys(at[tile], 1.0)}, 0.0, 0.0)
            rounds = program.column(self._last // ii)
            terms = {column: float(slot) for row in at for slot, column in enumerate(row) if slot}
            terms[rounds] = float(ii)
            program.row(terms, upper=self._last)
            self.at.append(at)
            self.round.append(rounds)
            self.time.append(terms)
        for pin in self.problem.pins:
            number = self.problem.number[pin.instruction]
            if pin.time is not None:
                program.row(self.time[number], pin.time, pin.time)
            if pin.slot is not None:
                # If the slot is II or more, there are no columns. The empty sum cannot be 1, so the row is infeasible.
                columns = [row[pin.slot] for row in self.at[number]] if pin.slot < ii else []
                program.row(dict.fromkeys(columns, 1.0), 1.0, 1.0)

    def _space(self) -> None:
        """Add rows for slots, instruction RAM, memory, siblings, and the reach of links."""
        program, machine, structure = self._program, self.problem.machine, self.structure
        for tile in self._tiles:
            for slot in range(self.ii):
                program.one_of([at[tile][slot] for at in self.at], least=0)
                if not structure.has_one_latency:
                    latencies = self.problem.latencies
                    done = [at[tile][(slot - clocks) % self.ii] for at, clocks in zip(self.at, latencies, strict=True)]
                    program.one_of(done, least=0)
            load = {row[tile]: float(len(members)) for row, members in zip(self.on, structure.members, strict=True)}
            program.row(load, upper=machine.instruction_depth)
            words = {row[tile]: float(size) for row, size in zip(self.on, structure.words, strict=True) if size}
            program.row(words, upper=machine.memories * machine.memory_depth)
            for family in structure.families:
                row: Terms = {}
                for number in family:
                    column = self._tile(number)[tile]
                    row[column] = row.get(column, 0.0) + 1.0
                program.row(row, upper=1.0)
        for one, two in sorted({(structure.group[e.source], structure.group[e.target]) for e in structure.between}):
            for tile in self._tiles if one != two else ():
                program.implies(self.on[one][tile], *(self.on[two][t] for t in self._tiles if self._hops[tile][t] is not None))
                program.implies(self.on[two][tile], *(self.on[one][t] for t in self._tiles if self._hops[t][tile] is not None))

    def _starts(self) -> None:
        """Add columns that choose the starting instruction of each flow; each tile has at most one of them."""
        program = self._program
        choices = self.structure.start_choices
        if len(choices) < 2:
            return
        starts: list[list[int]] = []
        for numbers in choices:
            rows = [[program.column() for _ in self._tiles] for _ in numbers]
            for number, row in zip(numbers, rows, strict=True):
                for column, on in zip(row, self._tile(number), strict=True):
                    program.implies(column, on)
            program.one_of([column for row in rows for column in row])
            starts += rows
        for tile in self._tiles:
            program.one_of([row[tile] for row in starts], least=0)

    def _delays(self) -> None:
        """Add rows that require the delay of every value to be at least 0 and, over links, at most the limit."""
        latency, limit = self.problem.latencies, self.problem.rules.max_delay
        steps: dict[tuple[int, int], Terms] = {}
        for edge in self.structure.precedences:
            row: Terms = {}
            if edge.source != edge.target:
                groups = self.structure.group[edge.source], self.structure.group[edge.target]
                if edge.clocks is None:
                    if groups not in steps:
                        steps[groups] = self._steps(*groups)
                    row = {column: -value for column, value in steps[groups].items()}
                row.update(self.time[edge.target])
                row.update({column: -value for column, value in self.time[edge.source].items()})
            base = latency[edge.source] + (edge.clocks or 0) - self.ii * edge.distance
            self._program.row(row, base, INFINITE if limit is None or edge.clocks is not None else base + limit)

    def _ports(self) -> None:
        """Add rows that limit the memory requests in each slot to the number of ports."""
        latency = self.problem.latencies
        for limit in self.structure.port_limits:
            for slot in range(self.ii):
                asks = [
                    self.at[number][tile][(slot - latency[number]) % self.ii]
                    for number in self.problem.accesses
                    for tile in sorted(limit.tiles)
                ]
                self._program.row(dict.fromkeys(asks, 1.0), upper=limit.most)

    def _words(self, last_time: int) -> None:
        """Add rows that require variables and buffers of asynchronous values to fit into the memories."""
        program, structure, machine = self._program, self.structure, self.problem.machine
        capacity = machine.memories * machine.memory_depth
        longest = max((distance for buffer in structure.buffers for _, distance in buffer.readers), default=0)
        most = last_time // self.ii + longest + 1
        if not structure.buffers or sum(structure.words) + most * len(structure.buffers) <= capacity:
            return
        used = [
            {row[tile]: float(size) for row, size in zip(self.on, structure.words, strict=True) if size} for tile in self._tiles
        ]
        for buffer in structure.buffers:
            words = program.column(capacity)
            starts = [number for number in structure.sources if structure.flow[number] == structure.flow[buffer.source]]
            for reader, distance in buffer.readers:
                for start in starts:
                    row: Terms = {words: float(self.ii)}
                    if reader != start:
                        row.update({column: -value for column, value in self.time[reader].items()})
                        row.update(self.time[start])
                    program.row(row, lower=self.ii * distance + 1)
            for tile in self._tiles:
                words_here = program.column(capacity)
                program.row(
                    {words_here: 1.0, words: -1.0, self._tile(buffer.readers[0][0])[tile]: -float(capacity)}, lower=-capacity
                )
                used[tile][words_here] = 1.0
        for terms in used:
            program.row(terms, upper=capacity)

    def _steps(self, one: int, two: int) -> Terms:
        """The clocks that a value needs from the tile of group ``one`` to that of group ``two``, as a linear expression.

        For each possible number of clocks, a column says whether the two tiles are at least that far apart.
        """
        if one == two:
            return {}
        values = sorted({clocks for row in self._hops for clocks in row if clocks is not None})
        terms: Terms = {}
        for before, value in pairwise(values):
            further = self._program.column()
            terms[further] = float(value - before)
            for tile in self._tiles:
                reached = {end: clocks for end, clocks in enumerate(self._hops[tile]) if clocks is not None}
                near = [self.on[two][end] for end, clocks in reached.items() if clocks < value]
                self._program.implies(self.on[one][tile], further, *near)
                far = dict.fromkeys((self.on[two][end] for end, clocks in reached.items() if clocks >= value), 1.0)
                self._program.row({**far, self.on[one][tile]: -1.0, further: -1.0}, lower=-1.0)
        return terms

    def extract(self, values: FloatArray) -> Plan | None:
        """The plan of a solution.

        Parameters
        ----------
        values
            Values of the columns, shape ``[columns]``; they are integral except for rounding errors.

        Returns
        -------
        Plan or None
            An unverified plan; None if starts would share a tile, memory requests find no port, or values do not fit into the
            memory or the registers of a tile.
        """
        tiles, times = [], []
        for number in range(self.structure.count):
            at = [(tile, slot) for tile, row in enumerate(self.at[number]) for slot, c in enumerate(row) if values[c] > 0.5]
            tiles.append(at[0][0])
            times.append(self.ii * round(values[self.round[number]]) + at[0][1])
        return make_plan(self.structure, self.ii, tiles, times)


def solve(
    problem: Problem,
    solver: str = "highs",
    *,
    time_limit: float = 60.0,
    seed: int = 0,
    node_limit: int | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Outcome[Plan]:
    """Find the best plan of a problem. IIs are tried from the least one upwards, each with a MILP of its own.

    Parameters
    ----------
    solver
        One of :func:`stowplan.models.mip.solve.solvers`.
    time_limit
        Limit in seconds for all MILPs together.
    node_limit
        Largest number of nodes of each MILP; None for no limit. Only solvers in this process obey it.
    on_plan
        Called with the plan, if one is found.
    should_stop
        The search ends when it returns True.

    Returns
    -------
    Outcome
        The best plan and bound. Running out of time is never reported as ``infeasible``.

    Raises
    ------
    UsageError
        The solver is not available or rejects the call, or values may pass through tiles.
    """
    structure = Structure(problem)
    if find_obstacle(problem, structure) is not None:
        return Outcome("infeasible", None, None)
    end = time.monotonic() + time_limit
    path = critical_path(problem, structure)
    all_instructions = range(structure.count)
    for ii in unrefuted_iis(problem, structure).iis:
        latest = latest_time(structure, ii, all_instructions)
        built = MilpModel(structure, ii, latest)
        left = end - time.monotonic()
        if left <= 0 or (should_stop is not None and should_stop()):
            return Outcome("unknown", None, encode_objective(ii, path))
        outcome = mip.solve(built.model, solver, time_limit=left, seed=seed, node_limit=node_limit, should_stop=should_stop)
        if outcome.status == "infeasible":
            continue
        plan = None if outcome.values is None else built.extract(outcome.values)
        bound = encode_objective(ii, path if outcome.bound is None else max(path, proven(outcome.bound, latest)))
        if plan is None:
            return Outcome("unknown", None, bound)
        if on_plan is not None:
            on_plan(plan)
        return Outcome("optimal" if plan.objective <= bound else "feasible", plan, min(bound, plan.objective))
    return Outcome("infeasible", None, None)
