"""What any solver of mixed-integer programs found, in one shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stowplan.models.mip.matrix import FloatArray

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
    """Proven by the solver, in floating-point arithmetic: see :func:`lowered`. None where it proved none or says none."""
    seconds: float
    """Building the solver's own copy of the model included."""
    values: FloatArray | None = None
    """Best point found, shape ``[columns]``, checked against the model; None where there is none."""
    duals: FloatArray | None = None
    """For linear programs: a multiplier for each row, positive where its lower side binds; None where the solver gives none."""
    warm_started: bool = False
    """A start was handed to a solver that is known to use it."""


def lowered(bound: float, spread: float) -> float:
    """A bound less what a solver's tolerances may amount to.

    Solvers take rows for satisfied that miss by 1e-6, values for integers that miss by 1e-6, and prune nodes that are better by
    1e-6 or so; branch and bound leaves no certificate to check. A millionth of the objective's whole range is taken off for it,
    which is far more than was ever seen in models scaled to numbers near one.

    Parameters
    ----------
    spread
        How far apart the objectives of good and bad points lie, in the units of ``bound``.
    """
    return bound - 1e-6 * max(1.0, spread) - 1e-9 * abs(bound)
