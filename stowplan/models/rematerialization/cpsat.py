"""Rematerialization as a CP-SAT model: optional runs of every operator, and intervals of retention.

After Moccasin (Bartan et al., "Moccasin: efficient tensor rematerialization for neural networks", 2023). On small graphs the
order is free. On larger ones operators first run in a given order; stage ``j`` is what runs between the first runs of ``j - 1``
and ``j``: operators that run again, each once at most, in that order. Then nothing is proven of other orders.

Every operator has some runs at most. A plan with more of one costs at least that many runs of it more, unless nobody could read
them all: the bound is no larger than that.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Outcome
from stowplan.models.rematerialization.cpsat_fit import Life, add_fit, marks
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build

#: Up to so many operators their order is free.
FREE_OPS = 24

#: Beyond so many operators there is no model: it grows with the square.
MOST_OPS = 400

#: Runs of an operator at most, of graphs of up to so many operators and of others.
RUNS = ((60, 3), (MOST_OPS, 2))

#: Runs at most of an operator that costs nothing.
FREE_RUNS = 6

#: Runs of an operator at most where nothing fits with fewer.
ENOUGH_RUNS = 8


@dataclass(frozen=True)
class _Run:
    """Variables of one run of an operator."""

    start: cp_model.IntVar
    """Its place; behind all where it does not take place."""
    is_there: cp_model.IntVar
    ends: dict[int, cp_model.IntVar]
    """Place up to which each value that it writes is retained, exclusive."""


class Model:
    """A built model.

    Parameters
    ----------
    order
        In which operators first run; None leaves that free.
    runs
        [operators] runs at most.
    """

    def __init__(self, structure: Structure, limit: int, runs: list[int], order: list[int] | None):
        self.structure, self.order = structure, order
        self.model = cp_model.CpModel()
        n = structure.ops
        self._rank = {op: at for at, op in enumerate(order or ())}
        self.horizon = sum(runs) if order is None else n * (n + 1) // 2
        self.runs = [[self._run(op, k) for k in range(count)] for op, count in enumerate(runs)]
        self._given = {
            value: self.model.new_int_var(0, self.horizon + 1, f"end {value}")
            for value, writer in enumerate(structure.writer)
            if writer < 0 and (structure.readers[value] or structure.kept[value])
        }
        for own in self.runs:
            for before, after in itertools.pairwise(own):
                self.model.add_implication(after.is_there, before.is_there)
                self.model.add(before.start < after.start).only_enforce_if(after.is_there)
        if order is None:
            flat = [run for own in self.runs for run in own]
            places = [
                self.model.new_optional_interval_var(run.start, 1, run.start + 1, run.is_there, f"place {number}")
                for number, run in enumerate(flat)
            ]
            self.model.add_no_overlap(places)
        for op, own in enumerate(self.runs):
            for run in own:
                self._read(op, run)
        self._keep()
        for first, second in structure.problem.precedences:
            for run in self.runs[first]:
                self.model.add(run.start < self.runs[second][0].start).only_enforce_if(run.is_there)
        self._fit(limit)
        self.model.minimize(sum(structure.cost[op] * run.is_there for op, own in enumerate(self.runs) for run in own[1:]))

    def _slot(self, stage: int, op: int) -> int:
        return stage * (stage + 1) // 2 + self._rank[op]

    def _run(self, op: int, number: int) -> _Run:
        model, name = self.model, f"{op} {number}"
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
        if number == 0:
            model.add(is_there == 1)
        model.add(start < self.horizon).only_enforce_if(is_there)
        model.add(start == self.horizon).only_enforce_if(~is_there)
        ends = {}
        for value in self.structure.writes[op]:
            ends[value] = model.new_int_var(0, self.horizon + 1, f"end {name} {value}")
            model.add(ends[value] > start).only_enforce_if(is_there)
            # Otherwise one of many values that mean the same.
            model.add(ends[value] == 0).only_enforce_if(~is_there)
            parent = self.structure.parent[value]
            if parent in ends:
                model.add(ends[parent] >= ends[value])
        return _Run(start, is_there, ends)

    def _read(self, op: int, run: _Run) -> None:
        """Each value that a run needs is of the last run of its writer before, and retained up to there."""
        structure, model = self.structure, self.model
        replaced = {structure.root[value] for value in structure.pairs[op]}
        for value in structure.needs[op]:
            # The operand of a pair may end where its successor begins.
            last = run.start + (0 if structure.root[value] in replaced else 1)
            views = [view for view in structure.writes[op] if structure.parent[view] == value]
            writer = structure.writer[value]
            if writer < 0:
                model.add(self._given[value] >= last).only_enforce_if(run.is_there)
                for view in views:
                    model.add(self._given[value] >= run.ends[view])
                continue
            own = self.runs[writer]
            chosen = [model.new_bool_var("") for _ in own]
            model.add(sum(chosen) == run.is_there)
            for k, (choice, source) in enumerate(zip(chosen, own, strict=True)):
                model.add_implication(choice, source.is_there)
                model.add(source.start < run.start).only_enforce_if(choice)
                model.add(source.ends[value] >= last).only_enforce_if(choice)
                if k + 1 < len(own):
                    model.add(own[k + 1].start > run.start).only_enforce_if(choice)
                for view in views:
                    model.add(source.ends[value] >= run.ends[view]).only_enforce_if(choice)

    def _keep(self) -> None:
        """What stays is of its writer's last run."""
        for value, kept in enumerate(self.structure.kept):
            writer = self.structure.writer[value]
            if kept and writer < 0:
                self.model.add(self._given[value] == self.horizon + 1)
            elif kept:
                own = self.runs[writer]
                for run, after in zip(own, [*own[1:], None], strict=True):
                    is_last = [run.is_there] if after is None else [run.is_there, ~after.is_there]
                    self.model.add(run.ends[value] == self.horizon + 1).only_enforce_if(is_last)

    def _fit(self, limit: int) -> None:
        structure, model, lives = self.structure, self.model, []
        for value, size in enumerate(structure.size):
            if structure.parent[value] >= 0 or not size:
                continue
            if value in self._given:
                lives.append(Life(0, self._given[value], None, size))
            own = self.runs[structure.writer[value]] if structure.writer[value] >= 0 else ()
            lives += [Life(run.start, run.ends[value], run.is_there, size) for run in own]
        spans = {op: (self.runs[op][0].start, self.runs[op][0].start + 1) for op in marks(structure)}
        add_fit(model, lives, limit, structure, spans, self.horizon + 1)

    def add_hint(self, plan: Plan) -> None:
        """Start from a plan, as far as the model has its runs: whether and, where the order is free, when."""
        values: list[tuple[cp_model.IntVar, int]] = []
        times = [0] * self.structure.ops
        for at, op in enumerate(plan.sequence):
            if times[op] < len(self.runs[op]):
                run = self.runs[op][times[op]]
                values += [(run.is_there, 1), *([(run.start, at)] if self.order is None and at < self.horizon else [])]
            times[op] += 1
        for op, own in enumerate(self.runs):
            values += [(run.is_there, 0) for run in own[times[op] :]]
        cpsat_runner.add_hint(self.model, values, complete=False)

    def extract(self, value: Value) -> Plan:
        """Plan of a solution."""
        runs = [(value(run.start), op) for op, own in enumerate(self.runs) for run in own if value(run.is_there)]
        return self.structure.made(op for _, op in sorted(runs))


