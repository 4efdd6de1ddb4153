"""Gaps and correlations: what there is nothing to say of is None, and never a number that is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan.portfolio.validation.statistics import gap_to, pearson, second_gap_to, spearman, spearman_within, spread
from stowplan.units import PS, Pair, Unit

CLOCKS = Unit("clocks", Pair("II", 1_000_000, "latency"))

NUMBERS = st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), max_size=12)


def test_gaps() -> None:
    assert gap_to(125, 100, PS) == 0.2
    assert gap_to(0, 0, PS) == 0.0
    assert gap_to(100, 100, PS) == 0.0
    assert second_gap_to(125, 100, PS) is None


def test_gaps_of_two_numbers() -> None:
    assert gap_to(4_000_030, 3_000_024, CLOCKS) == 0.25
    assert second_gap_to(4_000_030, 3_000_024, CLOCKS) is None
    assert gap_to(3_000_030, 3_000_024, CLOCKS) == 0.0
    assert second_gap_to(3_000_030, 3_000_024, CLOCKS) == 0.2


def test_a_distribution_counts_lost_games() -> None:
    found = spread([0.0, 0.005, 0.04, 0.2, None], 1)
    assert (found.count, found.lost, found.worst) == (5, 1, 0.2)
    assert found.mean == pytest.approx(0.245 / 4)
    assert found.median == pytest.approx(0.0225)
    assert (found.optimal, found.within_1, found.within_5) == (0.2, 0.4, 0.6)
    assert spread([None, None], 0).mean is None
    assert spread([None, None], 0).within_5 == 0.0
    assert spread([], 0).optimal is None


def test_correlations_by_hand() -> None:
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [1, 10, 100, 50]) == pytest.approx(0.8)
    # Equal values share the mean of their ranks.
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)


def test_of_a_constant_there_is_none() -> None:
    for constant in ([5.0] * 4, [0.1 + 0.2, 0.3, 0.3, 0.3]):
        assert pearson(constant, [1, 2, 3, 4]) is None
        assert spearman([1, 2, 3, 4], constant) is None
    assert pearson([], []) is None
    assert spearman([1.0], [2.0]) is None


def test_within_groups_nothing_between_them_counts() -> None:
    # Each group falls, and all of them together rise.
    groups = [([10 * g + i for i in range(3)], [10 * g - i for i in range(3)]) for g in range(4)]
    assert spearman_within(groups) == pytest.approx(-1.0)
    assert spearman([v for one, _ in groups for v in one], [v for _, two in groups for v in two]) > 0.5
    assert spearman_within([([1.0, 2.0], [3.0, 3.0]), ([1.0], [1.0])]) is None


@given(NUMBERS)
def test_never_a_number_that_is_none(pairs: list[tuple[float, float]]) -> None:
    ones, twos = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for found in (pearson(ones, twos), spearman(ones, twos), spearman_within([(ones, twos)])):
        assert found is None or -1.0 <= found <= 1.0
