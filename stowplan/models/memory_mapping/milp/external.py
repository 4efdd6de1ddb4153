"""The bound of the relaxation by a MILP solver that the user chooses, in this process or as a program that PuLP calls.

A *boundary* is the moment before a step, and a *window* is a row of the relaxation: the copies that must run between two
boundaries take no more than the time of the channels in between. There are too many windows to have all of them from the start.
The linear relaxation is solved with the built-in HiGHS, and the windows that its solutions violate are added. Then the chosen
solver solves the MILP. As long as its solution violates further windows, they are added, and the MILP is solved again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from stowplan.models.memory_mapping.milp.hint import add_hint
from stowplan.models.memory_mapping.milp.matrix import Formulation, formulate, linear_windows
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.solve import MAX_WINDOWS, WINDOW_TOLERANCE
from stowplan.models.memory_mapping.milp.tightening import WindowSeparator
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.mip.solve import check_solver, solve
from stowplan.models.outcome import Best

#: Fraction of the remaining time for the linear relaxation.
LINEAR_SHARE = 0.5


@dataclass(frozen=True)
class ExternalBound:
    """The bound that a solver proved for a memory-mapping problem."""

    bound_ps: int
    """Proven lower bound on the objective of every valid plan, in ps."""
    optimal: bool
    """Whether the MILP was solved to optimality and its solution violates no window, so that this relaxation cannot prove a
    better bound."""
    formulation: Formulation
    """The model that was solved last."""


def bound_with(
    problem: Problem,
    solver: str,
    *,
    time_limit: float = 30.0,
    seed: int = 0,
    plan: Plan | None = None,
    node_limit: int | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ExternalBound:
    """Compute a lower bound for a problem with a solver that is chosen by name.

    Parameters
    ----------
    solver
        Name of the solver; :func:`stowplan.models.mip.solve.solvers` lists the available ones.
    time_limit
        Limit in seconds, including the time to build the model.
    plan
        A valid plan to start from; None for none.
    node_limit
        Largest number of nodes of each MILP, for solvers in this process; None for no limit.
    on_bound
        Called with every better bound in ps, possibly from another thread.
    should_stop
        The search ends when this returns True.

    Returns
    -------
    ExternalBound
        The best bound so far, also if time runs out. It is at least the bound that needs no solver.

    Raises
    ------
    UsageError
        The solver is not available, or it rejects the call.
    """
    check_solver(solver)
    began = time.monotonic()
    model = RelaxationModel(problem)
    best: Best[Plan] = Best(lambda plan: plan.objective, None, on_bound, model.least_ps)

    def left() -> float:
        return began + time_limit - time.monotonic()

    windows = linear_windows(
        model, time_limit=LINEAR_SHARE * left(), seed=seed, should_stop=should_stop, on_bound=best.offer_bound
    )
    separator = WindowSeparator(model)
    formulation = formulate(model, windows, names=False)
    optimal = not model.cost
    tolerance = WINDOW_TOLERANCE * max(1, problem.all_slow_ps)
    while model.cost and left() > 0 and not (should_stop is not None and should_stop()):
        outcome = solve(
            formulation.matrix,
            solver,
            time_limit=left(),
            seed=seed,
            start=None if plan is None else add_hint(formulation, plan),
            node_limit=node_limit,
            on_bound=lambda bound, now=formulation: best.offer_bound(now.bound_ps(bound)),  # type: ignore[misc]
            should_stop=should_stop,
        )
        if outcome.bound is not None:
            best.offer_bound(formulation.bound_ps(outcome.bound))
        if outcome.status != "optimal" or outcome.values is None:
            break
        broken = separator.find(formulation.own_units(outcome.values), tolerance_ps=tolerance, limit=MAX_WINDOWS)
        more = [window for window in broken if window not in windows]
        if not more:
            optimal = True
            break
        windows = [*windows, *more]
        formulation = formulate(model, windows, names=False)
    assert best.bound is not None
    return ExternalBound(best.bound, optimal, formulation)
