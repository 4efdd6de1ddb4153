"""The knapsack of spilled parts against all combinations of levels."""

from __future__ import annotations

import random
from itertools import combinations_with_replacement, product

import numpy as np

from stowplan.portfolio.llm_placement.spills import Knapsack, Level


def _random_levels(draw: random.Random) -> list[Level]:
    """Levels of a layer: each frees at least as much as the one before; some save time."""
    freed, levels = 0, [Level(0, 0)]
    for _ in range(draw.randrange(4)):
        freed += draw.randrange(6)
        levels.append(Level(freed, draw.randrange(-3, 20)))
    return levels


def _least(classes: list[list[Level]], counts: list[int], over: int) -> int | None:
    """The least time of all combinations of levels that free enough; None if none does."""
    each = [combinations_with_replacement(levels, count) for levels, count in zip(classes, counts, strict=True)]
    found = [[level for levels in chosen for level in levels] for chosen in product(*each)]
    return min((sum(level.time for level in row) for row in found if sum(level.freed for level in row) >= over), default=None)


def test_spills_fit_and_are_near_the_least_time() -> None:
    exact = checked = 0
    for seed in range(300):
        draw = random.Random(seed)
        classes = [_random_levels(draw) for _ in range(draw.randrange(1, 4))]
        knapsack = Knapsack(classes)
        groups = [([draw.randrange(4) for _ in classes], draw.randrange(-3, 30)) for _ in range(5)]
        spilled = knapsack.spill(np.array([counts for counts, _ in groups]), np.array([over for _, over in groups]))
        for number, (counts, over) in enumerate(groups):
            least = _least(classes, counts, over)
            assert np.isinf(spilled.time[number]) == (least is None), (seed, number)
            if least is None:
                continue
            chosen = knapsack.levels_of(spilled, number, counts)
            for kind, limit in enumerate(counts):
                assert sum(count for each, count, _ in chosen if each == kind) <= limit
            assert sum(count * classes[kind][level].time for kind, count, level in chosen) == spilled.time[number] >= least
            freed = sum(count * classes[kind][level].freed for kind, count, level in chosen)
            assert freed == spilled.freed[number]
            assert freed >= over
            checked += 1
            exact += spilled.time[number] == least
    assert checked > 600
    assert exact > 0.8 * checked
