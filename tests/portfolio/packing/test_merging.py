"""Merged buffers: what is merged, that plans of the merged buffers are plans of the buffers, and what runs gain."""

from __future__ import annotations

import random

import numpy as np
import pytest

import stowplan
from benchmarks.instances.families import packing_cut
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing import arrays, canonical, merging, valleys


def problem(*rows: tuple[int, int, int]) -> Problem:
    """Buffers with (lower, upper, size)."""
    return Problem(
        buffers=tuple(Buffer(id=f"b{at}", lower=low, upper=up, size=size) for at, (low, up, size) in enumerate(rows))
    )


def drawn(count: int, seed: int, moments: int = 12, longest: int = 5, largest: int = 4) -> Problem:
    """Buffers with few sizes and times, so that many have the same life or follow each other."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        lower = chance.randrange(moments)
        rows.append((lower, lower + chance.randint(1, longest), chance.randint(1, largest)))
    return problem(*rows)


def test_equal_lives_lie_on_top_of_each_other() -> None:
    merged = merging.merge(arrays.build(problem((0, 4, 3), (3, 6, 5), (0, 4, 2), (0, 4, 4), (5, 8, 1))))
    assert sorted(merged.data.size.tolist()) == [1, 5, 9]
    assert merged.owner[[0, 2, 3]].tolist() == [merged.owner[0]] * 3
    assert sorted(merged.above[[0, 2, 3]].tolist()) in ([0, 3, 5], [0, 2, 5], [0, 4, 7], [0, 3, 7], [0, 2, 6], [0, 4, 6])


def test_buffers_of_one_size_follow_each_other() -> None:
    # Another buffer is live all the time, so that the times make a difference.
    merged = merging.merge(arrays.build(problem((0, 2, 7), (2, 5, 7), (5, 6, 7), (0, 4, 2), (3, 6, 9), (1, 3, 1))))
    assert merged.owner[0] == merged.owner[1] == merged.owner[2]
    assert merged.above[:3].tolist() == [0, 0, 0]


def test_rules_apply_until_nothing_changes() -> None:
    """The second and the third buffer become as long as the first, and then all are one."""
    merged = merging.merge(arrays.build(problem((0, 6, 4), (0, 3, 5), (3, 6, 5))))
    assert len(merged.data.size) == 1
    assert merged.data.size[0] == 9
    assert merged.data.sections == 1


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_plans_of_merged_buffers_are_plans(start: int) -> None:
    fewer = 0
    for seed in range(start, start + 50):
        whole = drawn(3 + seed % 25, seed)
        data = arrays.build(whole)
        merged = merging.merge(data)
        fewer += len(merged.data.size) < len(data.size)
        # What is live together is live together in the merged buffers, so that the loads are the same.
        assert merged.data.load().max() == data.load().max()
        search = canonical.start(merged.data, None, seed)
        search.run(lambda: None, lambda: False, 2_000)
        assert search.height is not None
        offsets = merged.offsets(search.offsets(merged.data))
        assert (offsets + data.size).max() == search.height
        plan = arrays.export_plan(whole, data, offsets)
        assert verify(whole, plan).ok
        assert plan.objective == search.height * data.unit
    assert fewer > 25


def test_merging_can_lose_the_optimum() -> None:
    """For two of 150 problems, the merged buffers have no plan as low as the optimum."""
    for seed in range(150):
        whole = drawn(24, seed, 8, 4, 9)
        data = arrays.build(whole)
        merged = merging.merge(data)
        heights = []
        for each in (data, merged.data):
            search = canonical.start(each, None, 0)
            search.run(lambda: None, lambda: False, 50_000)
            assert search.finished
            heights.append(search.height)
        assert heights[0] is not None
        assert heights[1] is not None
        assert heights[0] <= heights[1]
        if heights[0] < heights[1]:
            # A run finds the optimum all the same, and does not report that the load is out of reach.
            result = stowplan.solve(whole, deterministic=True, work_limit=0.2, time_limit=60)
            assert result.objective == heights[0] * data.unit
            assert result.bound is not None
            assert result.bound <= result.objective
            return
    pytest.fail("no such buffers")


def test_cut_rectangles_are_put_together_again() -> None:
    whole = packing_cut(1_000, 7)
    data = arrays.build(whole)
    merged = merging.merge(data)
    assert len(merged.data.size) < len(data.size) / 2
    search = canonical.start(merged.data, None, 0, part_type=valleys.Part)
    search.run(lambda: None, lambda: False, 20_000)
    offsets = merged.offsets(search.offsets(merged.data))
    assert verify(whole, arrays.export_plan(whole, data, offsets)).ok
    assert (offsets + data.size).max() * data.unit == load_bound(whole)


def test_no_buffer_is_lost() -> None:
    whole = drawn(40, 3)
    data = arrays.build(whole)
    merged = merging.merge(data)
    count = np.bincount(merged.owner, minlength=len(merged.data.size))
    assert count.sum() == len(data.size)
    assert (count > 0).all()
