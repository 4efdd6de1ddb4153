"""``stowplan compare --table3``."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import EXAMPLES, Cli, cli, error_line

__all__ = ["cli"]

#: Solved in a moment, and compiles nothing.
SUITE = (EXAMPLES / "banks.json", EXAMPLES / "saxpy.dfg.json")


@pytest.fixture
def batches(cli: Cli, tmp_path: Path) -> tuple[Path, Path]:
    """A suite of two kinds, solved by one command twice over."""
    suite = tmp_path / "suite"
    suite.mkdir()
    for path in SUITE:
        (suite / path.name).write_bytes(path.read_bytes())
    outcome = cli("compare", "--table3", suite / "*", "-o", tmp_path / "out", "--target", "se", "--candidates", "cpsat,search")
    assert outcome.code == 0, outcome.err
    return tmp_path / "out" / "with-learned", tmp_path / "out" / "without-learned"


def test_one_command_for_a_suite_and_again(cli: Cli, batches: tuple[Path, Path], tmp_path: Path) -> None:
    for folder in batches:
        record = json.loads((folder / "banks.result.json").read_text())
        assert (record["result"]["baseline_name"], record["settings"]["baseline"]) == ("by_size", "prod")
        os.utime(folder / "banks.result.json", (1, 1))
    command = ("compare", "--table3", tmp_path / "suite" / "*", "-o", tmp_path / "out", "--target", "se")
    outcome = cli(*command, "--candidates", "cpsat,search")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == "speedup over by_size, list inputs mean median max min improved same worse"
    assert [line.split()[:2] for line in lines[1:3]] == [["with-learned-prod", "2"], ["without-learned-prod", "2"]]
    assert any(line.startswith("with-learned: plans returned are of ") for line in lines)
    assert "[1/2] banks, with-learned" in outcome.err
    # What is finished has been read, not solved.
    assert {(folder / "banks.result.json").stat().st_mtime for folder in batches} == {1.0}


def test_of_folders_in_every_form(cli: Cli, batches: tuple[Path, Path]) -> None:
    found = json.loads(cli("compare", "--table3", *batches, "--json").out)
    assert [row["player"] for row in found["rows"]] == ["with-learned-prod", "without-learned-prod"]
    assert all(row["worse"] == 0 for row in found["rows"])
    rows = list(csv.reader(cli("compare", "--table3", batches[0], "--csv").out.splitlines()))
    assert rows[0] == ["program", "baseline", "objective", "with-learned: objective", "gain %", "returned", "gap"]
    assert rows[1][:2] == ["banks", "by_size"]
    assert 0 < float(rows[1][4]) < 100
    assert rows[2][4] == ""
    text = cli("compare", "--table3", batches[0], "--markdown").out
    assert "| --- | --: | --: | --: | --: | --: | --: | --: | --: |" in text.splitlines()


def test_bad_usage_is_one_line(cli: Cli, batches: tuple[Path, Path], tmp_path: Path) -> None:
    assert "found a folder twice" in error_line(cli("compare", "--table3", batches[0], batches[0]))
    assert "with the baseline xla to compare" in error_line(cli("compare", "--table3", batches[0], "--baseline", "xla"))
    assert "-o: goes with --table3 alone" in error_line(cli("compare", batches[0], "-o", tmp_path))
    assert "--csv: goes with --table3 alone" in error_line(cli("compare", batches[0], "--csv"))
    line = error_line(cli("compare", "--table3", batches[0], "--time-limit", 3))
    assert "--time-limit: goes with --table3 with -o FOLDER alone" in line
    assert "expected folders of results" in error_line(cli("compare", "--table3", SUITE[0]))
    line = error_line(cli("compare", "--table3", SUITE[0], "-o", tmp_path / "new", "--fixed", SUITE[0]))
    assert "--fixed: each input needs files of its own" in line
    assert not (tmp_path / "new").exists()
