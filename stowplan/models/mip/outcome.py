"""What any solver of mixed-integer programs found, in one shape; and which solvers there are in this process."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stowplan.models.mip.matrix import TOLERANCE, FloatArray

Status = Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]

#: Solvers that run in this process.
IN_PROCESS = ("gscip", "highs")


@dataclass(frozen=True)
class Options:
    """How to solve: the parameters of :func:`stowplan.models.mip.solve.solve`, which says what they mean."""

    time_limit: float = 30.0
    seed: int = 0
    start: FloatArray | None = None
    node_limit: int | None = None
    on_bound: Callable[[float], None] | None = None
    should_stop: Callable[[], bool] | None = None


@dataclass(frozen=True)
class Outcome:
    """What a solver found, and what it proved. Smaller objectives are better; offsets of the model are included."""

    status: Status
    """``optimal`` and ``infeasible`` only where the solver proved it; running out of time is neither."""
    objective: float | None
    """Of the best point found; None where there is none."""
    bound: float | None
    """Proven by the solver, in floating-point arithmetic: see :func:`proven`. None where it proved none or says none."""
    values: FloatArray | None = None
    """Best point found, shape ``[columns]``, checked against the model; None where there is none."""


def lowered(bound: float, spread: float, tolerance: float = TOLERANCE) -> float:
    """A bound less what a solver's tolerances may amount to: the one rule for all solvers of MILPs.

    Branch and bound in floating point leaves no certificate to check. Solvers take rows for satisfied that miss by their
    tolerance, values for integers that miss by it, and prune nodes that are better by it or so. The tolerance is taken off as
    a part of the objective's whole range. For rounding, a thousandth of it is taken off as a part of the bound itself: far
    more than was ever seen in models scaled to numbers near one.

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


def rounded_down(text: str) -> float:
    """Value of a printed number, less one unit of its last digit."""
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    value = float(text) - 10.0 ** (int(exponent or 0) - digits)
    return math.nextafter(value, -math.inf)
