"""Table 3 of records: the same figures as by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.lib.memory_mapping.speedup_table import Row, speedup_table
from stowplan.errors import InputError
from stowplan.portfolio.batch.records import Record, Settings

FAILED = Record(input="x", settings=Settings(), exit_code=2, error="no such file")


def record(
    objective: int | None,
    *,
    learned: int | None = None,
    baseline: int | None = 100,
    winner: str = "search",
    unit: str = "ps",
    digest: str = "same",
    **baselines: int,
) -> Record:
    result: dict[str, Any] = {
        "objective": objective,
        "bound": 50,
        "unit": unit,
        "baseline_name": "greedy",
        "baselines": ({} if baseline is None else {"greedy": baseline}) | baselines,
        "candidates": [
            {"name": "search", "family": "heuristic", "objective": objective},
            *([] if learned is None else [{"name": "policy", "family": "learned", "objective": learned}]),
        ],
        "provenance": {"candidate": winner, "family": "heuristic", "problem_digest": digest, "guides": []},
        "seconds": 1.0,
    }
    return Record(input="x", settings=Settings(), exit_code=0, result=result)


def test_rows_are_those_of_the_paper() -> None:
    """Alone an agent may be worse than the baseline; with it, it is not."""
    batch = {"a": record(80, learned=125), "b": record(100, learned=100, winner="greedy"), "c": record(50, learned=80)}
    found = speedup_table({"run": batch})
    assert found.rows == (
        Row(player="run: learned", instances=3, mean=pytest.approx((0.8 + 1 + 1.25) / 3), median=1.0, max=1.25, min=0.8,
            improved=1, same=1, worse=1),
        Row(player="run: learned-prod", instances=3, mean=pytest.approx((1 + 1 + 1.25) / 3), median=1.0, max=1.25, min=1.0,
            improved=1, same=2, worse=0),
        Row(player="run-prod", instances=3, mean=pytest.approx((1.25 + 1 + 2) / 3), median=1.25, max=2.0, min=1.0,
            improved=2, same=1, worse=0),
    )  # fmt: skip
    assert found.winners == {"run": {"search (heuristic)": 2, "greedy (heuristic)": 1}}
    (first, *_) = found.instances
    assert (first.baseline_name, first.baseline, first.bound) == ("greedy", 100, 50)
    assert (first.entries["run"].gain_percent, first.entries["run"].learned) == (20.0, 125)
    assert found.notes == ()


def test_two_batches_have_one_baseline() -> None:
    """That of the first, which the second need not have named."""
    found = speedup_table({"on": {"a": record(80)}, "off": {"a": record(90, baseline=None)}})
    assert [(row.player, row.mean) for row in found.rows] == [("on-prod", 1.25), ("off-prod", pytest.approx(100 / 90))]


def test_a_batch_without_the_baseline_may_be_worse_than_it() -> None:
    found = speedup_table({"on": {"a": record(125, baseline=None)}, "off": {"a": record(80)}})
    assert [(row.player, row.mean, row.worse) for row in found.rows] == [
        ("on", 0.8, 1),
        ("on-prod", 1.0, 0),
        ("off-prod", 1.25, 0),
    ]


def test_another_baseline_by_name() -> None:
    found = speedup_table({"run": {"a": record(80, xla=88), "b": record(80)}}, "xla")
    assert [(row.player, row.instances, row.mean) for row in found.rows] == [("run-prod", 1, 1.1)]
    assert found.notes == ("left out of the rows, without a baseline: b",)
    with pytest.raises(InputError, match="found no result with the baseline mine to compare with"):
        speedup_table({"run": {"a": record(80)}}, "mine")


def test_of_two_numbers_the_first_counts() -> None:
    unit = "clocks (II x 1000000 + latency)"
    batch = {"a": record(3_000_020, baseline=6_000_010, unit=unit), "b": record(3_000_020, baseline=3_000_050, unit=unit)}
    found = speedup_table({"run": batch})
    (row,) = found.rows
    assert (row.max, row.min, row.improved, row.same) == (2.0, 1.0, 2, 0)
    assert found.instances[0].entries["run"].gain_percent is None


def test_what_cannot_be_compared_is_named() -> None:
    found = speedup_table(
        {
            "on": {"a": record(80), "b": FAILED, "c": record(None, winner=""), "d": record(90)},
            "off": {"a": record(80), "b": FAILED, "d": record(90, digest="old")},
        }
    )
    assert found.notes == ("failed in every batch: b", "left out of off, another problem there (the digests differ): d")
    assert [(row.player, row.instances) for row in found.rows] == [("on-prod", 2), ("off-prod", 1)]


def test_results_of_earlier_versions() -> None:
    old = record(80)
    assert old.result is not None
    for each in old.result["candidates"]:
        del each["family"]
    del old.result["provenance"]["family"], old.result["provenance"]["guides"]
    found = speedup_table({"run": {"a": old}})
    assert found.winners == {"run": {"search (unknown)": 1}}


def test_nothing_to_compare_with() -> None:
    with pytest.raises(InputError, match="solve the suite with --baseline NAME"):
        speedup_table({"run": {"a": record(80, baseline=None)}})
