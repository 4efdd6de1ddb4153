"""Placement from the bottom up: the compiled code against a plain one, on hundreds of small problems."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing import arrays, candidates, orders, search, skyline
from stowplan.portfolio.packing.arrays import Data
from stowplan.portfolio.packing.search import Placements
from tests.models.packing.cases import Recorder, least_height, random_problem


def free_problem(seed: int, most: int) -> Problem:
    """A random problem without fixed offsets; some lives have gaps, some buffers alignments."""
    return random_problem(seed - (seed % 5 == 4), most)


def place_plainly(data: Data, key: list[float]) -> list[int]:
    """Offsets: the lowest stretch of the skyline takes the waiting buffer of largest key that lives within it, or is raised."""
    begin, end = data.begin.tolist(), data.end.tolist()
    tops = [0] * data.sections
    offsets = [-1] * len(key)
    while -1 in offsets:
        floor = min(tops)
        since = tops.index(floor)
        until = next((at for at in range(since, len(tops)) if tops[at] != floor), len(tops))
        within = [i for i, at in enumerate(offsets) if at < 0 and begin[i] >= since and end[i] <= until]
        if within:
            i = max(within, key=lambda each: key[each])
            offsets[i] = floor + -floor % int(data.align[i])
            tops[begin[i] : end[i]] = [offsets[i] + int(data.size[i])] * (end[i] - begin[i])
        else:
            walls = [tops[at] for at in (since - 1, until) if 0 <= at < len(tops)]
            tops[since:until] = [min(walls)] * (until - since)
    return offsets


@pytest.mark.parametrize("most", [1, 6, 40, 200])
def test_compiled_placement_is_the_plain_one(most: int) -> None:
    for seed in range(100):
        problem = free_problem(seed, most)
        data = arrays.build(problem)
        if not skyline.supports(data):
            continue
        # No two keys are equal: which of equals comes first is up to the tree.
        key = np.random.default_rng(seed).permutation(len(data.size)).astype(float)
        height, offsets = skyline.Skyline(data).place(key)
        assert offsets.tolist() == place_plainly(data, key.tolist()), seed
        assert height == int((offsets + data.size).max()), seed
        plan = arrays.export_plan(problem, data, offsets)
        assert verify(problem, plan).ok, seed
        assert plan.objective == height * data.unit


def test_a_skyline_serves_any_number_of_keys() -> None:
    data = arrays.build(free_problem(3, 60))
    line, chance = skyline.Skyline(data), np.random.default_rng(0)
    for _ in range(20):
        key = chance.normal(size=len(data.size))
        again = skyline.Skyline(data).place(key)
        found = line.place(key)
        assert (found[0], found[1].tolist()) == (again[0], again[1].tolist())


def test_problems_without_fixed_offsets_are_taken() -> None:
    assert skyline.supports(arrays.build(Problem(buffers=(Buffer(id="a", lower=0, upper=2, size=3),))))
    assert not skyline.supports(arrays.build(Problem(buffers=(Buffer(id="a", lower=0, upper=2, size=3, offset=1),))))
    assert not skyline.supports(arrays.build(Problem(buffers=())))


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "PARAMS", msgspec.structs.replace(candidates.PARAMS, few_buffers=0))


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("candidate", [candidates.search, candidates.climb])
def test_search_for_large_problems_is_valid_and_mostly_best(candidate: object) -> None:
    assert callable(candidate)
    best = 0
    for seed in range(150):
        problem = random_problem(seed)
        optimum = least_height(problem)
        context = Recorder(problem, time_limit=0.001, deterministic=True)
        candidate(problem, context)
        # The recorder verifies every plan.
        assert (context.best is None) == (optimum is None), seed
        best += context.best is None or context.best.objective == optimum
    assert best >= 140


@pytest.mark.usefixtures("everything_is_large")
def test_deterministic_searches_of_large_problems_agree() -> None:
    problem = free_problem(7, 200)
    plans = []
    for _ in range(2):
        context = Recorder(problem, time_limit=0.1, deterministic=True, seed=5)
        candidates.climb(problem, context)
        plans.append(context.best)
    assert plans[0] is not None
    assert plans[0] == plans[1]


def test_first_fit_stops_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    data = arrays.build(free_problem(7, 60))
    key = np.arange(len(data.size), dtype=float)
    whole = Placements(data, lambda: True).first_fit(key)
    assert whole is not None
    monkeypatch.setattr(search, "PARAMS", msgspec.structs.replace(search.PARAMS, slice=1))
    sliced = Placements(data, lambda: False).first_fit(key)
    assert sliced is not None
    assert (sliced[0], sliced[1].tolist()) == (whole[0], whole[1].tolist())
    assert Placements(data, lambda: True).first_fit(key) is None


def test_pressure_is_the_largest_load_of_a_life() -> None:
    for seed in range(100):
        data = arrays.build(random_problem(seed, most=60))
        load = data.load()
        expected = [load[since:until].max() / load.max() for since, until in zip(data.begin, data.end, strict=True)]
        assert orders.pressure(data).tolist() == expected, seed
