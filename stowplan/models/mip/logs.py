"""Dual bounds as solvers print them. PuLP hands back a status and a point, but never what was proven."""

from __future__ import annotations

import math
import re

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"

#: CBC's last word when it stops before the optimum, or within a gap that it was told to leave.
_CBC_BOUND = re.compile(rf"^Lower bound:\s+{_NUMBER}\s*$", re.MULTILINE)
_CBC_RESULT = re.compile(r"^Result - (.*?)\s*$", re.MULTILINE)
_CBC_OBJECTIVE = re.compile(rf"^Objective value:\s+{_NUMBER}\s*$", re.MULTILINE)
#: HiGHS' report at the end of a MILP.
_HIGHS_BOUND = re.compile(rf"^\s*Dual bound\s+{_NUMBER}\s*$", re.MULTILINE)
_SCIP_BOUND = re.compile(rf"^Dual Bound\s+:\s+{_NUMBER}\s*$", re.MULTILINE)
_GUROBI_BOUND = re.compile(rf"best bound {_NUMBER}")
_CPLEX_BOUND = re.compile(rf"^(?:Current MIP b|B)est bound =\s+{_NUMBER}", re.MULTILINE | re.IGNORECASE)

#: CBC prunes nodes that are better than the incumbent by less than this.
CBC_INCREMENT = 1e-5


def bound_in_log(family: str, text: str) -> float | None:
    """Last dual bound that a log proves, for a minimisation; None where it says none.

    ``family`` is ``cbc``, ``highs``, ``scip``, ``gurobi`` or ``cplex``. A printed number is lowered by one unit of its
    last digit, which the solver may have rounded up.
    """
    if family == "cbc":
        return _cbc_bound(text)
    pattern = {"highs": _HIGHS_BOUND, "scip": _SCIP_BOUND, "gurobi": _GUROBI_BOUND, "cplex": _CPLEX_BOUND}.get(family)
    found = pattern.findall(text) if pattern is not None else []
    return rounded_down(found[-1]) if found else None


def _cbc_bound(text: str) -> float | None:
    bounds = _CBC_BOUND.findall(text)
    if bounds:
        return rounded_down(bounds[-1])
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
