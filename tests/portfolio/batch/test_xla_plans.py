"""Batches whose programs have XLA's own plans beside them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stowplan.errors import InputError, UsageError
from stowplan.portfolio.batch.records import Settings
from stowplan.portfolio.batch.run import run_batch
from stowplan.portfolio.batch.task import find_inputs
from tests.paths import DATA, EXAMPLES
from tests.patience import HANG

#: The greedy is made all the same.
BRIEF: dict[str, Any] = {"target": "tpu-v4", "candidates": ("exact",), "time_limit": HANG, "baseline": "prod"}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A program, and a problem of another kind."""
    folder = tmp_path / "suite"
    folder.mkdir()
    shutil.copy(DATA / "xla_plan" / "chain.hlo.txt", folder)
    shutil.copy(EXAMPLES / "banks.json", folder)
    return folder


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    folder = tmp_path / "plans"
    folder.mkdir()
    for kind in ("hlo", "fastmem"):
        shutil.copy(DATA / "xla_plan" / f"chain.plan.{kind}.txt", folder / f"chain.{kind}.txt")
    return folder


def results(suite: Path, output: Path, **settings: Any) -> dict[str, dict[str, Any]]:
    found = run_batch(find_inputs([suite]), output, Settings(**BRIEF | settings))
    return {item.name: record.result or {"error": record.error} for item, record, _ in found}


def test_they_are_the_production_baseline(suite: Path, plans: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    found = results(suite, tmp_path / "out", xla_plans=(str(empty), str(plans)))
    chain = found["chain"]
    assert chain["baseline_name"] == "xla"
    assert chain["objective"] <= chain["baseline"] == chain["baselines"]["xla"]
    assert found["banks"]["baseline_name"] == "by_size"
    assert not [warning for warning in chain["warnings"] if "left out" in warning]


def test_one_that_is_missing_costs_a_warning(suite: Path, tmp_path: Path) -> None:
    found = results(suite, tmp_path / "out", xla_plans=(str(tmp_path),))["chain"]
    (warning,) = [each for each in found["warnings"] if "left out" in each]
    assert warning.startswith(f"XLA's own plan is left out: {tmp_path / 'chain.hlo.txt'}")
    assert found["baseline_name"] == "greedy"
    assert found["objective"] <= found["baseline"]


def test_one_that_changes_is_not_what_is_finished(suite: Path, plans: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    def finished() -> list[str]:
        settings = Settings(**BRIEF, xla_plans=(str(empty), str(plans)))
        return [
            item.name for item, _, was_finished in run_batch(find_inputs([suite]), tmp_path / "out", settings) if was_finished
        ]

    assert finished() == []
    assert finished() == ["banks", "chain"]
    kept = [plan.rename(tmp_path / plan.name) for plan in plans.iterdir()]
    assert finished() == ["banks"]
    assert finished() == ["banks", "chain"]
    for plan in kept:
        plan.rename(empty / plan.name)
    assert finished() == ["banks"]
    assert finished() == ["banks", "chain"]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (("nowhere",), InputError, "nowhere: found no folder, expected one with modules after XLA's memory-space assignment"),
        ("nowhere", UsageError, "found xla_plans 'nowhere', expected folders"),
        ((3,), UsageError, "expected folders"),
    ],
)
def test_what_is_no_folder(suite: Path, tmp_path: Path, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        results(suite, tmp_path / "out", xla_plans=value)
    assert not (tmp_path / "out").exists()
