"""The MILP restricted to what lies around a plan: an integral guess, which constructions follow.

Two ways to restrict it: columns are fixed where the linear relaxation and the plan agree (Danna, Rothberg and Le Pape,
Mathematical Programming 102, 2005), or only so many decisions may differ from the plan's (*local branching*: Fischetti and
Lodi, Mathematical Programming 98, 2003). The solver starts from the plan. Offsets and the order of copies are no part of the
MILP, so what it finds is a guess, and what it proves of the restricted model says nothing of all plans: no bound leaves this
module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
from scipy import sparse

from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.milp.guide import of_values
from stowplan.models.memory_mapping.milp.hint import add_hint
from stowplan.models.memory_mapping.milp.matrix import Formulation
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.mip.matrix import FloatArray, MatrixModel
from stowplan.models.mip.solve import solve

#: A column of the relaxation agrees with a plan's where it is within so much of it.
AGREES = 0.1


def guess_around(
    formulation: Formulation,
    plan: Plan,
    *,
    relaxed: FloatArray | None = None,
    radius: int | None = None,
    solver: str = "highs",
    time_limit: float,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> Hint | None:
    """A hint with what the restricted MILP's best point decides.

    Parameters
    ----------
    formulation
        The relaxation with the windows that its linear solution needs.
    plan
        A valid plan; the solver starts from it.
    relaxed
        Point of the linear relaxation in the model's own units, shape ``[columns]``: columns on which it and the plan agree
        are fixed.
    radius
        So many decisions may be other than the plan's.
    solver
        By name (:func:`stowplan.models.mip.solvers.solvers`).

    Returns
    -------
    Hint or None
        None where nothing better than the plan was found in time.
    """
    start = add_hint(formulation, plan)
    matrix = formulation.matrix
    if relaxed is not None:
        matrix = _fixed(matrix, start, relaxed / formulation.scale)
    if radius is not None:
        matrix = _near(matrix, start, radius)
    outcome = solve(matrix, solver, time_limit=time_limit, seed=seed, start=start, should_stop=should_stop)
    if outcome.values is None or matrix.objective(outcome.values) >= matrix.objective(start):
        return None
    hint = of_values(formulation.model, formulation.own_units(outcome.values))
    return msgspec.structs.replace(hint, source="milp")


def _fixed(matrix: MatrixModel, start: FloatArray, relaxed: FloatArray) -> MatrixModel:
    """Integer columns on which both agree have one value only."""
    agreed = matrix.is_integer & (np.abs(start - relaxed) <= AGREES)
    return replace(matrix, lower=np.where(agreed, start, matrix.lower), upper=np.where(agreed, start, matrix.upper))


def _near(matrix: MatrixModel, start: FloatArray, radius: int) -> MatrixModel:
    """One row more: of the columns that are 0 or 1, only so many are other than in the start."""
    binary = matrix.is_integer & (matrix.lower == 0) & (matrix.upper == 1)
    is_one = binary & (start > 0.5)
    row = sparse.csr_matrix(np.where(is_one, -1.0, binary.astype(float)))
    return replace(
        matrix,
        matrix=sparse.vstack([matrix.matrix, row], format="csr"),
        row_lower=np.append(matrix.row_lower, -np.inf),
        row_upper=np.append(matrix.row_upper, radius - int(is_one.sum())),
        row_names=[*matrix.row_names, "around"] if matrix.row_names else (),
    )
