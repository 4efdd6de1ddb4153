"""Every valid plan is a point of the relaxation, no worse than the plan; in whole numbers, without a solver."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from stowplan.models.memory_mapping.copy_engine import with_whole_copies
from stowplan.models.memory_mapping.milp.hint import add_hint, hint_values
from stowplan.models.memory_mapping.milp.matrix import all_windows, formulate
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import AliasRule, Problem, Stalls
from stowplan.models.memory_mapping.verify import verify
from stowplan.models.mip.solve import solve
from tests.models.memory_mapping.brute_force import best_plan
from tests.models.memory_mapping.cases import planned_problems, random_plan, random_problem
from tests.models.memory_mapping.relaxations import assert_point, objective_ps, violated


@pytest.mark.parametrize("stalls", ["forbidden", "allowed"])
@pytest.mark.parametrize("alias_rule", ["in_place", "uniform"])
@pytest.mark.parametrize("loops", [0, 2])
def test_plans_of_every_rule(stalls: Stalls, alias_rule: AliasRule, loops: int) -> None:
    used = copied = 0
    for seed in range(30):
        rng = random.Random(seed)
        problem = random_problem(rng, stalls=stalls, alias_rule=alias_rule, loops=loops)
        plan = random_plan(problem, rng)
        assert_point(problem, plan)
        used += bool(plan.fast_uses)
        copied += bool(plan.copies)
    assert used > 15
    assert copied > 5


@settings(max_examples=60)
@given(planned_problems(evictions="between_steps", channels=1, stalls="allowed"))
def test_evictions_between_steps(case: tuple[Problem, Plan]) -> None:
    assert_point(*case)


@settings(max_examples=60)
@given(planned_problems(prefetches="sliced", evictions="between_steps", channels=1))
def test_prefetches_in_slices(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    assert_point(problem, plan)
    whole = with_whole_copies(problem, plan)
    assert not any(copy.part for copy in whole.copies)
    assert problem.stalls == "forbidden" or verify(problem, whole).ok


@settings(max_examples=60)
@given(planned_problems())
def test_any_plan(case: tuple[Problem, Plan]) -> None:
    assert_point(*case)


@pytest.mark.parametrize("stalls", ["forbidden", "allowed"])
def test_best_plans(stalls: Stalls) -> None:
    """Optima sit on the edge of what is allowed, where a wrong row would cut first."""
    for seed in range(30):
        problem = random_problem(random.Random(1000 + seed), steps=5, tensors=3, stalls=stalls)
        assert_point(problem, best_plan(problem))


def test_the_all_slow_plan_is_the_objective_of_all_slow() -> None:
    for seed in range(20):
        problem = random_problem(random.Random(seed))
        plan = Plan(problem=problem.digest, objective=problem.all_slow_ps)
        assert assert_point(problem, plan) <= problem.all_slow_ps


def test_a_spoilt_point_is_seen() -> None:
    """The check of feasibility is one: each decision of a point turned over breaks a row, or changes the objective, mostly."""
    seen = turned = 0
    for seed in range(20):
        rng = random.Random(seed)
        problem = random_problem(rng, steps=8, tensors=5)
        model = RelaxationModel(problem)
        formulation = formulate(model, all_windows(model))
        values = hint_values(formulation, random_plan(problem, rng))
        before = objective_ps(formulation, values)
        for column in np.flatnonzero(model.is_integer):
            spoilt = values.copy()
            spoilt[column] = 1 - spoilt[column]
            turned += 1
            seen += bool(violated(formulation, spoilt)) or objective_ps(formulation, spoilt) != before
    assert seen > 0.7 * turned > 50


def test_a_better_capacity_would_be_needed() -> None:
    """A plan that needs more memory than there is breaks rows of the capacity, by name."""
    for seed in range(60):
        rng = random.Random(seed)
        problem = random_problem(rng, steps=8, tensors=6, alias_rule="in_place")
        plan = random_plan(problem, rng)
        most = max((problem.tensors[each.tensor].size for each in plan.residencies), default=0)
        small = msgspec.structs.replace(problem, capacity=most) if most else problem
        model = RelaxationModel(small)
        formulation = formulate(model)
        broken = violated(formulation, hint_values(formulation, plan))
        if any(name.startswith("occupied.s") for name in broken):
            return
    raise AssertionError("no plan needed more than its largest tensor")


@pytest.mark.parametrize("solver", ["gscip", "cbc"])
def test_solvers_take_it_as_a_start(solver: str) -> None:
    rng = random.Random(11)
    problem = random_problem(rng, steps=10, tensors=6)
    plan = random_plan(problem, rng)
    model = RelaxationModel(problem)
    formulation = formulate(model, all_windows(model))
    found = solve(formulation.matrix, solver, start=add_hint(formulation, plan))
    assert found.objective is not None
    assert found.objective * formulation.unit_ps <= plan.objective + 1
