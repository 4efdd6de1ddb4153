"""The relaxation's bound by a MILP solver of one's choice: in this process, or any program that PuLP can call.

The linear relaxation always runs on the built-in HiGHS, which finds the windows that matter; then the named solver takes the
MILP, and takes it again with the windows that its solution violates. GLOP and PDLP take the linear relaxation instead,
and their duals prove the bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from stowplan.models.memory_mapping.milp.hint import add_hint
from stowplan.models.memory_mapping.milp.matrix import Formulation, formulate, linear_windows
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.solve import MAX_WINDOWS, WINDOW_TOLERANCE
from stowplan.models.memory_mapping.milp.windows import WindowSeparator
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.mip.matrix import FloatArray
from stowplan.models.mip.outcome import Outcome
from stowplan.models.mip.solve import solve
from stowplan.models.mip.solvers import LINEAR_ONLY, WHOLE_NUMBERS, check_solver

#: Part of the time for the linear relaxation.
LINEAR_SHARE = 0.5


@dataclass(frozen=True)
class ExternalBound:
    """What a solver proved about a memory-mapping problem."""

    bound_ps: int
    """Proven: no valid plan is faster."""
    linear_ps: int
    """What the linear relaxation proved before, on the built-in HiGHS."""
    optimal: bool
    """Solved to the end, and the solution violates no window: this relaxation has no better bound."""
    values: FloatArray | None
    """Best point of the last round in the model's own units, shape ``[columns]``; None where there was none."""
    formulation: Formulation
    """The last round's model."""
    outcomes: tuple[Outcome, ...]
    """One for each round of the MILP."""
    seconds: float


def bound_with(
    problem: Problem,
    solver: str,
    *,
    time_limit: float = 30.0,
    seed: int = 0,
    threads: int = 1,
    plan: Plan | None = None,
    node_limit: int | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ExternalBound:
    """Bound a problem from below with a solver by name (:func:`stowplan.models.mip.solvers.solvers` lists those there are).

    Parameters
    ----------
    time_limit
        Seconds, building included.
    plan
        A valid plan to start from.
    node_limit
        Nodes of each MILP, for solvers in process.
    on_bound
        Called with every better bound, in ps; now and then from another thread.
    should_stop
        Asked now and then.

    Returns
    -------
    ExternalBound
        The bound, the last model and point, and every answer of the solver.

    Raises
    ------
    UsageError
        The solver is not there.
    """
    check_solver(solver)
    began = time.monotonic()
    model = RelaxationModel(problem)
    best = model.floor_until[-1] if model.cost else model.offset_ps

    def offer(bound: int) -> None:
        nonlocal best
        if bound > best:
            best = bound
            if on_bound is not None:
                on_bound(bound)

    def left() -> float:
        return began + time_limit - time.monotonic()

    windows = linear_windows(model, time_limit=LINEAR_SHARE * left(), seed=seed, should_stop=should_stop, on_bound=offer)
    linear = best
    separator = WindowSeparator(model)
    formulation = formulate(model, windows, names=False, whole=solver in WHOLE_NUMBERS)
    outcomes: list[Outcome] = []
    values: FloatArray | None = None
    optimal = not model.cost
    is_linear = solver in LINEAR_ONLY
    tolerance = WINDOW_TOLERANCE * max(1, problem.all_slow_ps)
    while model.cost and left() > 0 and not (should_stop is not None and should_stop()):
        outcome = solve(
            formulation.matrix.relaxed() if is_linear else formulation.matrix,
            solver,
            time_limit=left(),
            seed=seed,
            threads=threads,
            start=None if plan is None else add_hint(formulation, plan),
            node_limit=node_limit,
            on_bound=lambda bound, now=formulation: offer(now.bound_ps(bound)),  # type: ignore[misc]
            should_stop=should_stop,
        )
        outcomes.append(outcome)
        if is_linear and outcome.duals is not None:
            offer(formulation.dual_bound_ps(outcome.duals))
        elif outcome.bound is not None:
            offer(formulation.bound_ps(outcome.bound))
        values = None if outcome.values is None else formulation.own_units(outcome.values)
        if outcome.status != "optimal" or values is None:
            break
        found = separator.find(values, tolerance_ps=tolerance, limit=MAX_WINDOWS)
        more = [window for window in found if window not in formulation.windows]
        if not more:
            optimal = True
            break
        windows = [*windows, *more]
        formulation = formulate(model, windows, names=False, whole=solver in WHOLE_NUMBERS)
    return ExternalBound(best, linear, optimal, values, formulation, tuple(outcomes), time.monotonic() - began)
