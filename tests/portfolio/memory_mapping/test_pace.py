"""When ruin and recreate makes way for a second large-neighbourhood search."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stowplan.kernel.context import Options
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping.kind import KIND
from stowplan.portfolio.memory_mapping.pace import PARAMS, Stagnation, ends_on_stagnation, is_large
from tests.portfolio.memory_mapping.states import wide_problem


@pytest.fixture(scope="module")
def large() -> Problem:
    problem = wide_problem(1)
    return msgspec.structs.replace(problem, steps=problem.steps * (1 + PARAMS.large_uses // problem.use_count))


def names(problem: Problem, **options: Any) -> list[str]:
    return [each.name for each in KIND.candidates(problem, Options(**options))]


def test_large_programs_have_a_second_one_in_a_place_that_is_left(large: Problem) -> None:
    last = KIND.candidates(large, Options())[-1]
    assert (last.name, last.family, last.turn) == ("lns2", "exact", "reserve")
    assert "lns2" in names(large, workers=8)
    assert "lns2" not in names(large, workers=1)
    assert "lns2" not in names(large, deterministic=True)
    assert "lns2" not in names(wide_problem(1))


def test_the_search_ends_only_where_somebody_waits(large: Problem) -> None:
    assert ends_on_stagnation(large, Options(workers=2))
    assert ends_on_stagnation(large, Options(workers=3, candidates=("search", "lns2")))
    assert is_large(large, Options(workers=4))
    for options in ({"workers": 1}, {"workers": 4}, {"deterministic": True}, {"candidates": ("heuristic", "lns")}):
        assert not ends_on_stagnation(large, Options(**options))
    assert not ends_on_stagnation(wide_problem(1), Options(workers=2))


def test_it_stands_still_where_it_would_not_close_enough_of_the_gap() -> None:
    found = Stagnation(100.0)
    found.add(10)
    assert not found.is_reached(100.0 + PARAMS.seconds / 2, 10.0, 10**9)
    # 20 in each of ten seconds: 200 of the gap.
    found.add(int(20 * PARAMS.seconds) - 10)
    assert not found.is_reached(100.0 + PARAMS.seconds, 10.0, int(200 / PARAMS.least_part))
    # What was gained before does not count again.
    assert not found.is_reached(100.0 + PARAMS.seconds, 10.0, int(200 / PARAMS.least_part))
    found.add(int(20 * PARAMS.seconds))
    assert found.is_reached(100.0 + 2 * PARAMS.seconds, 10.0, int(200 / PARAMS.least_part) + 1)
    assert found.is_reached(100.0 + 3 * PARAMS.seconds, 10.0, 1)


def test_where_the_gap_is_closed_there_is_nothing_to_wait_for() -> None:
    assert not Stagnation(0.0).is_reached(2 * PARAMS.seconds, 10.0, 0)
