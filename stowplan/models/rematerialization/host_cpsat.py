"""Rematerialization with a host as a CP-SAT model, for small graphs: the order of runs and moves is free.

Times are those of the plan, multiplied by more than there are steps. A run takes its cost and one unit more, a move one unit,
so that no two steps are at one time; a copy takes its time alone. So a plan fits where it fits in whole units of cost, and
times rounded down are the plan's.

Runs, fetches and sends of a value are limited in number. A plan with more runs of an operator costs so many of them more, and
one with more fetches has the channel busy for longer: the bound is no larger than what that takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Outcome
from stowplan.models.rematerialization.plan import Action, Move, Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.models.rematerialization.timeline import timeline

#: Operators of a graph, at most.
MOST_OPS = 16

#: Runs of an operator, fetches of a value, and sends of one where the host is short of bytes; at most.
RUNS, FETCHES, SENDS = 3, 3, 2

#: Times of a model are below this.
LIMIT = 1 << 50

Var = cp_model.IntVar


@dataclass
class _Instance:
    """Bytes of a value that a run, a fetch or the start gives."""

    is_there: Var
    start: Var
    ready: cp_model.LinearExprT
    """From when it can be read."""
    end: Var
    readers: list[tuple[Var, cp_model.LinearExprT]] = field(default_factory=list)
    """Whether each step reads it, and when that begins."""


@dataclass
class _Copy:
    """A send or a fetch: issued at ``start``, copied until ``end``."""

    is_there: Var
    start: Var
    end: Var
    duration: int


class Model:
    """A built model: ``runs`` and ``fetches`` are numbers at most, of operators and of values; ``sends`` of any value."""

    def __init__(self, structure: Structure, limit: int, runs: list[int], fetches: dict[int, int], sends: int):
        channel = structure.problem.channel
        assert channel is not None
        self.structure, self.model = structure, cp_model.CpModel()
        problem, model = structure.problem, self.model
        self.copy_cost = {value: problem.copy_cost(structure.tensor[value]) for value in fetches}
        self.unit = sum(runs) + sum(count + 2 * sends for count in fetches.values()) + 2
        longest = sum(count * cost for count, cost in zip(runs, structure.cost, strict=True))
        longest += sum((fetches[value] + sends) * cost for value, cost in self.copy_cost.items())
        self.horizon = self.unit * (longest + 1)
        self._steps: list[cp_model.IntervalVar] = []
        self.end = self._time("end")
        self.runs: list[list[tuple[Var, Var]]] = []
        self.instances: list[list[_Instance]] = [[] for _ in structure.size]
        for value, writer in enumerate(structure.writer):
            if writer < 0:
                yes, zero = model.new_constant(1), model.new_constant(0)
                self.instances[value].append(_Instance(yes, zero, 0, self._time(f"given {value}")))
        for op, count in enumerate(runs):
            self._add_runs(op, count)
        self.fetches = {value: [self._copy(value) for _ in range(count)] for value, count in fetches.items()}
        self.sends = {value: [self._copy(value) for _ in range(sends)] for value in fetches}
        for value, copies in self.fetches.items():
            for fetch in copies:
                self.instances[value].append(_Instance(fetch.is_there, fetch.start, fetch.end, self._time(f"fetched {value}")))
                model.add(self.instances[value][-1].end > fetch.start).only_enforce_if(fetch.is_there)
        for one, other in problem.precedences:
            for is_there, start in self.runs[one]:
                model.add(start < self.runs[other][0][1]).only_enforce_if(is_there)
        self._read()
        self.waits = {value: [self._time(f"wait {value}") for _ in copies] for value, copies in self.sends.items()}
        stays = [stay for value in fetches for stay in self._host(value)]
        model.add_no_overlap(self._steps)
        for direction in (self.sends, self.fetches):
            self._queue([copy for own in direction.values() for copy in own])
        model.add_cumulative([stay for stay, _ in stays], [size for _, size in stays], channel.limit)
        self._fit(limit)
        model.minimize(self.end)

    def _time(self, name: str) -> Var:
        return self.model.new_int_var(0, self.horizon, name)

    def _step(self, is_there: Var, start: Var, length: int) -> None:
        self._steps.append(self.model.new_optional_fixed_size_interval_var(start, length, is_there, ""))
        self.model.add(start + length <= self.end).only_enforce_if(is_there)

    def _add_runs(self, op: int, count: int) -> None:
        model, structure = self.model, self.structure
        length = structure.cost[op] * self.unit + 1
        own = [(model.new_bool_var(f"run {op} {number}"), self._time(f"start {op} {number}")) for number in range(count)]
        model.add(own[0][0] == 1)
        for (before, begin), (after, start) in itertools.pairwise(own):
            model.add_implication(after, before)
            model.add(begin < start).only_enforce_if(after)
        for is_there, start in own:
            self._step(is_there, start, length)
            ends: dict[int, Var] = {}
            for value in structure.writes[op]:
                ends[value] = self._time(f"end {value}")
                self.instances[value].append(_Instance(is_there, start, start + length, ends[value]))
                model.add(ends[value] >= start + length).only_enforce_if(is_there)
                if structure.parent[value] in ends:
                    model.add(ends[structure.parent[value]] >= ends[value])
        self.runs.append(own)

    def _copy(self, value: int) -> _Copy:
        model, duration = self.model, self.copy_cost[value] * self.unit
        copy = _Copy(model.new_bool_var(""), self._time("issued"), self._time("copied"), duration)
        self._step(copy.is_there, copy.start, 1)
        model.add(copy.end >= copy.start + 1 + duration).only_enforce_if(copy.is_there)
        return copy

    def _queue(self, copies: list[_Copy]) -> None:
        """Copies of a direction come one after the other, in the order in which they are issued."""
        model = self.model
        for one, other in itertools.combinations(copies, 2):
            is_first = model.new_bool_var("")
            for first, second, order in ((one, other, is_first), (other, one, ~is_first)):
                both = [order, first.is_there, second.is_there]
                model.add(first.start < second.start).only_enforce_if(both)
                model.add(first.end + second.duration <= second.end).only_enforce_if(both)

    def _choose(self, value: int, is_there: Var, start: cp_model.LinearExprT) -> list[tuple[Var, _Instance]]:
        """Of what a step that begins at ``start`` reads a value: of the last instance before."""
        model, chosen = self.model, []
        for instance in self.instances[value]:
            choice = model.new_bool_var("")
            chosen.append((choice, instance))
            instance.readers.append((choice, start))
            model.add_implication(choice, instance.is_there)
            model.add(instance.ready <= start).only_enforce_if(choice)
            for other in self.instances[value]:
                if other is not instance:
                    is_before = model.new_bool_var("")
                    model.add(other.start <= instance.start).only_enforce_if([choice, other.is_there, is_before])
                    model.add(other.start >= start).only_enforce_if([choice, other.is_there, ~is_before])
        model.add(sum(choice for choice, _ in chosen) == is_there)
        return chosen

    def _read(self) -> None:
        structure, model = self.structure, self.model
        for op, own in enumerate(self.runs):
            replaced = {structure.root[value] for value in structure.pairs[op]}
            for number, (is_there, start) in enumerate(own):
                for value in structure.needs[op]:
                    # The operand of a pair may end where its successor begins.
                    is_replaced = structure.root[value] in replaced
                    last = start + (0 if is_replaced else structure.cost[op] * self.unit + 1)
                    views = [view for view in structure.writes[op] if structure.parent[view] == value]
                    for choice, instance in self._choose(value, is_there, start):
                        model.add(instance.end >= last).only_enforce_if(choice)
                        for view in views:
                            given = structure.writer[view] < 0
                            made = self.instances[view][number + given]
                            model.add(instance.end >= made.end).only_enforce_if(choice)
        yes = model.new_constant(1)
        for value, kept in enumerate(structure.kept):
            if kept and (structure.writer[value] >= 0 or structure.problem.free_inputs):
                for choice, instance in self._choose(value, yes, self.end):
                    model.add(instance.end == self.horizon).only_enforce_if(choice)
            elif kept:
                model.add(self.instances[value][0].end == self.horizon)

    def _host(self, value: int) -> Iterable[tuple[cp_model.IntervalVar, int]]:
        """Each send reads the value, and is waited for; each fetch is read, and is of the last send before it."""
        model, sends, fetches = self.model, self.sends[value], self.fetches[value]
        leaves = [self._time(f"leaves {value}") for _ in sends]
        fetched = self.instances[value][-len(fetches) :]
        for copy, wait, leave in zip(sends, self.waits[value], leaves, strict=True):
            self._step(copy.is_there, wait, 1)
            model.add(wait >= copy.end).only_enforce_if(copy.is_there)
            model.add(leave >= wait).only_enforce_if(copy.is_there)
            for choice, instance in self._choose(value, copy.is_there, copy.start):
                model.add(instance.end > wait).only_enforce_if(choice)
        for (one, wait), (other, _) in itertools.pairwise(zip(sends, self.waits[value], strict=True)):
            model.add_implication(other.is_there, one.is_there)
            model.add(wait < other.start).only_enforce_if(other.is_there)
        for one, other in itertools.pairwise(fetches):
            model.add_implication(other.is_there, one.is_there)
            model.add(one.start < other.start).only_enforce_if(other.is_there)
        for fetch, instance in zip(fetches, fetched, strict=True):
            sources = [model.new_bool_var("") for _ in sends]
            model.add(sum(sources) == fetch.is_there)
            # The host has it until somebody has needed it: whoever is said to be the first.
            firsts = [model.new_bool_var("") for _ in instance.readers]
            model.add(sum(firsts) == fetch.is_there)
            for first, (choice, _) in zip(firsts, instance.readers, strict=True):
                model.add_implication(first, choice)
            for number, (source, copy, leave) in enumerate(zip(sources, sends, leaves, strict=True)):
                model.add_implication(source, copy.is_there)
                model.add(self.waits[value][number] < fetch.start).only_enforce_if(source)
                model.add(leave > fetch.start).only_enforce_if(source)
                for first, (_, start) in zip(firsts, instance.readers, strict=True):
                    model.add(leave >= start).only_enforce_if([source, first])
                if number + 1 < len(sends):
                    after = sends[number + 1]
                    model.add(fetch.start < after.start).only_enforce_if([source, after.is_there])
        for copy, leave in zip(sends, leaves, strict=True):
            length = self._time("")
            stay = model.new_optional_interval_var(copy.start, length, leave, copy.is_there, "")
            yield stay, self.structure.size[value]

    def _fit(self, limit: int) -> None:
        model, lives, sizes = self.model, [], []
        for value, size in enumerate(self.structure.size):
            for instance in self.instances[value] if size else ():
                length = self._time("")
                lives.append(model.new_optional_interval_var(instance.start, length, instance.end, instance.is_there, ""))
                sizes.append(size)
        model.add_cumulative(lives, sizes, limit)

    def add_hint(self, plan: Plan) -> None:
        """Start from a plan, as far as the model has its steps; what is worse is not looked at."""
        once = sum(self.structure.cost)
        self.model.add(self.end <= self.unit * (once + plan.objective + 1) - 1)
        steps = list(plan.steps())
        if len(steps) >= self.unit:
            return
        times = [self.unit * begin + at for at, begin in enumerate(timeline(self.structure, plan).begin)]
        places: dict[tuple[str, int], list[int]] = {}
        for step, time in zip(steps, times, strict=True):
            places.setdefault(step, []).append(time)
        values: list[tuple[Var, int]] = []
        for op, own in enumerate(self.runs):
            values += _hinted(own, places.get(("run", op), []))
        for value in self.fetches:
            tensor = self.structure.tensor[value]
            for action, copies in (("fetch", self.fetches[value]), ("send", self.sends[value])):
                values += _hinted([(copy.is_there, copy.start) for copy in copies], places.get((action, tensor), []))
            values += zip(self.waits[value], places.get(("wait", tensor), []), strict=False)
        cpsat_runner.add_hint(self.model, values, complete=False)

    def extract(self, value: Value) -> Plan:
        """Plan of a solution."""
        steps: list[tuple[int, Action | None, int]] = []
        for op, own in enumerate(self.runs):
            steps += [(value(start), None, op) for is_there, start in own if value(is_there)]
        for moved, tensor in enumerate(self.structure.tensor):
            steps += [(value(copy.start), "fetch", tensor) for copy in self.fetches.get(moved, ()) if value(copy.is_there)]
            for copy, wait in zip(self.sends.get(moved, ()), self.waits.get(moved, ()), strict=True):
                if value(copy.is_there):
                    steps += [(value(copy.start), "send", tensor), (value(wait), "wait", tensor)]
        sequence, moves = list[int](), list[Move]()
        for _, action, number in sorted(steps, key=lambda step: step[0]):
            if action is None:
                sequence.append(number)
            else:
                moves.append(Move(action, number, len(sequence)))
        return self.structure.made(sequence, moves)


def _hinted(steps: Iterable[tuple[Var, Var]], times: list[int]) -> Iterable[tuple[Var, int]]:
    for at, (is_there, start) in enumerate(steps):
        yield is_there, int(at < len(times))
        if at < len(times):
            yield start, times[at]


def solve(problem: Problem, **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """A plan of least added cost, as ``cpsat.solve`` has it: ``infeasible`` where no more runs or moves could be of use."""
    structure, channel = build(problem), problem.channel
    if channel is None or structure.ops > MOST_OPS:
        return Outcome("unknown", None, None, f"found {structure.ops} operators, the model takes up to {MOST_OPS}")
    hint, once = search.get("hint"), sum(structure.cost)
    upper = None if hint is None else hint.objective
    runs, reads = [1] * structure.ops, [0] * len(structure.size)
    ceiling, is_capped = 1 << 62, False

    def cap(useful: int, most: int, above: int) -> int:
        """A number; a plan with more than ``most`` adds a cost of ``above``."""
        nonlocal ceiling, is_capped
        if useful <= most or (upper is not None and above >= upper):
            return min(useful, most)
        ceiling, is_capped = min(ceiling, max(0, above)), True
        return most

    # Readers before what they read: nothing runs more often than it is read.
    for op in reversed(structure.order):
        for value in structure.writes[op]:
            reads[value] = sum(runs[reader] for reader in structure.readers[value]) + structure.kept[value]
        useful = max(1, sum(reads[value] for value in structure.writes[op]))
        if upper is not None and structure.cost[op]:
            useful = min(useful, 1 + upper // structure.cost[op])
        runs[op] = 1 if structure.once[op] else cap(useful, RUNS, RUNS * structure.cost[op])
    fetches: dict[int, int] = {}
    is_short = channel.limit < sum(structure.size[value] for value in structure.movable)
    for value in structure.movable:
        reads[value] = sum(runs[reader] for reader in structure.readers[value]) + structure.kept[value]
        copy = problem.copy_cost(structure.tensor[value])
        fetches[value] = cap(reads[value], FETCHES, (FETCHES + 1) * copy - once)
        if is_short:
            cap(fetches[value], SENDS, (SENDS + 1) * copy - once)
    limit = sum(structure.size) * (max(runs, default=1) + FETCHES + 1) if problem.limit is None else problem.limit
    model = Model(structure, limit, runs, fetches, SENDS if is_short else 1)
    if model.horizon >= LIMIT:
        return Outcome("unknown", None, None, "found costs too large for the model")
    objective = partial(_added, unit=model.unit, once=once, ceiling=ceiling)
    outcome = cpsat_runner.find_plan(model, objective=objective, **search)
    if outcome.status == "infeasible":
        return Outcome("unknown", None, None) if is_capped else outcome
    proven = outcome.plan is not None and outcome.bound is not None and outcome.plan.objective <= outcome.bound
    status = "optimal" if proven else outcome.status if outcome.status != "optimal" else "feasible"
    return Outcome(status, outcome.plan, outcome.bound)


def _added(end: int, unit: int, once: int, ceiling: int) -> int:
    return min(end // unit - once, ceiling)
