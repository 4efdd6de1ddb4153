"""Mixed-integer linear programs, solved by every solver that a user may own for them: which there are by name, and a call.

Each kind of problem makes a :class:`~stowplan.models.mip.matrix.MatrixModel`. :mod:`~stowplan.models.mip.export` writes it to a
file instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.errors import UsageError
from stowplan.models.mip.matrix import IN_PROCESS, FloatArray, MatrixModel, Options, Outcome


def solvers() -> list[str]:
    """Names of all solvers there are on this machine, those in process first."""
    from stowplan.models.mip import with_pulp

    return [*IN_PROCESS, *with_pulp.available()]


def check_solver(solver: str) -> None:
    """Raise UsageError, naming the solvers that are there, where this one is not."""
    if solver not in IN_PROCESS and solver not in (known := solvers()):
        raise UsageError(f"found solver {solver!r}, expected one that is there: {', '.join(known)}")


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
    """Minimise ``model`` with a solver by name (:func:`solvers` lists them), on one thread. Nothing is printed.

    Parameters
    ----------
    model
        Without integers it is solved as a linear program.
    time_limit
        Seconds, building the solver's own copy of the model included.
    start
        A point ``[columns]`` to start from, feasible or not.
    node_limit
        Nodes of branch and bound, for the solvers in process, which with it, and a time limit that does not bind, give equal
        results in equal calls; the others take no notice.
    on_bound
        Called with better bounds as they come, from the solvers in process; from another thread.
    should_stop
        Asked every few hundredths of a second. Programs are ended (on Linux), and have then found nothing.

    Returns
    -------
    Outcome
        The best point, checked against the model, and what the solver proved.

    Raises
    ------
    UsageError
        No such solver here.
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
    """Without columns there is nothing to choose, and solvers disagree about what to say."""
    point = np.zeros(0)
    if model.is_feasible(point):
        return Outcome("optimal", model.offset, model.offset, point)
    return Outcome("infeasible", None, None)
