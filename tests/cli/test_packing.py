"""Buffers to pack, on the command line: files of other tools, exit codes, units, explanations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, error_line

FIVE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"
#: Fixed in the way of each other: 8 bytes are free at every moment, but never at one place.
SPLIT = "buffer,start,upper,size,offset\nlow,0,2,4,4\nhigh,2,4,4,8\nlong,0,4,8,\n"


@pytest.fixture
def five(tmp_path: Path) -> Path:
    path = tmp_path / "five.csv"
    path.write_text(FIVE)
    return path


def test_a_plan_as_a_table(cli: Cli, five: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    solved = cli("solve", five, "--capacity", 14, "-o", plan, "--json")
    assert solved.code == 0
    values = json.loads(solved.out)
    assert (values["unit"], values["objective"] <= 14, values["stop_reason"] in ("optimal", "fits")) == ("bytes", True, True)
    assert "bytes" in solved.err
    assert " ps" not in solved.err
    valid = cli("verify", five, plan, "--capacity", 14)
    assert (valid.code, valid.out) == (0, f"valid: {values['objective']} bytes, within the capacity of 14 bytes\n")
    assert cli("verify", five, plan, "--capacity", 11).code == 4


@pytest.mark.parametrize(
    ("rows", "code", "word"),
    [
        ("b1,0,3,4,8\nb2,3,9,4,8\nb3,0,9,4,4\nb4,9,21,4,4\nb5,0,21,4,0\n", 0, "valid: 12 bytes"),
        ("b1,0,3,4,8\nb2,3,9,4,8\nb3,0,9,4,4\nb4,9,21,4,2\nb5,0,21,4,0\n", 4, "overlap"),
        ("b1,0,3,4,8\nb2,3,9,4,8\nb3,0,9,4,4\nb4,9,21,4,4\nb5,0,21,4,-4\n", 4, "negative_offset"),
        ("b1,0,3,4,8\nb2,3,9,4,8\nb3,0,9,4,4\nb4,9,21,3,4\nb5,0,21,4,0\n", 4, "wrong_problem"),
    ],
)
def test_tables_of_other_tools_are_verified(cli: Cli, five: Path, rows: str, code: int, word: str) -> None:
    plan = five.with_name("other.csv")
    plan.write_text("id,lower,upper,size,offset\n" + rows)
    outcome = cli("verify", five, plan)
    assert outcome.code == code
    assert word in outcome.out


def test_a_table_that_lacks_an_offset(cli: Cli, five: Path) -> None:
    plan = five.with_name("other.csv")
    plan.write_text("id,lower,upper,size,offset\nb1,0,3,4,8\n")
    assert "no offset for buffer 'b2'" in error_line(cli("verify", five, plan, "--capacity", 12))


def test_what_load_refutes_is_explained(cli: Cli, five: Path) -> None:
    outcome = cli("solve", five, "--capacity", 11, "-q")
    assert outcome.code == 1
    assert "3 buffers (b1, b3, b5) live at once in [0, 3) and take 12 bytes" in outcome.out


@pytest.mark.slow
def test_what_only_a_search_refutes_is_explained(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    path.write_text(SPLIT)
    outcome = cli("solve", path, "--capacity", 12, "--candidates", "canonical", "--json", "-q")
    assert outcome.code == 1
    details = json.loads(outcome.out)["details"]
    assert details["conflict"] == {
        "proof": "search",
        "span": [0, 2],
        "load": 12,
        "buffers": ["low", "long"],
        "irreducible": True,
    }


def test_a_buffer_larger_than_the_capacity(cli: Cli, five: Path) -> None:
    outcome = cli("solve", five, "--capacity", 3, "-q")
    assert outcome.code == 1
    assert "takes 4 bytes, more than the capacity of 3" in outcome.out


def test_no_proof_is_no_infeasibility(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    path.write_text(SPLIT)
    outcome = cli("solve", path, "--capacity", 12, "--candidates", "heuristic", "--time-limit", 1.5, "-q")
    assert outcome.code == 3
    assert "no_plan" in outcome.out
