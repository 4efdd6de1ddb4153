"""``stowplan.verify`` checks a plan of any kind from Python."""

from __future__ import annotations

import msgspec
import pytest

import stowplan
from stowplan.models.packing.problem import Buffer, Problem
from tests.models.rematerialization.cases import limited

BUFFERS = (Buffer(id="a", lower=0, upper=3, size=64), Buffer(id="b", lower=2, upper=5, size=32))


def test_a_plan_of_solve_is_valid() -> None:
    result = stowplan.solve(Problem(buffers=BUFFERS), time_limit=5)
    check = stowplan.verify(result.problem, result.plan)
    assert (check.ok, check.objective, check.violations) == (True, 96, ())


def test_broken_rules_are_listed() -> None:
    problem = Problem(buffers=BUFFERS, capacity=100)
    plan = stowplan.solve(problem, time_limit=5).plan
    assert plan is not None
    check = stowplan.verify(problem, msgspec.structs.replace(plan, offsets=(0, 80)))
    assert not check.ok
    assert {violation.code for violation in check.violations} == {"over_capacity", "wrong_objective"}


def test_what_is_no_problem_or_no_plan_of_its_kind_is_refused() -> None:
    problem = Problem(buffers=BUFFERS)
    plan = stowplan.solve(problem, time_limit=5).plan
    with pytest.raises(stowplan.UsageError, match="found a str, expected a plan of packing"):
        stowplan.verify(problem, "plan.json")
    with pytest.raises(stowplan.UsageError, match="found a plan of packing, expected a plan of rematerialization"):
        stowplan.verify(limited(0), plan)
    with pytest.raises(stowplan.UsageError, match="expected a problem"):
        stowplan.verify("model.onnx", plan)
