"""Two batches side by side: what is compared, and whether the difference may be chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from stowplan.errors import InputError
from stowplan.portfolio.batch.compare import Interval, compare
from stowplan.portfolio.batch.records import Record, Settings


def record(objective: int | None, *, digest: str = "same", unit: str = "bytes") -> Record:
    result: dict[str, Any] = {"objective": objective, "unit": unit, "provenance": {"problem_digest": digest}}
    return Record(input="x", settings=Settings(), exit_code=0, result=result)


FAILED = Record(input="x", settings=Settings(), exit_code=2, error="no such file")


def records(*objectives: int | None, unit: str = "bytes") -> dict[str, Record]:
    return {f"n{number}": record(each, unit=unit) for number, each in enumerate(objectives)}


def outcomes(first: Mapping[str, Record], second: Mapping[str, Record]) -> dict[str, str]:
    return {pair.name: pair.outcome for pair in compare(first, second).pairs}


def test_differences_one_by_one_and_together() -> None:
    found = compare(records(100, 200, 400, 50), records(90, 220, 400, 40))
    assert [pair.percent for pair in found.pairs] == [-10.0, 10.0, 0.0, -20.0]
    assert (found.wins, found.losses, found.ties) == (2, 1, 1)
    assert found.statistics is not None
    assert found.statistics.pairs == 4
    assert found.statistics.mean_percent == pytest.approx(-5.0)
    assert found.statistics.median_percent == pytest.approx(-5.0)
    # Of three signs two are alike in 6 of 8 cases, or more: p is 1.
    assert found.statistics.sign_p == 1.0


def test_a_clear_difference() -> None:
    first = [1000 + 10 * number for number in range(12)]
    second = [each - 5 - number for number, each in enumerate(first)]
    found = compare(records(*first), records(*second)).statistics
    assert found is not None
    # Exact: of 2^12 ways to set the signs the two outermost.
    assert found.wilcoxon_p == pytest.approx(2 / 2**12)
    assert found.sign_p == pytest.approx(2 / 2**12)
    assert found.notes == ()
    for interval, value in ((found.mean_interval, found.mean_percent), (found.median_interval, found.median_percent)):
        assert interval is not None
        assert value is not None
        assert interval.low < value < interval.high < 0


def test_intervals_are_those_of_the_seed() -> None:
    first, second = records(100, 120, 90, 300, 70, 80, 61), records(101, 110, 95, 280, 60, 90, 61)
    one, again, other = (compare(first, second, seed=seed).statistics for seed in (3, 3, 4))
    assert one == again
    assert one != other


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Of 200 samples of 40 pairs whose mean difference is 0: about 95 % of the intervals have it in them."""
    import numpy as np

    from stowplan.portfolio.batch import compare as paired

    chance = np.random.default_rng(5)
    samples = chance.normal(size=(200, 40))
    found = [paired._interval(each, np.mean, seed) for seed, each in enumerate(samples)]
    held = sum(each is not None and each.low <= 0 <= each.high for each in found)
    assert 180 <= held <= 198


def test_all_ties() -> None:
    found = compare(records(5, 6, 7), records(5, 6, 7))
    assert (found.wins, found.losses, found.ties, found.geometric_mean) == (0, 0, 3, pytest.approx(1.0))
    assert found.statistics is not None
    assert (found.statistics.wilcoxon_p, found.statistics.sign_p) == (None, None)
    assert found.statistics.mean_interval == Interval(0.0, 0.0)
    assert found.statistics.notes == ("all pairs are ties: there is nothing to test",)


@pytest.mark.parametrize(
    ("count", "note"),
    [
        (1, "there is a single pair that differs: p-values mean little, none can be below 1"),
        (5, "there are 5 pairs that differ: p-values mean little, none can be below 0.0625"),
        (6, None),
    ],
)
def test_few_pairs(count: int, note: str | None) -> None:
    found = compare(records(*[100 + each for each in range(count)]), records(*[90] * count)).statistics
    assert found is not None
    assert found.notes == (() if note is None else (note,))
    assert found.wilcoxon_p == pytest.approx(2.0 ** (1 - count))
    assert (found.mean_interval is None) == (count == 1)


def test_what_is_not_compared_is_named() -> None:
    first = records(1, None, 1, None, 1) | {"left": record(1), "broken": FAILED, "changed": record(4, digest="old")}
    second = records(1, 1, None, None, 2) | {"right": record(1), "broken": record(3), "changed": record(1, digest="new")}
    assert outcomes(first, second) == {
        "n0": "tie",
        "n1": "first_unsolved",
        "n2": "second_unsolved",
        "n3": "unsolved",
        "n4": "loss",
        "left": "only_first",
        "right": "only_second",
        "broken": "first_unsolved",
        "changed": "other_problem",
    }
    found = compare(first, second)
    assert found.statistics is not None
    assert (found.wins, found.losses, found.ties, found.statistics.pairs) == (0, 1, 1, 2)


def test_nothing_in_common_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"found no input that both batches have \(a \.\.\. and b \.\.\.\)"):
        compare({"a": record(1)}, {"b": record(1)})


def test_nothing_comparable() -> None:
    found = compare({"a": FAILED}, {"a": FAILED})
    assert (found.statistics, found.geometric_mean) == (None, None)


def test_a_cost_of_nothing_has_no_ratio() -> None:
    found = compare(records(0, 0, 10), records(0, 5, 5))
    assert [pair.percent for pair in found.pairs] == [0.0, None, -50.0]
    assert found.statistics is not None
    assert found.statistics.sign_p == 1.0
    assert "1 of the pairs have no ratio: they count in the sign test alone" in found.statistics.notes


def test_two_numbers_have_signs_and_no_ratio() -> None:
    unit = "clocks (II x 1000000 + latency)"
    found = compare(records(3_000_020, 3_000_020, unit=unit), records(3_000_019, 2_000_090, unit=unit))
    assert found.statistics is not None
    assert (found.wins, found.statistics.mean_percent, found.statistics.wilcoxon_p) == (2, None, None)
    assert found.statistics.sign_p == 0.5
    assert found.geometric_mean is not None
    assert math.isfinite(found.geometric_mean)
