"""Exact models against every map of small random networks."""

from __future__ import annotations

import pytest

from stowplan.hardware.nnp_i.compiler import compiler_plan
from stowplan.models.outcome import Outcome
from stowplan.models.tier_placement import cpsat
from stowplan.models.tier_placement.milp import relaxation, solve_milp
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import find_overload, floor_bound
from stowplan.models.tier_placement.verify import verify
from tests.models.tier_placement import brute_force
from tests.models.tier_placement.cases import random_problem


def _check(problem: Problem, outcome: Outcome, best: int | None) -> None:
    if best is None:
        assert outcome.status == "infeasible"
        assert outcome.plan is None
        return
    assert outcome.status == "optimal"
    assert outcome.plan is not None
    found = verify(problem, outcome.plan)
    assert found.ok, found.violations
    assert found.objective == outcome.plan.objective == outcome.bound == best


@pytest.mark.parametrize("block", range(10))
def test_models_find_the_optimum(block: int) -> None:
    infeasible = 0
    for seed in range(25 * block, 25 * block + 25):
        problem = random_problem(seed, layers=3 if seed % 3 else 4)
        best = brute_force.optimum(problem)
        _check(problem, cpsat.solve(problem, time_limit=20), best)
        _check(problem, solve_milp(problem, time_limit=20), best)
        infeasible += best is None
        if find_overload(problem) is not None:
            assert best is None
        if best is not None:
            assert floor_bound(problem) <= relaxation(problem, time_limit=60.0)[1] <= best
            baseline = compiler_plan(problem)
            if baseline is not None:
                assert verify(problem, baseline).ok
                assert baseline.objective >= best
    assert 0 < infeasible < 25


@pytest.mark.parametrize("block", range(4))
def test_models_find_the_optimum_with_offsets(block: int) -> None:
    gone = 0
    for seed in range(1000 + 25 * block, 1025 + 25 * block):
        problem = random_problem(seed, layers=3, address_spaces=True)
        best = brute_force.optimum(problem)
        _check(problem, cpsat.solve(problem, time_limit=20), best)
        outcome = solve_milp(problem, time_limit=20)
        # The MILP counts bytes only: its bound holds, and its plans have offsets or are not given.
        if best is not None:
            assert outcome.bound <= best
        if outcome.plan is not None:
            assert best is not None
            assert verify(problem, outcome.plan).ok
            gone += outcome.plan.objective > best
        assert outcome.status != "infeasible" or best is None
        baseline = compiler_plan(problem)
        assert baseline is None or verify(problem, baseline).ok
    assert gone <= 2


@pytest.mark.parametrize("seed", range(20))
def test_verifier_judges_every_map(seed: int) -> None:
    problem = random_problem(seed, layers=3)
    for tiers in brute_force.maps(problem):
        latency = brute_force.latency(problem, tiers)
        plan = Plan(problem=problem.digest, objective=latency, weight_tiers=tiers[0], output_tiers=tiers[1])
        found = verify(problem, plan)
        assert found.objective == latency
        assert found.ok == brute_force.fits(problem, tiers)
        assert {violation.code for violation in found.violations} <= {"over_capacity"}
