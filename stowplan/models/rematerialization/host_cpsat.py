"""Rematerialization with a host as a CP-SAT model, for small graphs: the order of runs and moves is free.

Times are those of the plan, multiplied by more than there are steps. A run takes its cost and one unit more, a move one unit,
so that no two steps are at one time; a copy takes its time alone. So a plan fits where it fits in whole units of cost, and
times rounded down are the plan's.

Runs and copies of a value are limited in number. A plan with more runs of an operator costs so many of them more, and
one with more fetches has the channel busy for longer: the bound is no larger than what that takes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Unpack, cast

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Outcome
from stowplan.models.rematerialization.cpsat import judged
from stowplan.models.rematerialization.cpsat_fit import Life, add_fit, marks
from stowplan.models.rematerialization.plan import Action, Move, Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.models.rematerialization.timeline import timeline

#: Operators of a graph, at most.
MOST_OPS = 16

#: Runs of an operator and fetches of a value, at most. It is sent once: more is of use only where the host is short of bytes.
RUNS, FETCHES = 3, 3

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
    """A built model: ``runs`` and ``fetches`` are numbers at most, of operators and of values."""

    def __init__(self, structure: Structure, limit: int, host_limit: int, runs: list[int], fetches: dict[int, int]):
        self.structure, self.model = structure, cp_model.CpModel()
        problem, model = structure.problem, self.model
        self.copy_cost = {value: problem.copy_cost(structure.tensor[value]) for value in fetches}
        self.unit = sum(runs) + sum(count + 2 for count in fetches.values()) + 2
        longest = sum(count * cost for count, cost in zip(runs, structure.cost, strict=True))
        longest += sum((fetches[value] + 1) * cost for value, cost in self.copy_cost.items())
        self.horizon = self.unit * (longest + 1)
        self._intervals: list[cp_model.IntervalVar] = []
        self.steps: dict[tuple[str, int], list[tuple[Var, Var]]] = {}
        """Whether and when each takes place, by what it does, and with which operator or tensor."""
        self.end = self._time("end")
        self.runs: list[list[tuple[Var, Var]]] = []
        self.instances: list[list[_Instance]] = [[] for _ in structure.size]
        for value, writer in enumerate(structure.writer):
            if writer < 0:
                yes, zero = model.new_constant(1), model.new_constant(0)
                self.instances[value].append(_Instance(yes, zero, 0, self._time(f"given {value}")))
        for op, count in enumerate(runs):
            self._add_runs(op, count)
        self.fetches = {value: [self._copy("fetch", value) for _ in range(count)] for value, count in fetches.items()}
        self.sends = {value: self._copy("send", value) for value in fetches}
        for value, copies in self.fetches.items():
            for fetch in copies:
                self.instances[value].append(_Instance(fetch.is_there, fetch.start, fetch.end, self._time(f"fetched {value}")))
                model.add(self.instances[value][-1].end > fetch.start).only_enforce_if(fetch.is_there)
        for one, other in problem.precedences:
            for is_there, start in self.runs[one]:
                model.add(start < self.runs[other][0][1]).only_enforce_if(is_there)
        self._read()
        stays = [self._host(value) for value in fetches]
        model.add_no_overlap(self._intervals)
        self._queue([*self.sends.values()])
        self._queue([copy for own in self.fetches.values() for copy in own])
        model.add_cumulative(stays, [structure.size[value] for value in fetches], host_limit)
        self._fit(limit)
        model.minimize(self.end)

    def _time(self, name: str) -> Var:
        return self.model.new_int_var(0, self.horizon, name)

    def _step(self, action: str, number: int, is_there: Var, start: Var, length: int = 1) -> None:
        self._intervals.append(self.model.new_optional_fixed_size_interval_var(start, length, is_there, ""))
        self.steps.setdefault((action, number), []).append((is_there, start))
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
            self._step("run", op, is_there, start, length)
            ends: dict[int, Var] = {}
            for value in structure.writes[op]:
                ends[value] = self._time(f"end {value}")
                self.instances[value].append(_Instance(is_there, start, start + length, ends[value]))
                model.add(ends[value] >= start + length).only_enforce_if(is_there)
                if structure.parent[value] in ends:
                    model.add(ends[structure.parent[value]] >= ends[value])
        self.runs.append(own)

    def _copy(self, action: str, value: int) -> _Copy:
        model, duration = self.model, self.copy_cost[value] * self.unit
        copy = _Copy(model.new_bool_var(""), self._time("issued"), self._time("copied"), duration)
        self._step(action, self.structure.tensor[value], copy.is_there, copy.start)
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
                            model.add(instance.end >= self.instances[view][number].end).only_enforce_if(choice)
        yes = model.new_constant(1)
        for value, kept in enumerate(structure.kept):
            # Inputs that are not free have no other instance than the first.
            for choice, instance in self._choose(value, yes, self.end) if kept else ():
                model.add(instance.end == self.horizon).only_enforce_if(choice)

    def _host(self, value: int) -> cp_model.IntervalVar:
        """The value's stay on the host. Its send reads it, and is waited for; each fetch comes behind that, and is read."""
        model, send, fetches = self.model, self.sends[value], self.fetches[value]
        wait, leave = self._time(f"wait {value}"), self._time(f"leaves {value}")
        self._step("wait", self.structure.tensor[value], send.is_there, wait)
        model.add(wait >= send.end).only_enforce_if(send.is_there)
        model.add(leave >= wait).only_enforce_if(send.is_there)
        for choice, instance in self._choose(value, send.is_there, send.start):
            model.add(instance.end > wait).only_enforce_if(choice)
        for one, other in itertools.pairwise(fetches):
            model.add_implication(other.is_there, one.is_there)
            model.add(one.start < other.start).only_enforce_if(other.is_there)
        for fetch, instance in zip(fetches, self.instances[value][-len(fetches) :], strict=True):
            model.add_implication(fetch.is_there, send.is_there)
            model.add(wait < fetch.start).only_enforce_if(fetch.is_there)
            model.add(leave > fetch.start).only_enforce_if(fetch.is_there)
            # The host has it until somebody has needed it: whoever is said to be the first.
            firsts = [model.new_bool_var("") for _ in instance.readers]
            model.add(sum(firsts) == fetch.is_there)
            for first, (choice, start) in zip(firsts, instance.readers, strict=True):
                model.add_implication(first, choice)
                model.add(leave >= start).only_enforce_if(first)
        return model.new_optional_interval_var(send.start, self._time(""), leave, send.is_there, "")

    def _fit(self, limit: int) -> None:
        lives = [
            Life(instance.start, instance.end, instance.is_there, size)
            for value, size in enumerate(self.structure.size)
            for instance in (self.instances[value] if size else ())
        ]
        starts = {op: self.runs[op][0][1] for op in marks(self.structure)}
        spans = {op: (start, start + self.structure.cost[op] * self.unit + 1) for op, start in starts.items()}
        add_fit(self.model, lives, limit, self.structure, spans, self.horizon)

    def add_hint(self, plan: Plan) -> None:
        """Start from a plan, as far as the model has its steps; what is worse is not looked at."""
        once = sum(self.structure.cost)
        self.model.add(self.end <= self.unit * (once + plan.objective + 1) - 1)
        steps = list(plan.steps())
        if len(steps) >= self.unit:
            return
        times = [self.unit * begin + at for at, begin in enumerate(timeline(self.structure, plan).begin)]
        places = dict[tuple[str, int], list[int]]()
        for step, time in zip(steps, times, strict=True):
            places.setdefault(step, []).append(time)
        values: list[tuple[Var, int]] = []
        for what, own in self.steps.items():
            begin = places.get(what, [])
            values += [(is_there, int(number < len(begin))) for number, (is_there, _) in enumerate(own)]
            values += [(start, time) for (_, start), time in zip(own, begin, strict=False)]
        cpsat_runner.add_hint(self.model, values, complete=False)

    def extract(self, value: Value) -> Plan:
        """Plan of a solution."""
        steps = [(value(start), step) for step, own in self.steps.items() for is_there, start in own if value(is_there)]
        sequence, moves = list[int](), list[Move]()
        for _, (action, number) in sorted(steps):
            if action == "run":
                sequence.append(number)
            else:
                moves.append(Move(cast(Action, action), number, len(sequence)))
        return self.structure.made(sequence, moves)


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
            cap(fetches[value], 1, 2 * copy - once)
    limit = sum(structure.size) * (max(runs, default=1) + FETCHES + 1) if problem.limit is None else problem.limit
    model = Model(structure, limit, channel.limit, runs, fetches)
    if model.horizon >= LIMIT:
        return Outcome("unknown", None, None, "found costs too large for the model")
    outcome = cpsat_runner.find_plan(model, objective=lambda end: min(end // model.unit - once, ceiling), **search)
    if outcome.status == "infeasible":
        # A hint may do what the model does not know of.
        return Outcome("unknown", None, None) if is_capped or hint is not None else outcome
    return judged(outcome)
