"""Dual bounds in logs, as CBC prints them."""

from __future__ import annotations

import pytest

from stowplan.models.mip.matrix import rounded_down
from stowplan.models.mip.with_pulp import bound_in_log, says_infeasible

CBC_STOPPED = """Result - Stopped on time limit

Objective value:                -3010.00000000
Lower bound:                    -3252.417
Gap:                            0.08
"""
CBC_DONE = "Result - Optimal solution found\n\nObjective value:                -9.00000000\nEnumerated nodes:               0\n"
CBC_GAP = "Result - Optimal solution found (within gap tolerance)\n\nObjective value: -9.00000000\nLower bound:   -9.100\n"
CBC_NOTHING = "Result - Stopped on time limit\n\nNo feasible solution found\n"


@pytest.mark.parametrize(("text", "bound"), [(CBC_STOPPED, -3252.417), (CBC_DONE, -9.0), (CBC_GAP, -9.1)])
def test_bounds_are_read_and_lowered(text: str, bound: float) -> None:
    found = bound_in_log(text)
    assert found is not None
    assert bound - 0.02 <= found < bound


@pytest.mark.parametrize("text", [CBC_NOTHING, ""])
def test_where_there_is_none_none_is_made(text: str) -> None:
    assert bound_in_log(text) is None


def test_the_last_bound_counts() -> None:
    assert bound_in_log(CBC_STOPPED + CBC_STOPPED.replace("-3252.417", "-3100.5")) == pytest.approx(-3100.5, abs=0.2)


@pytest.mark.parametrize("text", ["-3252.417", "12", "1.5e+03", "-7.25E-2", "0.0", ".5"])
def test_a_printed_number_is_lowered_by_its_last_digit(text: str) -> None:
    assert 0 < float(text) - rounded_down(text) <= 110


def test_stopped_runs_of_cbc_are_not_infeasible() -> None:
    assert says_infeasible("Problem is infeasible - 0.00 seconds")
    assert not says_infeasible("Result - Stopped on time limit\nCbc0006I The LP relaxation is infeasible or too expensive")
