"""The search over valleys: valid plans, refutations that are true where nothing can be wasted, and cut rectangles."""

from __future__ import annotations

import random

import numpy as np
import pytest

import stowplan
from benchmarks.instances.families import packing_cut
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.plan import make_plan
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing import arrays, canonical, valleys


def small(seed: int) -> Problem:
    chance = random.Random(seed)
    buffers = []
    for number in range(chance.randint(2, 9)):
        lower = chance.randint(0, 8)
        buffers.append(Buffer(id=f"b{number}", lower=lower, upper=lower + chance.randint(1, 5), size=chance.randint(1, 6)))
    return Problem(buffers=tuple(buffers))


def search(problem: Problem, height: int, turns: int = 8) -> tuple[set[int], list[tuple[int, ...]]]:
    """Outcomes of some runs of the search at a height, and the offsets in bytes that it found."""
    data = arrays.build(problem)
    assert valleys.supports(data)
    outcomes, plans = set(), []
    for part in (canonical.start(data, None, 0, part_type=valleys.Part).parts) * turns:
        part.best = None
        before = part.runs
        part.run(height // data.unit, 50)
        assert part.runs == before + 1
        outcomes.add(int(part.best is not None))
        if part.best is not None and len(part.data.size) == len(data.size):
            offsets = np.zeros(len(problem.buffers), np.int64)
            offsets[part.data.numbers] = part.offsets * data.unit
            plans.append(tuple(offsets.tolist()))
    return outcomes, plans


@pytest.mark.parametrize("seed", range(150))
def test_plans_are_valid_and_within_the_height(seed: int) -> None:
    problem = small(seed)
    for height in range(load_bound(problem), load_bound(problem) + 3):
        for offsets in search(problem, height)[1]:
            check = verify(problem, make_plan(problem, offsets))
            assert check.ok
            assert check.objective is not None
            assert check.objective <= height


def test_what_is_refuted_without_waste_has_no_plan() -> None:
    """Where every section is full, the search leaves no plan out, so it agrees with the exact search."""
    refuted = 0
    for seed in range(400):
        chance = random.Random(seed)
        # Long buffers at random, and one more at each moment, so that all moments are equally full.
        lives = [(low, low + chance.randint(2, 4), chance.randint(1, 6)) for low in (chance.randint(0, 5) for _ in range(6))]
        loads = [sum(size for low, up, size in lives if low <= moment < up) for moment in range(9)]
        lives += [(moment, moment + 1, max(loads) + 1 - load) for moment, load in enumerate(loads)]
        problem = Problem(
            buffers=tuple(Buffer(id=f"b{at}", lower=low, upper=up, size=size) for at, (low, up, size) in enumerate(lives))
        )
        height = load_bound(problem)
        exact = canonical.start(arrays.build(problem), None, 0)
        exact.run(lambda: None, lambda: False, 100_000)
        is_possible = exact.height is not None and exact.height * arrays.build(problem).unit == height
        outcomes, _ = search(problem, height)
        data = arrays.build(problem)
        if len(arrays.parts(data)) == 1 and (data.load() == data.load().max()).all():
            assert outcomes == {int(is_possible)}, seed
            refuted += not is_possible
    assert refuted > 5


@pytest.mark.parametrize(("count", "seed"), [(200, 11), (500, 12), (1000, 13)])
def test_cut_rectangles_are_packed_without_a_hole(count: int, seed: int) -> None:
    problem = packing_cut(count, seed)
    data = arrays.build(problem)
    tree = canonical.start(data, None, 0, part_type=valleys.Part)
    tree.run(lambda: None, lambda: False, 2_000_000)
    assert tree.height == tree.bound


def test_it_is_repeated_bit_by_bit() -> None:
    problem = packing_cut(300, 5)
    runs = []
    for _ in range(2):
        tree = canonical.start(arrays.build(problem), None, 7, part_type=valleys.Part)
        runs.append((tree.run(lambda: None, lambda: False, 500_000), [part.offsets.tolist() for part in tree.parts]))
    assert runs[0] == runs[1]


def test_what_it_does_not_support() -> None:
    plain = Buffer(id="a", lower=0, upper=4, size=6)
    others = (
        Buffer(id="b", lower=0, upper=4, size=6, alignment=4),
        Buffer(id="b", lower=0, upper=4, size=6, offset=0),
        Buffer(id="b", lower=0, upper=4, size=6, gaps=((1, 2),)),
    )
    assert valleys.supports(arrays.build(Problem(buffers=(plain,))))
    for other in others:
        assert not valleys.supports(arrays.build(Problem(buffers=(plain, other))))
    assert not valleys.supports(arrays.build(Problem(buffers=())))


@pytest.mark.parametrize("capacity", [None, 400_000])
def test_a_run_uses_it(capacity: int | None) -> None:
    problem = packing_cut(400, 3)
    if capacity is not None:
        problem = Problem(buffers=problem.buffers, capacity=capacity)
    name = "beam2" if capacity is None else "search"
    result = stowplan.solve(problem, deterministic=True, time_limit=20, candidates=[name])
    assert result.objective == 400_000
