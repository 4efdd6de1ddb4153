"""``stowplan compare RESULTS RESULTS2``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stowplan.portfolio.batch.records import Record, Settings
from tests.cli.conftest import Cli, cli, error_line

__all__ = ["cli"]


def write(folder: Path, **objectives: int | None) -> Path:
    """A folder as a batch writes it, but for the plans."""
    folder.mkdir()
    for name, objective in objectives.items():
        result: dict[str, Any] = {"objective": objective, "unit": "bytes", "provenance": {"problem_digest": name}}
        Record(input=name, settings=Settings(), exit_code=0, result=result).save(folder / f"{name}.result.json")
    return folder


def test_differences_and_whether_they_are_chance(cli: Cli, tmp_path: Path) -> None:
    first = write(tmp_path / "first", a=100, b=200, c=50, only=None, left=1, late=3)
    second = write(tmp_path / "second", a=90, b=210, c=50, only=7, late=None)
    outcome = cli("compare", first, second)
    assert outcome.code == 0, outcome.err
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == "program first second ratio difference outcome of second"
    assert "a 100 bytes 90 bytes 1.111 -10.00 % win" in lines
    assert "c 50 bytes 50 bytes 1.000 +0.00 % tie" in lines
    assert "second: 1 wins, 1 losses, 1 ties; geometric mean of first / second 1.0190" in lines
    assert any(
        line.startswith("(second - first) / first: mean -1.667 % (-10.000 to +5.000), median +0.000 %") for line in lines
    )
    assert "two-sided p-values: Wilcoxon signed-rank 1, sign test 1" in lines
    assert "note: there are 2 pairs that differ: p-values mean little, none can be below 0.5" in lines
    assert "not compared, only in the first: left" in lines
    assert "not compared, the first has no plan: only" in lines
    assert "not compared, the second has no plan: late" in lines


def test_as_json(cli: Cli, tmp_path: Path) -> None:
    first, second = write(tmp_path / "first", a=100, b=200), write(tmp_path / "second", a=90, b=190)
    found = json.loads(cli("compare", first, second, "--json", "--seed", 3).out)
    assert [pair["percent"] for pair in found["pairs"]] == [-10.0, -5.0]
    assert found["statistics"]["sign_p"] == 0.5
    assert found["statistics"]["seed"] == 3


def test_a_seed_is_for_two_folders(cli: Cli, tmp_path: Path) -> None:
    first = write(tmp_path / "first", a=1)
    for paths, found in (([first], "one folder"), (["a.json", "b.json", "in.json"], "two plans")):
        refused = cli("compare", *paths, "--seed", 0)
        assert refused.code == 2
        assert error_line(refused).startswith(f"stowplan: --seed: for two folders of results only, found {found}: ")


def test_other_suites_are_one_line(cli: Cli, tmp_path: Path) -> None:
    first, second = write(tmp_path / "first", a=1), write(tmp_path / "second", b=1)
    assert "found no input that both batches have" in error_line(cli("compare", first, second))
