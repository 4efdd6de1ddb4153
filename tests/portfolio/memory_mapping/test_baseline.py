"""The stronger of two greedies is what policies are judged against."""

from __future__ import annotations

import random

import msgspec
import pytest

from benchmarks.lib.memory_mapping.greedies import AS_ALLOWED, greedies, stronger_greedy
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping.heuristics import WITHOUT_STALLS, without_stalls
from tests.models.memory_mapping.cases import random_problem


@pytest.mark.parametrize("seed", range(6))
def test_both_are_plans_of_the_problem_and_the_better_one_counts(seed: int) -> None:
    problem = msgspec.structs.replace(random_problem(random.Random(seed), steps=8, tensors=6), stalls="allowed")
    found = greedies(problem)
    assert list(found) == [AS_ALLOWED, WITHOUT_STALLS]
    for plan in found.values():
        checked = verify(problem, plan)
        assert checked.ok, checked.violations
        assert checked.objective == plan.objective
    name, best = stronger_greedy(problem)
    assert best.objective == min(plan.objective for plan in found.values()) == found[name].objective
    assert without_stalls(problem) == (WITHOUT_STALLS, found[WITHOUT_STALLS].objective)


def test_where_stalls_are_forbidden_there_is_one() -> None:
    problem = msgspec.structs.replace(random_problem(random.Random(0), steps=8, tensors=6), stalls="forbidden")
    assert list(greedies(problem)) == [AS_ALLOWED]
    assert without_stalls(problem)[1] == stronger_greedy(problem)[1].objective


def test_a_stopped_greedy_is_no_baseline() -> None:
    problem = random_problem(random.Random(0), steps=8, tensors=6)
    assert without_stalls(problem, lambda: True)[1] == float("inf")
