"""Graphs of operators on the command line: exit codes, files, targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, cli, error_line
from tests.paths import EXAMPLES

__all__ = ["cli"]

CELLS = EXAMPLES / "cells.graph.json"
HLO = """HloModule m, is_scheduled=true

ENTRY %main (x: f32[8]) -> f32[2] {
  %x = f32[8]{0} parameter(0)
  %two = f32[8]{0} add(%x, %x)
  ROOT %part = f32[2]{0} slice(%two), slice={[0:2]}
}
"""


def test_solve_verify_show(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    solved = cli("solve", CELLS, "-o", plan, "--json", "--candidates", "sets", "--report", tmp_path / "r.html")
    assert solved.code == 0
    values = json.loads(solved.out)
    assert (values["status"], values["objective"], values["bound"]) == ("optimal", 622_592, 622_592)
    assert values["details"]["arena"] >= 622_592
    assert cli("verify", CELLS, plan).out == "valid: 622,592 bytes\n"
    assert "<- peak" in cli("show", plan, CELLS).out
    assert (tmp_path / "r.html").read_text().count("Live bytes over the order") >= 1


def test_changed_plans_fail(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert cli("solve", CELLS, "-o", plan, "--candidates", "sets", "--time-limit", 10, "-q").code == 0
    values = json.loads(plan.read_text())
    values["order"][0], values["order"][-1] = values["order"][-1], values["order"][0]
    plan.write_text(json.dumps(values))
    outcome = cli("verify", CELLS, plan)
    assert outcome.code == 4
    assert "too_early" in outcome.out + outcome.err


def test_the_plan_knows_what_the_input_was_read_for(cli: Cli, tmp_path: Path) -> None:
    path, plan = tmp_path / "m.hlo.txt", tmp_path / "plan.json"
    path.write_text(HLO)
    assert cli("solve", path, "--target", "order", "-o", plan, "-q", "--time-limit", 10).code == 0
    assert cli("verify", path, plan).code == 0
    assert cli("convert", path, "--target", "order", "-o", tmp_path / "problem.json").code == 0
    assert json.loads((tmp_path / "problem.json").read_text())["format"] == "stowplan.operator_order.problem"
    assert cli("verify", tmp_path / "problem.json", plan).code == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ops": [{"name": "a", "reads": [1], "writes": [0]}, {"name": "b", "reads": [0], "writes": [1]}]}, "a cycle"),
        ({"ops": [{"name": "a", "writes": [0]}, {"name": "b", "writes": [0, 1]}]}, "written twice"),
        ({"ops": [{"name": "a", "reads": [0], "writes": [1]}]}, "which no operator writes"),
    ],
)
def test_bad_graphs_are_one_line(cli: Cli, tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "bad.graph.json"
    path.write_text(json.dumps({"tensors": [4, 4], "outputs": [1], **change}))
    outcome = cli("solve", path)
    assert outcome.code == 2
    assert words in error_line(outcome)


def test_targets_list_it(cli: Cli) -> None:
    assert "graphs to order (operator order)" in cli("targets").out