def _run_counts(structure: Structure, most: int, upper: int | None) -> list[int]:
    """[operators] runs at most: none again that alone cost more than a plan at hand, more of what costs nothing."""
    counts = [1] * structure.ops
    # Readers before what they read: nothing runs more often than it is read.
    for op in reversed(structure.order):
        cost = structure.cost[op]
        count = max(FREE_RUNS, most) if not cost else most if upper is None else min(most, 1 + upper // cost)
        counts[op] = 1 if structure.once[op] else min(count, _reads(structure, op, counts))
    return counts


def _reads(structure: Structure, op: int, runs: list[int]) -> int:
    """Runs of an operator of which each is of use, at most, where those of the others are given."""
    values = structure.writes[op]
    reads = sum(runs[reader] for value in values for reader in structure.readers[value])
    return max(1, reads + any(structure.kept[value] for value in values))


def solve(
    problem: Problem, *, order: list[int] | None = None, runs: int | None = None, **search: Unpack[Search[Plan]]
) -> Outcome[Plan]:
    """A plan of least added cost.

    Parameters
    ----------
    order
        In which operators first run; by default free on graphs of up to :data:`FREE_OPS` operators, else the order given.
    runs
        Of each operator at most; by default as :data:`RUNS` says.
    search
        As :func:`stowplan.models.cpsat_runner.find_plan` takes it.

    Returns
    -------
    Outcome
        ``infeasible`` where the order is free and no operator could be of use more often than it may run; ``optimal`` where
        the bound says so.
    """
    structure = build(problem)
    if structure.ops > MOST_OPS:
        return Outcome("unknown", None, None, f"found {structure.ops} operators, the model takes up to {MOST_OPS}")
    if order is None and structure.ops > FREE_OPS:
        order = structure.order
    hint = search.get("hint")
    most = runs or next(count for ops, count in RUNS if structure.ops <= ops)
    while True:
        counts = _run_counts(structure, most, None if hint is None else hint.objective)
        limit = sum(structure.size) * (max(counts, default=1) + 1) if problem.limit is None else problem.limit
        capped = [op for op in range(structure.ops) if not structure.once[op] and counts[op] < _reads(structure, op, counts)]
        ceiling = min((counts[op] * structure.cost[op] for op in capped), default=1 << 62)
        if order is not None:
            ceiling = 0
        outcome = cpsat_runner.find_plan(Model(structure, limit, counts, order), objective=partial(min, ceiling), **search)
        if outcome.status != "infeasible":
            break
        if order is None and not capped:
            return outcome
        if order is not None or runs is not None or most >= ENOUGH_RUNS:
            return Outcome("unknown", None, None)
        # Nothing fits with so few runs: nothing is proven yet.
        most = ENOUGH_RUNS
    return judged(outcome)


def judged(outcome: Outcome[Plan]) -> Outcome[Plan]:
    """``optimal`` where the bound says so, whatever the solver says of its model."""
    proven = outcome.plan is not None and outcome.bound is not None and outcome.plan.objective <= outcome.bound
    status = "optimal" if proven else "feasible" if outcome.status == "optimal" else outcome.status
    return Outcome(status, outcome.plan, outcome.bound)
