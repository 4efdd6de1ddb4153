"""Verifier and simulator were written apart; they must agree to the picosecond."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem, Stalls
from stowplan.models.memory_mapping.verify import verify
from tests.models.memory_mapping.cases import random_plan, random_problem, with_objective
from tests.models.memory_mapping.mutations import mutants


def check_agreement(problem: Problem, plan: Plan) -> int:
    """Compare both; returns the stalls (ps)."""
    from stowplan.hardware.simulator import simulate

    found, timeline = verify(problem, plan), simulate(problem, plan)
    assert (timeline.total_ps, timeline.stall_ps) == (found.objective, found.figures["stall_ps"])
    return timeline.stall_ps


@pytest.mark.parametrize("stalls", ["forbidden", "allowed"])
def test_same_objective_on_valid_plans(stalls: Stalls) -> None:
    rng = random.Random(f"agree {stalls}")
    stalled = 0
    for _ in range(150):
        problem = random_problem(rng, stalls=stalls)
        stalled += check_agreement(problem, random_plan(problem, rng)) > 0
    assert (stalled > 10) == (stalls == "allowed")


def test_same_objective_on_plans_that_break_rules_but_run() -> None:
    """Windows and orders that no careful planner writes."""
    rng = random.Random("broken")
    compared = 0
    for _ in range(20):
        problem = random_problem(rng, stalls="allowed")
        for what, mutant in mutants(problem, random_plan(problem, rng)):
            if what.startswith(("copies", "fast")) and verify(problem, mutant).objective is not None:
                check_agreement(problem, mutant)
                compared += 1
    assert compared > 200


def test_a_stall_free_plan_costs_the_same_in_both_modes() -> None:
    rng = random.Random("modes")
    copies = 0
    for _ in range(150):
        problem = random_problem(rng, stalls="forbidden")
        plan = random_plan(problem, rng)
        allowed = msgspec.structs.replace(problem, stalls="allowed")
        same = msgspec.structs.replace(plan, problem=allowed.digest)
        assert verify(allowed, same).ok
        assert with_objective(allowed, same).objective == plan.objective
        assert check_agreement(allowed, same) == 0
        copies += len(plan.copies)
    assert copies > 50
