"""Solving a mixed-integer program by a solver named: which there are, what they take, what they found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stowplan.errors import UsageError
from stowplan.models.mip.matrix import TOLERANCE, FloatArray, MatrixModel

#: Solvers that come with OR-Tools and run in this process.
IN_PROCESS = ("gscip", "mathopt-highs", "cp-sat", "glop", "pdlp")

#: Those of them that know no integers.
LINEAR_ONLY = ("glop", "pdlp")

#: Solvers that prove something only where columns and coefficients are integers.
WHOLE_NUMBERS = ("cp-sat",)


def solvers() -> list[str]:
    """Names of all solvers there are on this machine, those in process first."""
    from stowplan.models.mip import with_pulp

    return [*IN_PROCESS, *with_pulp.available()]


def check_solver(solver: str) -> None:
    """Raise UsageError, naming the solvers that are there, where this one is not."""
    if solver not in IN_PROCESS and solver not in (known := solvers()):
        raise UsageError(f"found solver {solver!r}, expected one that is there: {', '.join(known)}")


Status = Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]


@dataclass(frozen=True)
class Outcome:
    """What a solver found, and what it proved. Smaller objectives are better; offsets of the model are included."""

    solver: str
    status: Status
    """``optimal`` and ``infeasible`` only where the solver proved it; running out of time is neither."""
    objective: float | None
    """Of the best point found; None where there is none."""
    bound: float | None
    """Proven by the solver, in floating-point arithmetic: see :func:`proven`. None where it proved none or says none."""
    seconds: float
    """Building the solver's own copy of the model included."""
    values: FloatArray | None = None
    """Best point found, shape ``[columns]``, checked against the model; None where there is none."""
    duals: FloatArray | None = None
    """For linear programs: a multiplier for each row, positive where its lower side binds; None where the solver gives none."""
    warm_started: bool = False
    """A start was handed to a solver that is known to use it."""


def lowered(bound: float, spread: float, tolerance: float = TOLERANCE) -> float:
    """A bound less what a solver's tolerances may amount to: the one rule for all solvers of MILPs.

    Branch and bound in floating point leaves no certificate to check. Solvers take rows for satisfied that miss by their
    tolerance, values for integers that miss by it, and prune nodes that are better by it or so. The tolerance is taken off as a
    part of the objective's whole range, and for rounding a thousandth of it as a part of the bound itself: far more than was
    ever seen in models scaled to numbers near one.

    Parameters
    ----------
    bound
        As the solver claims it.
    spread
        How far apart the objectives of good and bad points lie, in the units of ``bound``.
    tolerance
        By how much the solver was allowed to miss rows and integers.
    """
    return bound - tolerance * max(1.0, spread) - 1e-3 * tolerance * abs(bound)


def proven(bound: float, spread: float, *, unit: float = 1.0, tolerance: float = TOLERANCE) -> int:
    """The whole number that a claimed bound proves for an objective that is a whole number in every plan.

    :func:`lowered`, in ``unit`` times the units of ``bound``, and rounded up: no whole number lies between.
    """
    return math.ceil(lowered(bound, spread, tolerance) * unit)


def solve(
    model: MatrixModel,
    solver: str,
    *,
    time_limit: float = 30.0,
    seed: int = 0,
    threads: int = 1,
    start: FloatArray | None = None,
    node_limit: int | None = None,
    on_bound: Callable[[float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Minimise ``model`` with a solver by name (:func:`~stowplan.models.mip.solve.solvers` lists them). Nothing is printed.

    Parameters
    ----------
    model
        Without integers it is solved as a linear program.
    time_limit
        Seconds, building the solver's own copy of the model included.
    threads
        For solvers that take a number; the others run on one.
    start
        A point ``[columns]`` to start from, feasible or not.
    node_limit
        Nodes of branch and bound, for GSCIP and MathOpt's HiGHS, which with it, and a time limit that does not bind, give equal
        results in equal calls; the others take no notice.
    on_bound
        Called with better bounds as they come, from CP-SAT and GSCIP; from another thread.
    should_stop
        Asked every few hundredths of a second. Programs are ended (on Linux), and have then found nothing.

    Returns
    -------
    Outcome
        The best point, checked against the model, and what the solver proved.

    Raises
    ------
    UsageError
        No such solver here, or one that knows no integers for a model with them.
    """
    if model.columns == 0:
        return _empty(model, solver)
    if should_stop is not None and should_stop():
        return Outcome(solver, "unknown", None, None, 0.0)
    options: dict[str, Any] = {"time_limit": time_limit, "seed": seed, "threads": threads, "start": start}
    if solver in IN_PROCESS:
        from stowplan.models.mip import with_mathopt

        return with_mathopt.solve(model, solver, **options, node_limit=node_limit, on_bound=on_bound, should_stop=should_stop)
    check_solver(solver)
    from stowplan.models.mip import with_pulp

    return with_pulp.solve(model, solver, **options, should_stop=should_stop)


def _empty(model: MatrixModel, solver: str) -> Outcome:
    """Without columns there is nothing to choose, and solvers disagree about what to say."""
    point = np.zeros(0)
    if model.is_feasible(point):
        return Outcome(solver, "optimal", model.offset, model.offset, 0.0, point)
    return Outcome(solver, "infeasible", None, None, 0.0)
