"""The CP-SAT model of rematerialization: optional runs of every operator, and retention intervals of their results.

It follows Moccasin (Bartan et al., "Moccasin: efficient tensor rematerialization for neural networks", 2023). On small graphs
the order is free. On larger ones the first runs of the operators have a given order. Stage ``j`` then consists of the
recomputations between the first runs of the operators ``j - 1`` and ``j``, each operator at most once and in the given order.
Such a model proves nothing about other orders.

A *value* is a tensor that is an input or that an operator writes (:mod:`~.structure`). An *instance* of it is the bytes that
one run or one fetch wrote. It is *retained* from then on until its *end*, a variable. A *storage* is a value with bytes of its
own, and all other values are views.

The *host* is a second memory. A *send* copies a value to it, a *wait* waits until that copy has ended, and a *fetch* copies the
value back (:class:`~.plan.Move`). Without a host, a time is a position in the sequence. With a host, times are those of the
plan multiplied by a number ``unit`` that is larger than the number of steps. A run takes ``unit`` times its cost plus 1, and a
move takes 1, so that no two steps have the same time; a copy takes ``unit`` times its duration. Times of the plan are the times
of the model divided by ``unit`` and rounded down. A fetch is an operator that reads nothing and whose value can be read when
its copy has ended. Nothing here raises an error for a valid problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Value
from stowplan.models.rematerialization.cpsat_fit import Life, add_fit, reserving_operators
from stowplan.models.rematerialization.plan import Action, Move, Plan
from stowplan.models.rematerialization.structure import Structure
from stowplan.models.rematerialization.timeline import timeline

Var = cp_model.IntVar
Time = cp_model.LinearExprT


@dataclass(frozen=True)
class _Run:
    """The variables of one optional run of an operator, or of one optional copy."""

    start: Var
    """Time at which it starts; the horizon if it does not take place."""
    is_there: Var
    """Whether it takes place."""
    ready: Time
    """Time from which the values that it writes can be read."""
    ends: dict[int, Var]
    """For each value that it writes, the time from which the value is no longer retained."""


class Model:
    """The CP-SAT model of a problem.

    Parameters
    ----------
    structure
        The graph; with a host it includes a fetch of each value that may be fetched.
    limit
        Limit in bytes on the live bytes.
    runs
        [operators] largest number of runs of each operator.
    order
        The order in which operators first run. None leaves it to the model, which is required with a host.
    ceiling
        Lower bound on the added cost of plans with more runs than the model has.
    """

    def __init__(self, structure: Structure, limit: int, runs: list[int], order: list[int] | None, ceiling: int):
        self.structure, self.order, self._ceiling, self.model = structure, order, ceiling, cp_model.CpModel()
        n, steps, self._has_host = structure.ops, sum(runs), structure.problem.channel is not None
        self._rank = {op: at for at, op in enumerate(order or ())}
        self._copy_cost = dict(zip(structure.fetched, structure.cost[structure.computing :], strict=True))
        self._once = sum(structure.cost[: structure.computing])
        self.unit = steps + 2 * len(structure.fetched) + 2 if self._has_host else 1
        """Length in time of one unit of cost."""
        spent = sum(count * cost for count, cost in zip(runs, structure.cost, strict=True)) + sum(self._copy_cost.values())
        free = self.unit * (spent + 1) if self._has_host else steps
        self.horizon = free if order is None else n * (n + 1) // 2
        self._steps: dict[tuple[str, int], list[tuple[Var, Var, int]]] = {}
        """For each (action, operator or tensor), the optional steps: whether each takes place, its start and its length."""
        self.runs = [[self._run(op, number) for number in range(count)] for op, count in enumerate(runs)]
        self._sources: list[list[_Run]] = [[] for _ in structure.size]
        """[values] runs and fetches that write each value."""
        for op_runs in self.runs:
            for run in op_runs:
                for value in run.ends:
                    self._sources[value].append(run)
        written = {value for op in range(structure.computing) for value in structure.writes[op]}
        self._input_ends = {
            value: self._time(f"end {value}", 1)
            for value, readers in enumerate(structure.readers)
            if value not in written and (readers or structure.kept[value])
        }
        """For each input, the time from which it is no longer retained."""
        for op_runs in self.runs:
            for before, after in itertools.pairwise(op_runs):
                self.model.add_implication(after.is_there, before.is_there)
                self.model.add(before.start < after.start).only_enforce_if(after.is_there)
        self._end: Time = self._time("end") if self._has_host else self.horizon
        self._readers: dict[int, list[tuple[Var, Time]]] = {}
        """For each run, given by the index of its variable ``is_there``, the steps that may read its value: whether each does,
        and its start."""
        self._sends = [self._send(value) for value in structure.fetched]
        if order is None:
            self._add_no_overlap()
        for op in range(structure.computing):
            for run in self.runs[op]:
                self._read(op, run)
        self._keep()
        for first, second in structure.problem.precedences:
            for run in self.runs[first]:
                self.model.add(run.start < self.runs[second][0].start).only_enforce_if(run.is_there)
        if structure.problem.channel is not None:
            self._add_host(structure.problem.channel.limit)
        self._fit(limit)
        added = [structure.cost[op] * run.is_there for op, op_runs in enumerate(self.runs) for run in op_runs[1:]]
        self.model.minimize(self._end if self._has_host else sum(added))

    def added_cost(self, objective: int) -> int:
        """Convert a value of the model's objective into added cost.

        The result is never above ``ceiling``, so that a bound also holds for plans with more runs than the model has.
        """
        return min(objective // self.unit - self._once if self._has_host else objective, self._ceiling)

    def _time(self, name: str, more: int = 0) -> Var:
        """A new variable for a time, at most ``more`` after the horizon."""
        return self.model.new_int_var(0, self.horizon + more, name)

    def _slot(self, stage: int, op: int) -> int:
        """The time of an operator in a stage, if the order is given."""
        return stage * (stage + 1) // 2 + self._rank[op]

    def _run(self, op: int, number: int) -> _Run:
        """Add the variables of run ``number`` of an operator."""
        model, structure, name = self.model, self.structure, f"{op} {number}"
        if self.order is None:
            domain = cp_model.Domain(0, self.horizon)
        else:
            first = self._rank[op]
            stages = [first] if number == 0 else range(first + 1, len(self.order))
            domain = cp_model.Domain.from_values(
                [*(self._slot(stage, op) for stage in stages), *([self.horizon] if number else [])]
            )
        start = model.new_int_var_from_domain(domain, f"start {name}")
        is_there = model.new_bool_var(f"run {name}")
        is_fetch = op >= structure.computing
        if number == 0 and not is_fetch:
            model.add(is_there == 1)
        model.add(start < self.horizon).only_enforce_if(is_there)
        model.add(start == self.horizon).only_enforce_if(~is_there)
        length = structure.cost[op] * self.unit + 1 if self._has_host and not is_fetch else 1
        ends = {}
        for value in structure.writes[op]:
            ends[value] = self._time(f"end {name} {value}", 1)
            model.add(ends[value] >= start + length).only_enforce_if(is_there)
            # Fix the variable if the run does not take place, to avoid equivalent solutions.
            model.add(ends[value] == 0).only_enforce_if(~is_there)
            parent = structure.parent[value]
            if parent in ends:
                model.add(ends[parent] >= ends[value])
        if is_fetch:
            self._step("fetch", structure.tensor[structure.writes[op][0]], is_there, start)
            return _Run(start, is_there, self._copied(structure.writes[op][0], start, is_there), ends)
        self._step("run", op, is_there, start, length)
        return _Run(start, is_there, start + length, ends)

    def _step(self, action: str, number: int, is_there: Var, start: Var, length: int = 1) -> None:
        """Record an optional step."""
        self._steps.setdefault((action, number), []).append((is_there, start, length))

    def _copied(self, value: int, start: Var, is_there: Var) -> Var:
        """A variable for the time at which a copy that is issued at ``start`` has ended."""
        ready = self._time("copied")
        self.model.add(ready >= start + 1 + self._copy_cost[value] * self.unit).only_enforce_if(is_there)
        return ready

    def _send(self, value: int) -> tuple[_Run, Var]:
        """Add the variables of the send of a value; returns them and the time of its ``wait``."""
        tensor, is_there = self.structure.tensor[value], self.model.new_bool_var("")
        start, wait = self._time("send"), self._time("wait")
        self._step("send", tensor, is_there, start)
        self._step("wait", tensor, is_there, wait)
        return _Run(start, is_there, self._copied(value, start, is_there), {}), wait

    def _add_no_overlap(self) -> None:
        """Require that no two steps overlap in time, and that none is after the end."""
        model, places = self.model, []
        for is_there, start, length in itertools.chain.from_iterable(self._steps.values()):
            places.append(model.new_optional_interval_var(start, length, start + length, is_there, ""))
            if self._has_host:
                model.add(start + length <= self._end).only_enforce_if(is_there)
        model.add_no_overlap(places)

    def _choose(self, value: int, is_there: Var, start: Time, until: Time, views: Sequence[Var] = ()) -> None:
        """Let the model choose the instance of a value that a step reads: the last one written or fetched before the step.

        Parameters
        ----------
        is_there, start
            Whether the step takes place, and when.
        until
            Time up to which the instance must be retained for the step.
        views
            Times up to which views of this instance are retained; the instance is retained at least as long.
        """
        model, sources = self.model, self._sources[value]
        chosen = [model.new_bool_var("") for _ in sources]
        from_input = [model.new_bool_var("")] if value in self._input_ends else []
        model.add(sum([*chosen, *from_input]) == is_there)

        def retain(end: Var, choice: Var) -> None:
            """Require that an instance, if it is chosen, is retained as long as its views."""
            for view in views:
                model.add(end >= view).only_enforce_if(choice)

        for number, (choice, run) in enumerate(zip(chosen, sources, strict=True)):
            model.add_implication(choice, run.is_there)
            model.add(run.ready <= start).only_enforce_if(choice)
            model.add(run.ends[value] >= until).only_enforce_if(choice)
            if value not in self.structure.fetched:
                for after in sources[number + 1 : number + 2]:
                    model.add(after.start > start).only_enforce_if(choice)
            else:
                self._readers.setdefault(run.is_there.index, []).append((choice, start))
                for other in sources:
                    if other is not run:
                        is_before = model.new_bool_var("")
                        model.add(other.start <= run.start).only_enforce_if([choice, other.is_there, is_before])
                        model.add(other.start >= start).only_enforce_if([choice, other.is_there, ~is_before])
            retain(run.ends[value], choice)
        for choice in from_input:
            model.add(self._input_ends[value] >= until).only_enforce_if(choice)
            for other in sources:
                model.add(other.start >= start).only_enforce_if([choice, other.is_there])
            retain(self._input_ends[value], choice)

    def _read(self, op: int, run: _Run) -> None:
        """Require that each value that a run needs was written or fetched before the run, and is retained until then."""
        structure, model = self.structure, self.model
        replaced = {structure.root[value] for value in structure.pairs[op]}
        for value in structure.needs[op]:
            # The live range of an operand may end where that of the result begins that reuses its bytes.
            until = run.start if structure.root[value] in replaced else run.ready
            views = [run.ends[view] for view in structure.writes[op] if structure.parent[view] == value]
            if self._sources[value]:
                self._choose(value, run.is_there, run.start, until, views)
                continue
            model.add(self._input_ends[value] >= until).only_enforce_if(run.is_there)
            for view in views:
                model.add(self._input_ends[value] >= view)

    def _keep(self) -> None:
        """Require that, of each value that stays to the end, one instance is retained to the end: that of the last run of its
        writer, or of a fetch."""
        for value, kept in enumerate(self.structure.kept):
            if not kept:
                continue
            sources = self._sources[value]
            if not sources:
                self.model.add(self._input_ends[value] == self.horizon + 1)
            elif value in self.structure.fetched:
                self._choose(value, self.model.new_constant(1), self._end, self.horizon + 1)
            else:
                for run, after in zip(sources, [*sources[1:], None], strict=True):
                    is_last = [run.is_there] if after is None else [run.is_there, ~after.is_there]
                    self.model.add(run.ends[value] == self.horizon + 1).only_enforce_if(is_last)

    def _add_host(self, limit: int) -> None:
        """Limit the bytes on the host, and let copies in the same direction run one after the other."""
        structure, stays = self.structure, []
        fetches = self.runs[structure.computing :]
        for value, (send, wait), copies in zip(structure.fetched, self._sends, fetches, strict=True):
            stays.append(self._stay(value, send, wait, copies))
        self._queue([(send, value) for value, (send, _) in zip(structure.fetched, self._sends, strict=True)])
        self._queue([(fetch, value) for value, copies in zip(structure.fetched, fetches, strict=True) for fetch in copies])
        self.model.add_cumulative(stays, [structure.size[value] for value in structure.fetched], limit)

    def _stay(self, value: int, send: _Run, wait: Var, fetches: list[_Run]) -> cp_model.IntervalVar:
        """The interval during which a value is on the host.

        The send reads the value and is waited for. Each fetch comes after that, and some step reads the fetched value.
        """
        model, leave = self.model, self._time(f"leaves {value}")
        model.add(wait >= send.ready).only_enforce_if(send.is_there)
        model.add(leave >= wait).only_enforce_if(send.is_there)
        self._choose(value, send.is_there, send.start, wait + 1)
        for fetch in fetches:
            model.add_implication(fetch.is_there, send.is_there)
            model.add(wait < fetch.start).only_enforce_if(fetch.is_there)
            model.add(leave > fetch.start).only_enforce_if(fetch.is_there)
            # The value stays on the host until the first step that reads the fetched copy. The model chooses that step.
            readers = self._readers[fetch.is_there.index]
            firsts = [model.new_bool_var("") for _ in readers]
            model.add(sum(firsts) == fetch.is_there)
            for first, (choice, start) in zip(firsts, readers, strict=True):
                model.add_implication(first, choice)
                model.add(leave >= start).only_enforce_if(first)
        return model.new_optional_interval_var(send.start, self._time(""), leave, send.is_there, "")

    def _queue(self, copies: list[tuple[_Run, int]]) -> None:
        """Require that the copies in one direction run one after the other, in the order in which they are issued."""
        model = self.model
        for (one, value), (other, another) in itertools.combinations(copies, 2):
            is_first = model.new_bool_var("")
            for first, second, of, order in ((one, other, another, is_first), (other, one, value, ~is_first)):
                conditions = [order, first.is_there, second.is_there]
                model.add(first.start < second.start).only_enforce_if(conditions)
                model.add(first.ready + self._copy_cost[of] * self.unit <= second.ready).only_enforce_if(conditions)

    def _fit(self, limit: int) -> None:
        """Add the memory constraints."""
        structure, lives = self.structure, []
        for value, size in enumerate(structure.size):
            if structure.parent[value] >= 0 or not size:
                continue
            if value in self._input_ends:
                lives.append(Life(0, self._input_ends[value], None, size))
            lives += [Life(run.start, run.ends[value], run.is_there, size) for run in self._sources[value]]
        spans = {op: (self.runs[op][0].start, self.runs[op][0].ready) for op in reserving_operators(structure)}
        add_fit(self.model, lives, limit, structure, spans, self.horizon + 1)

    def add_hint(self, plan: Plan) -> None:
        """Let the solver start from a valid plan, as far as the model has steps for it.

        The hint says which steps take place and, if the model chooses the order, at which times. With a host, a constraint also
        excludes worse plans.
        """
        steps = list(plan.steps())
        times = [self.horizon] * len(steps)
        if self._has_host:
            self.model.add(self._end <= self.unit * (self._once + plan.objective + 1) - 1)
            times = [self.unit * begin + at for at, begin in enumerate(timeline(self.structure, plan).begin)]
        elif self.order is None:
            times = list(range(len(steps)))
        places = dict[tuple[str, int], list[int]]()
        for step, time in zip(steps, times, strict=True):
            places.setdefault(step, []).append(time)
        values: list[tuple[Var, int]] = []
        for sort, step_runs in self._steps.items():
            begin = places.get(sort, [])
            values += [(is_there, int(number < len(begin))) for number, (is_there, _, _) in enumerate(step_runs)]
            values += [(start, time) for (_, start, _), time in zip(step_runs, begin, strict=False) if time < self.horizon]
        cpsat_runner.add_hint(self.model, values, complete=False)

    def extract(self, value: Value) -> Plan:
        """The plan of a solution; ``value`` returns the value of a variable in the solution."""
        steps = [
            (value(start), sort)
            for sort, step_runs in self._steps.items()
            for is_there, start, _ in step_runs
            if value(is_there)
        ]
        sequence, moves = list[int](), list[Move]()
        for _, (action, number) in sorted(steps):
            if action == "run":
                sequence.append(number)
            else:
                moves.append(Move(cast(Action, action), number, len(sequence)))
        return self.structure.made(sequence, moves)
