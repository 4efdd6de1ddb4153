"""Bounds, search and model against every offset tried, on hundreds of small problems."""

from __future__ import annotations

import msgspec
import pytest

from stowplan.models.packing.bounds import find_overload, load_bound
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.portfolio.packing import candidates
from stowplan.portfolio.packing.canonical import luby
from tests.models.packing.cases import Recorder, fits, least_height, random_problem


@pytest.mark.parametrize("block", range(8))
def test_exact_search_finds_and_proves_the_least_height(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        problem = random_problem(seed)
        optimum = least_height(problem)
        context = Recorder(problem)
        candidates.exact(problem, context)
        if optimum is None:
            assert context.infeasible, seed
            continue
        assert not context.infeasible, seed
        assert context.best is not None, seed
        assert context.best.objective == optimum, seed
        assert max([*context.bounds, load_bound(problem)]) == optimum, seed
        assert load_bound(problem) <= optimum, seed


@pytest.mark.parametrize("candidate", [candidates.search, candidates.exact, candidates.cpsat])
def test_capacity_is_met_or_refuted(candidate: object) -> None:
    assert callable(candidate)
    met = refuted = 0
    for seed in range(60 if candidate is candidates.cpsat else 200):
        problem = random_problem(seed)
        optimum = least_height(problem)
        for capacity in () if not optimum else (optimum - 1, optimum):
            tight = msgspec.structs.replace(problem, capacity=capacity)
            context = Recorder(tight, time_limit=0.05, deterministic=True)
            candidate(tight, context)
            # A heuristic may find nothing; it must not say what is not so.
            assert not (context.infeasible and fits(tight, capacity)), seed
            if candidate is not candidates.search:
                assert context.infeasible == (capacity < optimum), (seed, capacity)
                assert (context.best is not None) != context.infeasible, (seed, capacity)
            met += context.best is not None
            refuted += context.infeasible
    assert met > 20
    assert refuted > 10


def test_the_model_finds_the_least_height() -> None:
    for seed in range(40):
        problem = random_problem(seed)
        context = Recorder(problem)
        candidates.cpsat(problem, context)
        optimum = least_height(problem)
        assert (None if context.best is None else context.best.objective) == optimum, seed


def test_greedy_plans_are_valid_and_reach_the_obvious() -> None:
    for seed in range(200):
        problem = random_problem(seed, most=12)
        if find_overload(problem) is None:
            context = Recorder(problem, time_limit=0.001, deterministic=True)
            candidates.search(problem, context)
            assert context.best is not None, seed


def test_overload_names_the_fewest_buffers() -> None:
    def buffer(name: str, lower: int, upper: int, size: int) -> Buffer:
        return Buffer(id=name, lower=lower, upper=upper, size=size)

    many = [buffer(f"small{number}", 0, 9, 4) for number in range(5)]
    problem = Problem(buffers=(*many, buffer("x", 20, 26, 9), buffer("y", 24, 30, 8)), capacity=16)
    found = find_overload(problem)
    assert found is not None
    assert (found.buffers, found.load, found.start, found.end) == ((5, 6), 17, 24, 26)
    assert "x, y" in found.reason
    assert find_overload(msgspec.structs.replace(problem, capacity=20)) is None


def test_fixed_offsets_that_cannot_be() -> None:
    one = Buffer(id="one", lower=0, upper=4, size=8, offset=0)
    two = Buffer(id="two", lower=3, upper=6, size=8, offset=4)
    clash = find_overload(Problem(buffers=(one, two)))
    assert clash is not None
    assert (clash.buffers, clash.start, clash.end) == ((0, 1), 3, 4)
    assert find_overload(Problem(buffers=(two,), capacity=12)) is None
    beyond = find_overload(Problem(buffers=(two,), capacity=11))
    assert beyond is not None
    assert "beyond the capacity" in beyond.reason


def test_luby() -> None:
    assert [luby(number) for number in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
