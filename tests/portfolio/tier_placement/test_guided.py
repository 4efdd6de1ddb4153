"""Maps that follow hints, and how the search takes hints up."""

from __future__ import annotations

import random

import pytest

import stowplan
from stowplan.models.tier_placement import hint as hints
from stowplan.models.tier_placement.plan import placed
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio.tier_placement import arrays, candidates, heuristics
from stowplan.portfolio.tier_placement.arrays import Exporter
from stowplan.portfolio.tier_placement.heuristics import best_guided
from tests.kernel.recorder import Recorder
from tests.models.tier_placement.cases import chain, random_problem


def never() -> bool:
    return False


def follow(problem: Problem, hint: hints.Hint) -> tuple[arrays.Data, arrays.Ints, heuristics.Walk | None]:
    data = arrays.build(problem)
    begin = heuristics.any_map(data)
    assert begin is not None
    return data, begin, best_guided(problem, data, hint, begin, never)


@pytest.mark.parametrize("count", [3, 8, 20])
def test_the_values_of_a_plan_give_that_plan(count: int) -> None:
    problem = chain(count)
    best = stowplan.solve(problem, time_limit=10, candidates="exact").plan
    data, _, walk = follow(problem, hints.of_plan(problem, best))
    assert walk is not None
    assert walk.latency == best.objective
    assert list(walk.tier) == list(arrays.import_plan(data, best))


def test_any_values_give_a_valid_map_or_none() -> None:
    followed = 0
    for seed in range(200):
        problem = random_problem(seed, layers=6)
        chance = random.Random(seed)
        count = len(placed(problem))
        shares, sure = [[chance.choice((0, 0, 1, chance.random())) for _ in range(count)] for _ in range(4)], chance.random()
        hint = hints.hint(problem, shares[: len(problem.tiers)], confidence=[sure] * count)
        data = arrays.build(problem)
        begin = heuristics.any_map(data)
        if begin is None:
            continue
        walk = best_guided(problem, data, hint, begin, never)
        if sure < 0.5:
            assert walk is not None
            assert list(walk.tier) == list(begin)
        if walk is not None:
            plan = Exporter(problem, data).plan(walk.tier)
            assert plan is not None
            assert verify(problem, plan).ok
            assert plan.objective == walk.latency
            followed += 1
    assert followed > 100


def test_the_search_follows_the_hint_of_another_candidate() -> None:
    problem = chain(20)
    best = stowplan.solve(problem, time_limit=10, candidates="exact").plan
    context = Recorder(looks=3, deterministic=False, time_limit=10)
    context.known = (hints.of_plan(problem, best),)
    candidates.search(problem, context)
    guided = [plan.objective for plan, source in context.plans if source == "guided"]
    assert guided == [best.objective]


def test_linear_offers_its_solution() -> None:
    context = Recorder()
    candidates.linear(chain(20), context)
    assert [hint.source for hint in context.given] == ["relaxation"]
    assert context.bounds
