"""``benchmarks/memory_mapping/table3.py``: a suite solved twice, and the table in every form."""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.lib.input_options import add_input_options, read_options
from benchmarks.memory_mapping import table3
from stowplan.frontends.options import ReadOptions
from tests.paths import EXAMPLES

#: Solved in a moment, and compiles nothing.
SUITE = (EXAMPLES / "banks.json", EXAMPLES / "saxpy.dfg.json")


class Outcome(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the benchmark with the given arguments in this process."""

    def outcome(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = table3.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return outcome


def error_line(outcome: Outcome) -> str:
    """The one line an error may have."""
    assert (outcome.code, outcome.out) == (2, ""), outcome
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: "), outcome.err
    return line


@pytest.fixture
def batches(run: Run, tmp_path: Path) -> tuple[Path, Path]:
    """A suite of two kinds, solved by one command twice over."""
    suite = tmp_path / "suite"
    suite.mkdir()
    for path in SUITE:
        (suite / path.name).write_bytes(path.read_bytes())
    outcome = run(suite / "*", "-o", tmp_path / "out", "--target", "se", "--candidates", "cpsat,search")
    assert outcome.code == 0, outcome.err
    return tmp_path / "out" / "with-learned", tmp_path / "out" / "without-learned"


def test_one_command_for_a_suite_and_again(run: Run, batches: tuple[Path, Path], tmp_path: Path) -> None:
    for folder in batches:
        record = json.loads((folder / "banks.result.json").read_text())
        assert (record["result"]["baseline_name"], record["settings"]["baseline"]) == ("by_size", "prod")
        os.utime(folder / "banks.result.json", (1, 1))
    command = (tmp_path / "suite" / "*", "-o", tmp_path / "out", "--target", "se")
    outcome = run(*command, "--candidates", "cpsat,search")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == "speedup over by_size, list inputs mean median max min improved same worse"
    assert [line.split()[:2] for line in lines[1:3]] == [["with-learned-prod", "2"], ["without-learned-prod", "2"]]
    assert any(line.startswith("with-learned: plans returned are of ") for line in lines)
    assert "[1/2] banks, with-learned" in outcome.err
    # What is finished has been read, not solved.
    assert {(folder / "banks.result.json").stat().st_mtime for folder in batches} == {1.0}


def test_of_folders_in_every_form(run: Run, batches: tuple[Path, Path]) -> None:
    found = json.loads(run(*batches, "--json").out)
    assert [row["player"] for row in found["rows"]] == ["with-learned-prod", "without-learned-prod"]
    assert all(row["worse"] == 0 for row in found["rows"])
    rows = list(csv.reader(run(batches[0], "--csv").out.splitlines()))
    assert rows[0] == ["program", "baseline", "objective", "with-learned: objective", "gain %", "returned", "gap"]
    assert rows[1][:2] == ["banks", "by_size"]
    assert 0 < float(rows[1][4]) < 100
    assert rows[2][4] == ""
    text = run(batches[0], "--markdown").out
    assert "| --- | --: | --: | --: | --: | --: | --: | --: | --: |" in text.splitlines()


def test_bad_usage_is_one_line(run: Run, batches: tuple[Path, Path], tmp_path: Path) -> None:
    assert "found a folder twice" in error_line(run(batches[0], batches[0]))
    assert "with the baseline xla to compare" in error_line(run(batches[0], "--baseline", "xla"))
    assert "--time-limit: goes with -o FOLDER alone" in error_line(run(batches[0], "--time-limit", 3))
    assert "--target: goes with -o FOLDER alone" in error_line(run(batches[0], "--target", "se"))
    assert "found no folder, expected one that 'stowplan batch' wrote" in error_line(run(SUITE[0]))
    line = error_line(run(SUITE[0], "-o", tmp_path / "new", "--set", f"fixed={SUITE[0]}"))
    assert "--set fixed: each input needs files of its own" in line
    assert not (tmp_path / "new").exists()


def test_options_of_inputs_have_their_types() -> None:
    parser = argparse.ArgumentParser()
    add_input_options(parser)
    assert read_options(parser.parse_args([])) == ReadOptions()
    given = (
        "--target se --capacity 4096 --set address_spaces=yes --set balance=yes --set fan_out=2 --set cycles=a --set cycles=b"
    )
    assert read_options(parser.parse_args(given.split())) == ReadOptions(
        target="se", capacity=4096, address_spaces=True, rules=("balance=yes", "fan_out=2"), cycles=("a", "b")
    )
