"""Solving the complete model: first without offsets, then, where no offsets fit its optimum, with them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.cpsat.model import MemoryMappingModel
from stowplan.models.memory_mapping.cpsat.variables import BuildStopped
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem

Status = Literal["optimal", "feasible"]

#: Seconds between two looks at ``should_stop``.
POLL_SECONDS = 0.05

#: Part of the time that is left which may go into finding offsets for a solution that is not optimal.
PACKING_SHARE = 0.2

#: Part of the time in which a problem with stalls is first solved without them, where there is no hint.
STALL_FREE_SHARE = 0.3

#: Relative error of objective bounds in floating point; picoseconds of a second are far below its reciprocal.
FLOAT_ERROR = 1e-15


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
        A proven bound, such as :func:`~stowplan.models.memory_mapping.milp.relaxation_bound` gives.
    on_plan, on_bound
        Called with every better plan and bound, from the solver's threads.
    should_stop
        Asked every 50 ms; True ends the search.

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
        floor = sum(step.weight * step.floor_ps for step in problem.steps)
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

    def offer_plan(self, plan: Plan) -> None:
        """Keep the plan where it is the best so far."""
        with self._lock:
            if self.plan is not None and plan.objective_ps >= self.plan.objective_ps:
                return
            self.plan = plan
        if self._on_plan is not None:
            self._on_plan(plan)

    def offer_bound(self, bound_ps: int) -> None:
        """Keep the bound where it is the best so far."""
        with self._lock:
            if bound_ps <= self.bound:
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
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self._workers
        solver.parameters.random_seed = self._seed % (1 << 31)
        solver.parameters.max_time_in_seconds = max(0.01, self.left)
        # Probing thousands of literals of residencies and copies takes longer than it saves: 12 s of 40 s at 300 uses.
        solver.parameters.cp_model_probing_level = 0
        if self._deterministic_limit is not None:
            solver.parameters.max_deterministic_time = self._deterministic_limit
        # CP-SAT works in integers, but reports the bound as a float.
        solver.best_bound_callback = lambda bound: self.offer_bound(_integer_bound(bound))
        collector = _Collector(self, model)
        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(solver, stop), daemon=True)
        watcher.start()
        try:
            status = solver.solve(model.model, collector)
        finally:
            stop.set()
            watcher.join()
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.offer_bound(_integer_bound(solver.best_objective_bound))
            if status == cp_model.OPTIMAL:
                self.offer_bound(int(solver.value(model.objective.expression)))
            limit = max(0.1, self.left if status == cp_model.OPTIMAL else PACKING_SHARE * self.left)
            plan = model.extract(solver.value, time_limit=limit)
            if plan is not None:
                self.offer_plan(plan)

    def _watch(self, solver: cp_model.CpSolver, stop: threading.Event) -> None:
        while self._should_stop is not None and not stop.wait(POLL_SECONDS):
            if self._should_stop():
                solver.stop_search()
                return

    def outcome(self) -> ExactOutcome:
        """What was found."""
        assert self.plan is not None
        if self.plan.objective_ps <= self.bound:
            return ExactOutcome("optimal", self.plan, self.plan.objective_ps)
        return ExactOutcome("feasible", self.plan, self.bound)


class _Collector(cp_model.CpSolverSolutionCallback):
    """Makes plans of solutions as they are found, where offsets are found at once."""

    def __init__(self, search: _Search, model: MemoryMappingModel):
        super().__init__()
        self._search = search
        self._model = model

    def on_solution_callback(self) -> None:
        """Offer the solution's plan."""
        plan = self._model.extract(self.value, exact=False)
        if plan is not None:
            self._search.offer_plan(plan)


def _integer_bound(bound: float) -> int:
    """Integer bound from CP-SAT's, which stands for an integer but comes as a float, with the errors of its scaling."""
    nearest = round(bound)
    return nearest if abs(bound - nearest) <= FLOAT_ERROR * max(1.0, abs(bound)) else math.floor(bound)
