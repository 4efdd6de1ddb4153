"""The quick packing is valid whenever it is stopped."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing import arrays, quick
from stowplan.portfolio.packing.quick import quick_plan
from stowplan.portfolio.packing.search import HeuristicSearch
from tests.models.packing.cases import random_problem
from tests.patience import HANG


def stopped_after(looks: int, problem: Problem) -> tuple[str, Plan] | None:
    left = iter([False] * looks)
    return quick_plan(problem, lambda: next(left, True))


@pytest.mark.parametrize("many", [quick.PARAMS.many, 0])
def test_random_problems(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "PARAMS", msgspec.structs.replace(quick.PARAMS, many=many))
    for seed in range(300):
        problem = random_problem(seed, most=12)
        looks = random.Random(seed).choice([0, 1, 4, 1000])
        found = stopped_after(looks, problem)
        if found is None:
            fixed = [buffer for buffer in problem.buffers if buffer.offset is not None]
            assert len(fixed) > 1  # and they collide
            continue
        source, plan = found
        outcome = verify(problem, plan)
        assert source in ("quick", "greedy")
        assert (outcome.violations, outcome.objective) == ((), plan.objective)
        # As much as it takes is enough, and with less there is no plan.
        assert stopped_after(looks, msgspec.structs.replace(problem, capacity=plan.objective)) is not None
        if plan.objective:
            assert stopped_after(looks, msgspec.structs.replace(problem, capacity=plan.objective - 1)) is None


def test_by_size_it_is_the_greedy_baseline() -> None:
    for seed in range(100):
        problem = random_problem(seed, most=12)
        found = quick_plan(problem)
        if found is None:
            continue
        data = arrays.build(problem)
        if not len(data.size):
            continue
        greedy: list[Plan] = []

        def keep(height: int, offsets: Any, source: str, data: Any = data, greedy: list[Plan] = greedy) -> None:
            if source == "greedy":
                greedy.append(arrays.export_plan(problem, data, offsets))  # noqa: B023

        HeuristicSearch(data, 0, 0, keep, lambda: False).climb_orders([0], "orders", 0)
        assert found == ("greedy", greedy[0])


def test_where_it_meets_the_load_no_worker_is_needed() -> None:
    buffers = tuple(Buffer(id=str(number), lower=number, upper=number + 2, size=8) for number in range(6))
    result = stowplan.solve(Problem(buffers=buffers), time_limit=HANG)
    assert (result.status, result.objective, result.baselines["greedy"]) == ("optimal", 16, 16)
    assert {each.outcome for each in result.candidates if each.name != "search"} == {"skipped"}


def test_no_quick_plan_of_what_takes_longer_to_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(0)
    monkeypatch.setattr(quick, "PARAMS", msgspec.structs.replace(quick.PARAMS, too_many=len(problem.buffers) - 1))
    assert quick_plan(problem) is None
