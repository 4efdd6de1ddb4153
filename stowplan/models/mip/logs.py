"""Dual bounds as solvers print them. PuLP hands back a status and a point, but never what was proven."""

from __future__ import annotations

import math
import re

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"

#: A bound as these solvers end a MILP with it: "Lower bound:" (CBC, where it stops before the optimum, or within a gap that it
#: was told to leave), "Dual bound" (HiGHS, SCIP), ", best bound" (Gurobi), "Current MIP best bound =" (CPLEX).
_BOUND = re.compile(
    rf"(?:^\s*|, |MIP )(?:lower|dual|best) bound\s*[:=]?\s+{_NUMBER}\s*(?:$|,|\()", re.MULTILINE | re.IGNORECASE
)
_FAMILIES = ("cbc", "highs", "scip", "gurobi", "cplex")

_CBC_RESULT = re.compile(r"^Result - (.*?)\s*$", re.MULTILINE)
_CBC_OBJECTIVE = re.compile(rf"^Objective value:\s+{_NUMBER}\s*$", re.MULTILINE)

#: CBC prunes nodes that are better than the incumbent by less than this.
CBC_INCREMENT = 1e-5


def bound_in_log(family: str, text: str) -> float | None:
    """Last dual bound that a log proves, for a minimisation; None where it says none.

    ``family`` is ``cbc``, ``highs``, ``scip``, ``gurobi`` or ``cplex``; of other solvers nothing is known. A printed number is
    lowered by one unit of its last digit, which the solver may have rounded up.
    """
    bounds = _BOUND.findall(text) if family in _FAMILIES else []
    if bounds:
        return rounded_down(bounds[-1])
    if family != "cbc":
        return None
    results, objectives = _CBC_RESULT.findall(text), _CBC_OBJECTIVE.findall(text)
    if results and results[-1] == "Optimal solution found" and objectives:
        return rounded_down(objectives[-1]) - CBC_INCREMENT
    return None


def rounded_down(text: str) -> float:
    """Value of a printed number, less one unit of its last digit."""
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    value = float(text) - 10.0 ** (int(exponent or 0) - digits)
    return math.nextafter(value, -math.inf)


def says_infeasible(family: str, text: str) -> bool:
    """Whether the log itself speaks of a proof of infeasibility and not of a limit; True where the family is not known."""
    if family == "cbc":
        return "infeasible" in text.lower() and "Stopped on" not in text and "Exiting on maximum" not in text
    return True
