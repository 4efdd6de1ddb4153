"""Guesses in CP-SAT's models: what is fixed or branched on may cost solutions, and never proves anything."""

from __future__ import annotations

import random

import pytest

from stowplan.models import cpsat_runner
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.cpsat import Neighbourhood, improve
from stowplan.models.memory_mapping.cpsat.guess import Guess, branch, fix
from stowplan.models.memory_mapping.cpsat.model import MemoryMappingModel
from stowplan.models.memory_mapping.cpsat.solve import solve
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.plan_timeline import PlanTimeline, ProblemFacts
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from tests.models.memory_mapping.brute_force import best_plan, optimum
from tests.models.memory_mapping.cases import random_plan, random_problem


def small(seed: int) -> Problem:
    return random_problem(random.Random(seed), steps=6, tensors=4, channels=1)


def wrong(problem: Problem, seed: int) -> Hint:
    """Sure of anything: of what a bad plan does, or of nothing at all."""
    rng = random.Random(seed)
    count = hints.counts(problem)["fast"]
    return hints.hint(problem, [rng.choice((0.0, 1.0)) for _ in range(count)], [rng.choice((0.0, 1.0)) for _ in range(count)])


@pytest.mark.parametrize("seed", range(12))
def test_no_guess_proves_anything(seed: int) -> None:
    """Whatever is fixed at first, the optimum is found, and no bound is beyond it."""
    problem = small(seed)
    best = optimum(problem)
    start = Plan(problem=problem.digest, objective_ps=problem.all_slow_ps)
    bounds: list[int] = []
    for guess in (wrong(problem, seed), hints.of_plan(problem, start), hints.of_plan(problem, best_plan(problem))):
        outcome = solve(problem, time_limit=30.0, hint=start, guess=guess, on_bound=bounds.append)
        assert verify(problem, outcome.plan).ok
        assert (outcome.status, outcome.plan.objective_ps, outcome.bound_ps) == ("optimal", best, best)
    assert all(bound <= best for bound in bounds)


@pytest.mark.parametrize("seed", range(12))
def test_what_the_plan_does_stays_possible(seed: int) -> None:
    """Fixed is only what the plan has: the restricted model is never infeasible, and at least as good."""
    rng = random.Random(seed)
    problem = random_problem(rng, steps=10, tensors=6, channels=1)
    plan = random_plan(problem, rng, attempts=20)
    for guess in (wrong(problem, seed), hints.of_plan(problem, plan)):
        model = MemoryMappingModel(problem, offsets=False)
        values = model.add_hint(plan)
        if values is None:
            continue
        said = Guess(model.variables.sequences, guess).said(model.variables)
        assert {literal.index for literal, _ in said} <= {*values}
        assert fix(model.model, said, values) <= len(said)
        run = cpsat_runner.run(model.model, time_limit=30.0)
        assert run.status == "optimal"
        assert int(run.value(model.objective.expression)) <= plan.objective_ps


def test_who_is_not_sure_fixes_nothing() -> None:
    problem = small(3)
    count = hints.counts(problem)["fast"]
    model = MemoryMappingModel(problem, offsets=False)
    doubtful = hints.hint(problem, [1.0] * count, [1.0] * count, confidence=[0.0] * count)
    assert Guess(model.variables.sequences, doubtful).said(model.variables) == []
    values = model.add_hint(Plan(problem=problem.digest, objective_ps=problem.all_slow_ps))
    assert values is not None
    undecided = hints.hint(problem, [0.5] * count, [0.5] * count)
    said = Guess(model.variables.sequences, undecided).said(model.variables)
    assert said
    assert fix(model.model, said, values) == 0


@pytest.mark.parametrize("seed", range(8))
def test_branching_as_a_guess_says_finds_the_optimum(seed: int) -> None:
    problem = small(seed)
    model = MemoryMappingModel(problem, offsets=True)
    parameters = branch(model.model, Guess(model.variables.sequences, wrong(problem, seed)).said(model.variables))
    run = cpsat_runner.run(model.model, time_limit=30.0, parameters=parameters)
    assert run.status == "optimal"
    assert int(run.value(model.objective.expression)) == optimum(problem)


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_neighbourhoods_with_a_guess_give_valid_plans(seed: int, branches: bool) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, steps=20, tensors=8, channels=1)
    plan = random_plan(problem, rng, attempts=20)
    facts = ProblemFacts(problem)
    timeline = PlanTimeline(facts, plan)
    neighbourhood = Neighbourhood(timeline, range(len(problem.tensors)), 0, problem.horizon)
    found = improve(neighbourhood, time_limit=30.0, guess=Guess(facts.sequences, wrong(problem, seed)), branches=branches)
    assert found.plan is not None or found.status in ("empty", "infeasible")
    if found.plan is not None:
        assert PlanTimeline(facts, found.plan, timeline).objective_ps <= plan.objective_ps
