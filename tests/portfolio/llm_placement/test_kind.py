"""The candidates of LLM placement, and the rule of llama.cpp's ``--fit``."""

from __future__ import annotations

import msgspec
import pytest

import stowplan
from stowplan.models.llm_placement import cpsat
from stowplan.models.llm_placement.problem import HOST, Problem
from stowplan.models.llm_placement.verify import verify
from stowplan.portfolio.llm_placement.enumeration import orders, plans
from stowplan.portfolio.llm_placement.fit import fit_plan, split
from tests.kernel.conftest import AMPLE
from tests.models.llm_placement.cases import least_time, random_problem


def test_solving_finds_the_optimum() -> None:
    solved = 0
    for seed in range(12):
        problem = random_problem(seed, most=3)
        best = least_time(problem)
        result = stowplan.solve(problem, time_limit=AMPLE)
        assert result.status == ("infeasible" if best is None else "optimal"), seed
        assert result.objective == best, seed
        solved += best is not None
    assert solved > 6


def test_the_enumeration_is_near_the_optimum() -> None:
    worst = 0.0
    for seed in range(200):
        problem = random_problem(seed, most=6)
        found = list(plans(problem, lambda: False))
        times = [plan.objective for plan in found]
        assert times == sorted(times, reverse=True), seed
        assert all(verify(problem, plan).ok for plan in found), seed
        best = cpsat.solve(problem, time_limit=AMPLE).plan if seed < 60 else None
        if best is not None and found:
            worst = max(worst, found[-1].objective / best.objective)
    assert worst < 1.1


def test_like_devices_stand_for_each_other() -> None:
    problem = next(problem for problem in map(random_problem, range(99)) if len(problem.devices) == 2)
    first = problem.devices[0]
    twins = msgspec.structs.replace(problem, devices=(first, msgspec.structs.replace(first, name="twin")))
    assert orders(problem) == [(), (1,), (2,), (1, 2), (2, 1)]
    assert orders(twins) == [(), (1,), (1, 2)]


def test_the_default_split() -> None:
    # Layers 0 to 6 of 8 in shares of 3 to 1: as std::upper_bound does, a layer on a border goes to the next device.
    assert split(8, [3, 1], 8) == [1, 1, 1, 1, 1, 1, 2, 2]
    assert split(8, [3, 1], 4) == [0, 0, 0, 0, 1, 1, 1, 2]
    assert split(3, [0, 1], 99) == [2, 2, 2]


def _example(**changes: object) -> Problem:
    problem = stowplan.read("examples/data/llm.json")
    assert isinstance(problem, Problem)
    return msgspec.structs.replace(problem, **changes)


def test_fit_leaves_what_fits() -> None:
    large = tuple(msgspec.structs.replace(device, capacity=1 << 36) for device in _example().devices)
    problem = _example(devices=large)
    plan = fit_plan(problem)
    assert plan is not None
    assert plan.memories == (1,) * 17 + (2,) * 16
    assert verify(problem, plan).ok


def test_fit_fills_from_the_back() -> None:
    problem = _example()
    plan = fit_plan(problem)
    assert plan is not None
    assert verify(problem, plan).ok
    assert plan.memories[-1] == 2
    assert plan.memories[0] == HOST
    assert not any(plan.spilled)
    # One layer more on the last device would not fit.
    first = plan.memories.index(2)
    more = msgspec.structs.replace(plan, memories=(*plan.memories[: first - 1], 2, *plan.memories[first:]))
    assert "over_capacity" in {violation.code for violation in verify(problem, more).violations}


def test_fit_of_experts_fills_from_the_front() -> None:
    problem = _example(experts=8)
    plan = fit_plan(problem)
    assert plan is not None
    assert verify(problem, plan).ok
    assert HOST not in plan.memories
    whole = [number for number, parts in enumerate(plan.spilled) if not parts]
    assert 0 in whole
    assert any(plan.spilled)


def test_a_deterministic_run_repeats_itself() -> None:
    problem = _example()
    first, second = (stowplan.solve(problem, time_limit=2, deterministic=True) for _ in range(2))
    assert first.plan == second.plan


@pytest.mark.parametrize("baseline", ["fit", "host"])
def test_results_are_compared_with_baselines(baseline: str) -> None:
    result = stowplan.solve(_example(), time_limit=2, baseline=baseline)
    assert result.objective is not None
    assert result.baseline is not None
    assert result.objective <= result.baseline
