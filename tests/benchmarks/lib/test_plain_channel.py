"""Copy windows against all windows, tried one by one."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from benchmarks.lib.memory_mapping.plain_channel import Channel, Window, meet
from stowplan.learned_guidance.memory_mapping.game.game import Slots
from stowplan.models.memory_mapping.problem import Loop
from tests.learned_guidance.memory_mapping.programs import program


def test_loops_are_one_slot() -> None:
    problem = program(["", "", "", "", ""], {"a": 1}, loops=(Loop(1, 4, 3), Loop(2, 4, 2)))
    slots = Slots(problem)
    assert slots.boundaries == (0, 1, 4, 5)
    assert slots.supply_ps == (10, 10 * 3 + 2 * 10 * 3 * 2, 10)
    assert [slots.number(boundary) for boundary in range(6)] == [0, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ((0, 2), (2, 4), False),
        ((0, 3), (2, 4), False),
        ((0, 3), (1, 4), True),
        ((0, 3), (0, 1), False),
        ((0, 3), (2, 3), False),
        ((0, 3), (1, 2), True),
        ((1, 2), (1, 2), False),
        ((0, 2), (0, 2), True),
    ],
)
def test_windows_share_at_most_a_slot_at_the_edge(one: Window, two: Window, expected: bool) -> None:
    assert meet(one, two) is expected
    assert meet(two, one) is expected


def fitting(channel: Channel, demand: int, first: int, last: int) -> list[Window]:
    """All windows that satisfy equations 5 and 6."""
    return [
        (start, end)
        for start, end in combinations(range(first, last + 1), 2)
        if sum(channel.supply_ps[start:end]) >= demand
        if all(inner_is_free(set(range(start, end)), set(range(*other))) for other in channel.windows)
    ]


def inner_is_free(one: set[int], two: set[int]) -> bool:
    """At most one slot in common, and that at an end of both."""
    both = one & two
    return len(both) <= 1 and all(slot in (min(slots), max(slots)) for slot in both for slots in (one, two))


@pytest.mark.parametrize("strict", [False, True])
def test_latest_start_and_earliest_end_of_all_windows(strict: bool) -> None:
    rng = random.Random(f"windows {strict}")
    found = 0
    for _ in range(150):
        count = rng.randint(1, 9)
        channel = Channel([rng.choice([0, 1, 2, 5, 9]) for _ in range(count)])
        for _ in range(8):
            demand, first = rng.choice([0, 1, 3, 8, 15]), rng.randint(0, count)
            last = rng.randint(first, count)
            windows = fitting(channel, demand, first, last)
            if comes_in := rng.random() < 0.5:
                window = channel.latest(demand, first, last, strict=strict)
                expected = max((w for w in windows if not strict or w[1] == last), default=None)
            else:
                window = channel.earliest(demand, first, last, strict=strict)
                allowed = [w for w in windows if not strict or w[0] == first]
                expected = min(allowed, key=lambda w: (w[1], w[0]), default=None)
            assert window == expected
            if window is not None and rng.random() < 0.7:
                before = sum(channel.supply_ps)
                channel.take(demand, window, from_end=comes_in)
                assert sum(channel.supply_ps) == before - demand
                assert min(channel.supply_ps) >= 0
                found += 1
    assert found > 150


def test_supply_is_taken_next_to_the_use() -> None:
    channel = Channel([10, 10, 10])
    channel.take(15, (0, 3), from_end=True)
    assert channel.supply_ps == [10, 5, 0]
    channel = Channel([10, 10, 10])
    channel.take(15, (0, 3), from_end=False)
    assert channel.supply_ps == [0, 5, 10]


def test_a_window_without_enough_supply_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks 5 ps"):
        Channel([10]).take(15, (0, 1), from_end=True)
