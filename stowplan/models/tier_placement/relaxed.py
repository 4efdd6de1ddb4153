"""The MILP's linear relaxation: its bound, and its solution as a hint."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.models.hint import Hint
from stowplan.models.mip.with_highs import solve_relaxed
from stowplan.models.tier_placement import hint as hints
from stowplan.models.tier_placement.milp import build
from stowplan.models.tier_placement.problem import Problem


def relaxation(
    problem: Problem, *, time_limit: float, seed: int = 0, should_stop: Callable[[], bool] | None = None
) -> tuple[Hint | None, int]:
    """How much of every tensor the linear relaxation has in each tier, and the latency that its duals prove.

    Parameters
    ----------
    time_limit
        Seconds for HiGHS.
    should_stop
        Asked now and then; True ends HiGHS.

    Returns
    -------
    tuple
        None instead of a hint where HiGHS does not finish, or there is nothing to decide. The bound in ps, in exact
        arithmetic; the floors, where HiGHS does not finish.
    """
    model = build(problem)
    if not model.matrix.columns:
        return None, model.structure.base_ps
    solution = solve_relaxed(model.matrix, seed, time_limit, should_stop)
    found = None
    if solution.value_valid:
        found = hints.hint(problem, model.shares(np.array(solution.col_value)).tolist(), source="relaxation")
    bound = model.dual_bound_ps(np.array(solution.row_dual)) if solution.dual_valid else model.structure.base_ps
    return found, bound
