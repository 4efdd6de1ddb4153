"""Placement outward from the peaks, on hundreds of small problems and on problems with several peaks."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing import arrays, candidates, peaks
from tests.models.packing.cases import Recorder
from tests.portfolio.packing.test_beam import plain_problem


def waves(seed: int, count: int, alignment: int = 1) -> Problem:
    """Short lives around some crowded moments, so that several peaks are far apart."""
    chance = random.Random(seed)
    centres = [chance.randint(0, 400) for _ in range(chance.randint(2, 6))]
    buffers = []
    for number in range(count):
        lower = int(chance.gauss(chance.choice(centres), 15))
        buffers.append(
            Buffer(
                id=f"b{number}",
                lower=lower,
                upper=lower + chance.randint(1, 20),
                size=chance.randint(1, 50),
                alignment=chance.choice([1, alignment]),
            )
        )
    return Problem(buffers=tuple(buffers))


def check(problem: Problem, seed: int, count: int, *, at_random: bool = False) -> int | None:
    """Place, verify, and return the height in bytes."""
    data = arrays.build(problem)
    if not data.is_plain:
        return None
    run = peaks.Peaks(data, int(data.load().max()), seed, lambda: False)
    found = run.place(count, peaks.WAYS, None, at_random=at_random)
    assert found is not None
    height, offsets = found
    plan = arrays.export_plan(problem, data, offsets)
    verified = verify(problem, plan)
    assert verified.ok, (seed, count, verified.violations)
    assert plan.objective == height * data.unit
    assert run.place(count, peaks.WAYS, int(data.load().max())) is None
    return plan.objective


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("at_random", [False, True])
def test_plans_are_valid(count: int, at_random: bool) -> None:
    for seed in range(100):
        check(plain_problem(seed, 30), seed, count, at_random=at_random)
        check(waves(seed, 80, alignment=4), seed, count, at_random=at_random)


def test_nothing_is_wasted_at_peaks_that_are_far_apart() -> None:
    reached = 0
    for seed in range(60):
        problem = waves(seed, 150)
        reached += min(check(problem, seed, count) or 0 for count in (1, 2, 3, 5)) == load_bound(problem)
    # It does for 51, first fit by size for 5, from the bottom up by length for 18.
    assert reached >= 45


def test_it_stops_when_it_is_told() -> None:
    data = arrays.build(waves(0, 80))
    assert peaks.Peaks(data, 0, 0, lambda: True).place(2, peaks.WAYS, None) is None


def test_deterministic_runs_agree() -> None:
    problem = waves(1, 1600)
    plans = []
    for _ in range(2):
        context = Recorder(problem, time_limit=0.01, deterministic=True, seed=5)
        candidates.climb(problem, context)
        plans.append(context.best)
    assert plans[0] == plans[1] is not None


def test_a_stack_keeps_alignments() -> None:
    offsets = np.empty(3, np.int64)
    order, size, align = np.array([2, 0, 1]), np.array([5, 1, 3]), np.array([4, 2, 1])
    assert peaks.pile(order, size, align, offsets) == 11
    assert offsets.tolist() == [0, 4, 10]
