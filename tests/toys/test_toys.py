"""A kind and a format that are registered get every command, with no other file touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.errors import InputError
from stowplan.frontends.formats import Source
from stowplan.frontends.options import ReadOptions
from stowplan.log import UnmodelledWarning
from tests.cli.conftest import Cli, cli, error_line
from tests.toys.number_list import FORMAT
from tests.toys.sums.kind import plan_of

__all__ = ["cli"]

pytestmark = pytest.mark.usefixtures("toys")


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "four.numbers"
    path.write_text("5\n4\n3\n2\n")
    return path


def test_solve_in_a_worker_and_verify(cli: Cli, numbers: Path, tmp_path: Path) -> None:
    plan, report = tmp_path / "plan.json", tmp_path / "report.html"
    outcome = cli("solve", numbers, "-o", plan, "--report", report, "--time-limit", 60, "-q", "--json")
    result = json.loads(outcome.out)
    assert (outcome.code, result["status"], result["objective"], result["baseline"]) == (0, "optimal", 5, 9)
    assert [candidate["name"] for candidate in result["candidates"]] == ["smallest"]
    assert "5 points" in report.read_text()
    assert cli("verify", numbers, plan).out == "valid: 5 points\n"
    spoilt = json.loads(plan.read_text())
    plan.write_text(json.dumps(spoilt | {"chosen": [2, 2]}))
    assert cli("verify", numbers, plan).code == 4


def test_convert_and_show(cli: Cli, numbers: Path, tmp_path: Path) -> None:
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    assert cli("convert", numbers, "-o", problem, "--capacity", 3).err.endswith("problem.json: 3 numbers\n")
    assert cli("solve", problem, "-o", plan, "--time-limit", 60, "-q").code == 0
    assert "objective  7 points" in cli("show", plan, problem).out
    for option in (["--simulate", 3], ["--json"]):
        assert f"{option[0]}: plans of the kind sums configure no machine" in error_line(cli("show", plan, problem, *option))
    refused = error_line(cli("solve", problem, "--emit", f"config={tmp_path / 'tables.json'}"))
    assert "--emit config: plans of the kind sums configure no machine" in refused


def test_deterministic_runs_are_alike(numbers: Path) -> None:
    problem = stowplan.read(numbers)
    results = [stowplan.solve(problem, time_limit=60, deterministic=True) for _ in range(2)]
    assert results[0].plan == results[1].plan


def test_every_command_says_what_is_not_modelled(cli: Cli, numbers: Path, tmp_path: Path) -> None:
    problem, plan, report, out = (tmp_path / name for name in ("problem.json", "plan.json", "report.html", "out"))
    signed = numbers.with_name("signed.numbers")
    signed.write_text("-5\n4\n-3\n2\n")
    told = "line 1 and 1 more: negative numbers count as positive: sums may be too large"
    outcome = cli("solve", signed, "-o", plan, "--report", report, "--time-limit", 60, "-q", "--json")
    assert json.loads(outcome.out)["warnings"] == [told]
    assert told in report.read_text()
    for command in (["verify", signed, plan], ["show", plan, signed], ["convert", signed, "-o", problem]):
        assert f"warning: {told}\n" in cli(*command).err
    assert cli("batch", tmp_path, "-o", out, "--time-limit", 60, "-q").code == 0
    records = {Path(record["input"]).name: record["result"]["warnings"] for record in map(_json, out.glob("**/*.result.json"))}
    assert records == {"signed.numbers": [told], "four.numbers": [], "problem.json": []}
    # The problem says none of it: its file and digest are those of the same list without a remark.
    assert not cli("verify", problem, plan).err
    with pytest.warns(UnmodelledWarning, match="^line 1 and 1 more: negative"):
        assert stowplan.read(signed).digest == stowplan.read(problem).digest
    # A reader that is called by itself says each.
    with pytest.warns(UnmodelledWarning) as caught:
        FORMAT.open(Source(signed, None, None), ReadOptions())
    assert [str(each.message).partition(":")[0] for each in caught] == ["line 1", "line 3"]


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_batch_and_compare(cli: Cli, numbers: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "1 of 1 solved" in cli("batch", numbers.parent, "-o", out, "--time-limit", 60, "-q").out
    assert "four" in cli("compare", out).out


def test_compare_plans(cli: Cli, numbers: Path, tmp_path: Path) -> None:
    problem = stowplan.read(numbers)
    for name, chosen in (("first", (0, 1)), ("second", (0, 3))):
        plan_of(problem, *chosen).save(tmp_path / f"{name}.json")
    found = json.loads(cli("compare", tmp_path / "first.json", tmp_path / "second.json", numbers, "--json").out)
    assert (found["first"], found["second"]) == (9, 7)
    assert [change["name"] for part in found["parts"] for change in part["changes"]] == ["chosen[1]"]


def test_bad_input_names_the_place(cli: Cli, numbers: Path) -> None:
    numbers.write_text("1\ntwo\n")
    with pytest.raises(InputError, match="line 2: found 'two', expected a number"):
        stowplan.read(numbers)
    refused = error_line(cli("solve", numbers, "--target", "tpu-v4"))
    assert "is a list of numbers: it takes --capacity, but not --target" in refused
