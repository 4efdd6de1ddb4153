"""Notes of front ends: on the problem, in its file, and at the head of the warnings of its results."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

import stowplan
from stowplan.log import MAX_NOTE_LENGTH, MAX_NOTES, bounded
from tests.cli.conftest import BRIEF, EXAMPLES, Cli
from tests.paths import DATA

BRANCHES = DATA / "hlo" / "branches.hlo.txt"
NOTE = "branches of chosen stand one after the other, each counted once"


def test_notes_are_few_short_and_told_once() -> None:
    assert bounded(["a", "b", "a"]) == ("a", "b")
    assert bounded(["two\nlines"]) == ("two lines",)
    many = bounded(f"note {number}" for number in range(1000))
    assert (len(many), many[-1]) == (MAX_NOTES, f"and {1000 - MAX_NOTES + 1} more")
    assert bounded(many) == many
    long = bounded(["x" * 5000])
    assert len(long[0]) == MAX_NOTE_LENGTH
    assert bounded(long) == long


def test_notes_reach_library_summary_and_json(cli: Cli, tmp_path: Path) -> None:
    problem = stowplan.read(BRANCHES, target="teaching")
    assert problem.notes == (NOTE,)
    result = stowplan.solve(problem, candidates="relaxation", time_limit=0.3)
    assert result.warnings.count(NOTE) == 1
    assert f"  warning    {NOTE}" in result.summary().splitlines()
    arguments = ("solve", BRANCHES, "--target", "teaching", *BRIEF, "-q")
    assert NOTE in json.loads(cli(*arguments, "--json").out)["warnings"]
    assert f"  warning    {NOTE}" in cli(*arguments).out.splitlines()


def test_a_converted_problem_keeps_its_notes(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    assert cli("convert", BRANCHES, "--target", "teaching", "-o", file).code == 0
    assert NOTE in json.loads(cli("solve", file, *BRIEF, "--json", "-q").out)["warnings"]
    problem = stowplan.read(file)
    assert problem == stowplan.read(BRANCHES, target="teaching")
    # A plan is not tied to them, and files from before there were any still read.
    without = msgspec.structs.replace(problem, notes=())
    assert without.digest == problem.digest
    values = json.loads(file.read_text())
    del values["notes"]
    file.write_text(json.dumps(values))
    assert stowplan.read(file) == without


def test_notes_of_a_network(tmp_path: Path) -> None:
    layers = json.loads((EXAMPLES / "resnet50.layers.json").read_text())
    layers["notes"] = ["odd is not known here"]
    file = tmp_path / "layers.json"
    file.write_text(json.dumps(layers))
    problem = stowplan.read(file, target="nnp-i")
    assert problem.notes == ("odd is not known here",)
    assert problem.digest == stowplan.read(EXAMPLES / "resnet50.layers.json", target="nnp-i").digest
    assert stowplan.solve(problem, candidates=(), time_limit=1).warnings == problem.notes
