"""Dual bounds in logs, as each solver prints them."""

from __future__ import annotations

import pytest

from stowplan.models.mip.outcome import rounded_down
from stowplan.models.mip.with_pulp import bound_in_log, says_infeasible

CBC_STOPPED = """Result - Stopped on time limit

Objective value:                -3010.00000000
Lower bound:                    -3252.417
Gap:                            0.08
"""
CBC_DONE = "Result - Optimal solution found\n\nObjective value:                -9.00000000\nEnumerated nodes:               0\n"
CBC_GAP = "Result - Optimal solution found (within gap tolerance)\n\nObjective value: -9.00000000\nLower bound:   -9.100\n"
CBC_NOTHING = "Result - Stopped on time limit\n\nNo feasible solution found\n"
HIGHS = (
    "Solving report\n  Status       Time limit reached\n  Primal bound      -3042\n  Dual bound        -3248.25\n  Gap 6.5%\n"
)
SCIP = "Primal Bound       : -3.06700000000000e+03 (138 solutions)\nDual Bound         : -3.24139259478823e+03\nGap : 5.69 %\n"
GUROBI = "Best objective 3.0e+01, best bound 2.900000000000e+01, gap 3.3333%\n"
CPLEX = "Current MIP best bound =  2.9750000000e+01 (gap = 0.25, 0.8%)\n"


@pytest.mark.parametrize(
    ("family", "text", "bound"),
    [
        ("cbc", CBC_STOPPED, -3252.417),
        ("cbc", CBC_DONE, -9.0),
        ("cbc", CBC_GAP, -9.1),
        ("highs", HIGHS, -3248.25),
        ("scip", SCIP, -3241.39259478823),
        ("gurobi", GUROBI, 29.0),
        ("cplex", CPLEX, 29.75),
    ],
)
def test_bounds_are_read_and_lowered(family: str, text: str, bound: float) -> None:
    found = bound_in_log(family, text)
    assert found is not None
    assert bound - 0.02 <= found < bound


@pytest.mark.parametrize(
    ("family", "text"),
    [("cbc", CBC_NOTHING), ("cbc", ""), ("highs", "  Dual bound        -inf\n"), ("glpk", "Dual bound 3"), ("", SCIP)],
)
def test_where_there_is_none_none_is_made(family: str, text: str) -> None:
    assert bound_in_log(family, text) is None


def test_the_last_bound_counts() -> None:
    assert bound_in_log("highs", HIGHS + HIGHS.replace("-3248.25", "-3100.5")) == pytest.approx(-3100.5, abs=0.2)


@pytest.mark.parametrize("text", ["-3252.417", "12", "1.5e+03", "-7.25E-2", "0.0", ".5"])
def test_a_printed_number_is_lowered_by_its_last_digit(text: str) -> None:
    assert 0 < float(text) - rounded_down(text) <= 110


def test_stopped_runs_of_cbc_are_not_infeasible() -> None:
    assert says_infeasible("cbc", "Problem is infeasible - 0.00 seconds")
    assert not says_infeasible(
        "cbc", "Result - Stopped on time limit\nCbc0006I The LP relaxation is infeasible or too expensive"
    )
