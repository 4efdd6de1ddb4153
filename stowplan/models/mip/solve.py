"""Solves mixed-integer linear programs with a solver that is chosen by name, and lists the available solvers.

The program comes as a :class:`~stowplan.models.mip.matrix.MatrixModel`, which the kinds of problems build. To solve it with
another tool, write it to a file (:mod:`~stowplan.models.mip.export`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.errors import UsageError
from stowplan.models.mip.matrix import IN_PROCESS, FloatArray, MatrixModel, Options, Outcome


def solvers() -> list[str]:
    """Names of all solvers that are available on this machine; those that run in this process come first."""
    from stowplan.models.mip import with_pulp

    return [*IN_PROCESS, *with_pulp.available()]


def check_solver(solver: str) -> None:
    """Raise UsageError if a solver is not available; the message names the available ones."""
    if solver not in IN_PROCESS and solver not in (available := solvers()):
        raise UsageError(f"found solver {solver!r}, expected one that is there: {', '.join(available)}")


def solve(
    model: MatrixModel,
    solver: str,
    *,
    time_limit: float = 30.0,
    seed: int = 0,
    start: FloatArray | None = None,
    node_limit: int | None = None,
    on_bound: Callable[[float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Minimize a model on one thread. Nothing is printed.

    Parameters
    ----------
    model
        The model. If no column is an integer, it is solved as a linear program.
    solver
        Name of the solver (:func:`solvers` lists them).
    time_limit
        Limit in seconds, including the time to build the solver's copy of the model.
    seed
        Random seed.
    start
        Values ``[columns]`` to start from; they need not be feasible.
    node_limit
        Largest number of nodes of branch and bound, for solvers in this process; None for no limit. With it, and unless the
        time limit ends the run, equal calls give equal results. Other solvers ignore it.
    on_bound
        Called with better bounds as they are proven, from another thread. Only solvers in this process report bounds.
    should_stop
        Called every few hundredths of a second; the run ends when it returns True. External programs are killed (on Linux) and
        then return no solution.

    Returns
    -------
    Outcome
        The best solution, checked against the model, and the bound that the solver claims. If ``should_stop`` returns True at
        the start, the status is ``unknown``.

    Raises
    ------
    UsageError
        The solver is not available, or MathOpt, which calls ``gscip``, rejects the model or the options. Neither is noticed if
        nothing has to be solved, because the model has no columns or ``should_stop`` returns True at the start.
    """
    if model.columns == 0:
        return _empty(model)
    if should_stop is not None and should_stop():
        return Outcome("unknown", None, None)
    options = Options(time_limit, seed, start, node_limit, on_bound, should_stop)
    if solver == "gscip":
        from stowplan.models.mip import with_mathopt

        return with_mathopt.solve(model, options)
    if solver == "highs":
        from stowplan.models.mip import with_highs

        return with_highs.solve(model, options)
    check_solver(solver)
    from stowplan.models.mip import with_pulp

    return with_pulp.solve(model, solver, options)


def _empty(model: MatrixModel) -> Outcome:
    """The outcome for a model without columns, for which solvers report different results."""
    point = np.zeros(0)
    if model.is_feasible(point):
        return Outcome("optimal", model.offset, model.offset, point)
    return Outcome("infeasible", None, None)
