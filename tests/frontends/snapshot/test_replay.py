"""Traces are played as the allocator that wrote them worked: a plain model of it, and snapshots recorded on a GPU."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.torch_memory.allocator import MIB, Allocator, OutOfMemoryError
from stowplan.frontends.snapshot.replay import Replay
from stowplan.frontends.snapshot.trace import read_trace


def random_allocator(seed: int, steps: int = 120) -> Allocator:
    """An allocator after random work; half of them begin to record in the middle of it."""
    chance = random.Random(seed)
    expandable = chance.random() < 0.3
    allocator = Allocator(
        chance.choice([1 << 40, 96 * MIB]),
        expandable=expandable,
        max_split=None if expandable else chance.choice([None, None, 8 * MIB]),
        parts=chance.choice([0, 0, 4]),
    )
    begins = chance.choice([0, 0, steps // 2])
    live: list[int] = []
    pending: list[int] = []
    for step in range(steps):
        if step == begins:
            allocator.record()
        kind = chance.random()
        try:
            if kind < 0.5 or not live:
                size = int(2 ** chance.uniform(0, chance.choice([12, 20, 25])))
                live.append(allocator.malloc(size, chance.choice([0, 0, 7]), [{"filename": "a.py", "line": step, "name": "f"}]))
            elif kind < 0.85:
                allocator.free(live.pop(chance.randrange(len(live))))
            elif kind < 0.93:
                pending.append(live.pop(chance.randrange(len(live))))
                allocator.free(pending[-1], completes=False)
            elif kind < 0.97 and pending:
                allocator.complete(pending.pop())
            else:
                allocator.empty_cache()
        except OutOfMemoryError:
            continue
    return allocator


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_random_traces(start: int) -> None:
    for seed in range(start, start + 100):
        allocator = random_allocator(seed)
        replay = Replay(read_trace(allocator.snapshot(), 0))
        expected = np.array([allocator.started, *allocator.amounts])
        found = np.column_stack(replay.amounts)
        # What a block had beside what was asked for is known from the end alone where its allocation was not recorded.
        is_whole = allocator.started == (0, 0, 0, 0)
        for name, column in zip(replay.amounts._fields, range(4), strict=True):
            if is_whole or name in ("reserved", "requested"):
                assert found[:, column].tolist() == expected[:, column].tolist(), (seed, name)
        assert (found[:, 1] <= expected[:, 1]).all()
        assert found[-1].tolist() == expected[-1].tolist()
        assert replay.offsets is not None
        for moment in (replay.moment, int(found.shape[0]) // 2):
            then = replay.at(moment)
            if is_whole:
                assert sum(hole.size for hole in replay.holes(moment)) == then.reserved - then.active, (seed, moment)


@pytest.mark.parametrize("kept", [1, 7, 40])
def test_of_a_trace_that_wrapped_the_end_is_known(kept: int) -> None:
    for seed in range(60):
        allocator = random_allocator(seed)
        events = min(kept, len(allocator.events))
        replay = Replay(read_trace(allocator.snapshot(events), 0))
        expected = np.array([allocator.started, *allocator.amounts])[-events - 1 :]
        assert replay.amounts.reserved.tolist() == expected[:, 0].tolist()
        assert replay.amounts.requested.tolist() == expected[:, 3].tolist()
