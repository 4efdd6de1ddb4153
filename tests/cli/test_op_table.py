"""``--set op_table`` and ``--set strict=yes``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, error_line
from tests.paths import EXAMPLES

GRAPH, TABLE = EXAMPLES / "dot_product.llvm.dot", EXAMPLES / "dot_product.ops.toml"


def test_an_unknown_op_warns_and_a_table_explains_it(tmp_path: Path, cli: Cli) -> None:
    plan, report = tmp_path / "plan.json", tmp_path / "report.html"
    machine = ("--target", "se", "--set", "inputs=instructions")
    limits = ("--time-limit", 20, "--gap", 0.001, "-q")
    assert json.loads(cli("solve", GRAPH, *machine, *limits, "--json").out)["warnings"] == [
        "1 instruction has an op that no op table knows, mapped as a generic operation: clip (1)"
    ]
    solved = cli("solve", GRAPH, *machine, *limits, "--set", f"op_table={TABLE}", "-o", plan, "--report", report)
    assert solved.code == 0
    assert "warning" not in solved.out
    assert "getelementptr" in report.read_text()
    shown = cli("show", plan, GRAPH, *machine, "--set", f"op_table={TABLE}").out
    assert "c: clip" in shown
    assert "a: getelementptr" in shown
    # Latencies and tiles are part of what a plan is for.
    assert cli("verify", GRAPH, plan, *machine, "--set", f"op_table={TABLE}").code == 0
    assert cli("verify", GRAPH, plan, *machine).code != 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "strict=yes"), "line 13: found the unknown op 'clip'"),
        (("--set", "op_table=nothing.toml"), "nothing.toml: cannot read"),
        (("--set", f"op_table={EXAMPLES / 'fir.dfg.json'}"), "fir.dfg.json: format: found None, expected 'stowplan.op_table'"),
        (("--set", "strict=perhaps"), "rule: found strict 'perhaps', expected yes or no"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[object, ...], message: str, cli: Cli) -> None:
    assert message in error_line(cli("solve", GRAPH, "--target", "se", *arguments))


def test_a_table_is_not_written_over(tmp_path: Path, cli: Cli) -> None:
    table = tmp_path / "ops.toml"
    table.write_text(TABLE.read_text())
    assert "is an input of this command" in error_line(
        cli("solve", GRAPH, "--target", "se", "--set", f"op_table={table}", "-o", table)
    )


def test_a_batch_takes_it_for_its_graphs(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "buffers.csv").write_text("id,lower,upper,size\na,0,2,5\n")
    machine = ("--target", "se", "--set", "inputs=instructions", "--candidates", "cpsat", "--time-limit", 20, "--gap", 0.001)
    outcome = cli(
        "batch", GRAPH, tmp_path / "buffers.csv", "-o", tmp_path / "out", *machine, "--set", f"op_table={TABLE}", "--json", "-q"
    )
    graph, buffers = (each["record"] for each in json.loads(outcome.out))
    assert (outcome.code, buffers["exit_code"]) == (0, 0)
    assert (graph["result"]["warnings"], graph["settings"]["op_table"]) == ([], str(TABLE))
