"""Solving the complete model: first without offsets, then, where no offsets fit its optimum, with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from stowplan.models import cpsat_runner
from stowplan.models.memory_mapping.cpsat.model import MemoryMappingModel
from stowplan.models.memory_mapping.cpsat.variables import BuildStopped
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem

Status = Literal["optimal", "feasible"]

#: Part of the time that is left which may go into finding offsets for a solution that is not optimal.
PACKING_SHARE = 0.2

#: Part of the time in which a problem with stalls is first solved without them, where there is no hint.
STALL_FREE_SHARE = 0.3

#: Probing thousands of literals of residencies and copies takes longer than it saves: 12 s of 40 s at 300 uses.
WITHOUT_PROBING = {"cp_model_probing_level": 0}


class ExactOutcome(NamedTuple):
    """What the exact model found."""

    status: Status
    """``optimal`` only with proof; otherwise ``feasible``, for every problem has the plan that uses no fast memory."""
    plan: Plan
    bound_ps: int
    """Proven lower bound on the objective of every valid plan."""


def solve(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    workers: int = 1,
    seed: int = 0,
    deterministic_limit: float | None = None,
    hint: Plan | None = None,
    lower_bound_ps: int | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ExactOutcome:
    """Best plan of a problem, with a proven bound.

    Parameters
    ----------
    time_limit
        Seconds, building included.
    workers
        Threads of CP-SAT. One worker with a ``deterministic_limit``, and a ``time_limit`` that does not bind, repeats itself.
    deterministic_limit
        Limit in CP-SAT's deterministic seconds, for each of the two models.
    hint
        A valid plan to start from.
    lower_bound_ps
        A proven bound, such as :class:`~stowplan.models.memory_mapping.milp.segments.SegmentBounds` gives.
    on_plan, on_bound
        Called with every better plan and bound, from the solver's threads.
    should_stop
        Asked every 50 ms; True ends the search.

    Returns
    -------
    ExactOutcome
        There always is a plan: that which uses no fast memory.

    Raises
    ------
    NotImplementedError
        See :class:`~stowplan.models.memory_mapping.cpsat.model.MemoryMappingModel`.
    """
    search = _Search(problem, time_limit, workers, seed, deterministic_limit, lower_bound_ps, on_plan, on_bound, should_stop)
    search.offer_plan(
        Plan(problem=problem.digest, program=problem.name, target=problem.target, objective_ps=problem.all_slow_ps)
    )
    if hint is not None:
        search.offer_plan(hint)
    elif problem.stalls == "allowed":
        search.start_without_stalls()
    search.run(offsets=False)
    if not search.is_done:
        search.run(offsets=True)
    return search.outcome()


class _Search:
    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        workers: int,
        seed: int,
        deterministic_limit: float | None,
        lower_bound_ps: int | None,
        on_plan: Callable[[Plan], None] | None,
        on_bound: Callable[[int], None] | None,
        should_stop: Callable[[], bool] | None,
    ):
        self.problem = problem
        self._end = time.monotonic() + time_limit
        self._workers = workers
        self._seed = seed
        self._deterministic_limit = deterministic_limit
        self._on_plan = on_plan
        self._on_bound = on_bound
        self._should_stop = should_stop
        self._lock = threading.Lock()
        self.plan: Plan | None = None
        floor = problem.floor_ps
        self.bound = floor if lower_bound_ps is None else max(floor, lower_bound_ps)

    @property
    def left(self) -> float:
        """Seconds left."""
        return self._end - time.monotonic()

    @property
    def is_done(self) -> bool:
        """Proven optimal, out of time, or told to stop."""
        is_optimal = self.plan is not None and self.plan.objective_ps <= self.bound
        return is_optimal or self.left <= 0 or (self._should_stop is not None and self._should_stop())

    def offer_plan(self, plan: Plan | None) -> None:
        """Keep the plan where it is the best so far."""
        with self._lock:
            if plan is None or (self.plan is not None and plan.objective_ps >= self.plan.objective_ps):
                return
            self.plan = plan
        if self._on_plan is not None:
            self._on_plan(plan)

    def offer_bound(self, bound_ps: int | None) -> None:
        """Keep the bound where it is the best so far, and where the model holds all plans: it has no sliced prefetches."""
        with self._lock:
            if bound_ps is None or bound_ps <= self.bound or self.problem.prefetches == "sliced":
                return
            self.bound = bound_ps
        if self._on_bound is not None:
            self._on_bound(bound_ps)

    def start_without_stalls(self) -> None:
        """Look for a plan without stalls: its model is much the smaller one, and its plans are valid here, at the same cost."""
        if self.is_done:
            return
        outcome = solve(
            msgspec.structs.replace(self.problem, stalls="forbidden"),
            time_limit=STALL_FREE_SHARE * self.left,
            workers=self._workers,
            seed=self._seed,
            deterministic_limit=None if self._deterministic_limit is None else STALL_FREE_SHARE * self._deterministic_limit,
            should_stop=self._should_stop,
        )
        if outcome.plan is not None:
            self.offer_plan(msgspec.structs.replace(outcome.plan, problem=self.problem.digest))

    def run(self, *, offsets: bool) -> None:
        """Solve the model with or without offsets, within what is left of the time."""
        try:
            model = MemoryMappingModel(
                self.problem, offsets=offsets, lower_bound_ps=self.bound, should_stop=lambda: self.is_done
            )
        except BuildStopped:
            return
        if self.plan is not None:
            model.add_hint(self.plan)
        if self.is_done:
            return
        run = cpsat_runner.run(
            model.model,
            time_limit=self.left,
            workers=self._workers,
            seed=self._seed,
            deterministic_limit=self._deterministic_limit,
            parameters=WITHOUT_PROBING,
            on_solution=lambda value: self.offer_plan(model.extract(value, exact=False)),
            on_bound=self.offer_bound,
            should_stop=self._should_stop,
        )
        if run.is_found:
            self.offer_bound(run.bound)
            if run.status == "optimal":
                self.offer_bound(int(run.value(model.objective.expression)))
            limit = max(0.1, self.left if run.status == "optimal" else PACKING_SHARE * self.left)
            self.offer_plan(model.extract(run.value, time_limit=limit))

    def outcome(self) -> ExactOutcome:
        """What was found."""
        assert self.plan is not None
        if self.plan.objective_ps <= self.bound:
            return ExactOutcome("optimal", self.plan, self.plan.objective_ps)
        return ExactOutcome("feasible", self.plan, self.bound)
