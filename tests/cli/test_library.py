"""``stowplan library`` and ``stowplan schema``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stowplan.library import table
from stowplan.library.check import write
from stowplan.library.table import Library
from tests.cli.conftest import EXAMPLES, Cli, error_line
from tests.library.cases import PROVEN, TWO, library, plan, proof


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library(tmp_path / "library")
    monkeypatch.setenv(table.VARIABLE, str(tmp_path / "library"))
    return tmp_path / "library"


def test_list(cli: Cli, folder: Path) -> None:
    done = cli("library", "list")
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines()[1:3]] == [
        ["two-proven", "easy", "96", "bytes", "96", "bytes", "0.00%"],
        ["two-open", "open", "-", "-", "-"],
    ]
    assert done.out.splitlines()[-1] == "2 instances: 1 easy, 0 hard, 1 open; 1 proven, 1 of them with a certificate"
    assert [row["id"] for row in json.loads(cli("library", "list", "--class", "open", "--json").out)] == ["two-open"]
    assert cli("library", "list", "--kind", "banked-packing").out.startswith("no such instance\n")
    assert "found kind 'bins', expected one of" in error_line(cli("library", "list", "--kind", "bins"))


def test_a_bound_without_a_certificate_is_marked(cli: Cli, folder: Path) -> None:
    text = (folder / "table.csv").read_text()
    (folder / "table.csv").write_text(text.replace(",96,96,96,", ",96,96,,"))
    assert "96 bytes*" in cli("library", "list").out


def test_show(cli: Cli, folder: Path, tmp_path: Path) -> None:
    done = cli("library", "show", "two-proven")
    assert ("objective    96 bytes" in done.out, f"digest       {PROVEN.digest}" in done.out) == (True, True)
    assert json.loads(cli("library", "show", "two-proven", "--json").out)["class"] == "easy"
    assert cli("library", "show", "two-proven", "-o", tmp_path / "two.json").code == 0
    assert (tmp_path / "two.json").read_bytes() == (folder / "packing" / "two-proven.json").read_bytes()
    assert cli("library", "show", "two-proven", "-o", tmp_path / "two.csv").code == 0
    assert (tmp_path / "two.csv").read_text() == "id,lower,upper,size\na,0,3,64\nb,2,5,32\n"
    assert "found no instance 'two', expected an id" in error_line(cli("library", "show", "two"))
    (folder / "table.csv").write_text((folder / "table.csv").read_text().replace("packing", "operator_order"))
    said = error_line(cli("library", "show", "two-proven", "-o", tmp_path / "other.csv"))
    assert "CSV is for packing, and two-proven is a problem of operator order: write JSON" in said
    assert not (tmp_path / "other.csv").exists()


def test_check(cli: Cli, folder: Path) -> None:
    assert cli("library", "check").out.startswith("2 instances: 1 plan and 1 certificate checked in ")
    assert cli("library", "check", "two-proven").out.startswith("1 instance: 1 plan and 1 certificate checked in ")
    assert cli("library", "check", "two-open").out.startswith("1 instance: 0 plans and 0 certificates checked in ")
    write(folder / PROVEN.plan, plan(0, 60))
    done = cli("library", "check")
    assert (done.code, len(done.err.splitlines())) == (4, 1)
    assert "two-proven: " in done.out
    assert "not a valid plan" in done.out
    assert "found 1 fault, expected none: two-proven: " in done.err
    assert json.loads(cli("library", "check", "--json").out)["faults"][0]["id"] == "two-proven"
    assert cli("library", "check", "two-open").code == 0


def test_add(cli: Cli, folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "plan.json", plan(0, 64))
    write(tmp_path / "proof.json", proof())
    done = cli("library", "add", "two-open", tmp_path / "plan.json", "--who", "me", "--how", "by hand", "--when", "2026-12-24")
    assert (done.code, done.err) == (0, "two-open: plan 96: better, the table has none\n")
    assert done.out.splitlines()[1].endswith(",96,,,me,2026-12-24,by hand,plans/two-open.json,")
    assert Library.open(folder).row("two-open").objective is None
    assert "found no --who or no --how" in error_line(cli("library", "add", "two-open", tmp_path / "plan.json", "--write"))
    for name in ("plan.json", "proof.json"):
        done = cli("library", "add", "two-open", tmp_path / name, "--who", "me", "--how", "by hand", "--write")
        assert "two-open is updated" in done.err
    assert Library.open(folder).row("two-open").class_ == "hard"
    assert cli("library", "check").code == 0
    done = cli("library", "add", "two-open", tmp_path / "proof.json")
    assert done.err == "two-open: certified bound 96: equal, the table has 96\n"
    write(tmp_path / "plan.json", plan(0, 60))
    assert "not a valid plan" in error_line(cli("library", "add", "two-open", tmp_path / "plan.json"), 4)
    said = error_line(cli("library", "add", "two-open", tmp_path / "proof.json", "--when", "today"))
    assert said == "stowplan: --when: found 'today', expected a date such as 2026-01-31"


def test_schema(cli: Cli) -> None:
    found = json.loads(cli("schema", "banked-packing", "plan").out)
    assert found["properties"]["format"] == {"const": "stowplan.banked_packing.plan"}
    assert json.loads(cli("schema", "packing").out)["title"] == "stowplan.packing.problem"
    assert "found kind 'bins'" in error_line(cli("schema", "bins"))


def test_problems_of_packing_become_csv(cli: Cli, tmp_path: Path) -> None:
    TWO.save(tmp_path / "two.json")
    assert cli("convert", tmp_path / "two.json", "-o", tmp_path / "two.csv").code == 0
    assert (tmp_path / "two.csv").read_text() == "id,lower,upper,size\na,0,3,64\nb,2,5,32\n"
    said = error_line(cli("convert", EXAMPLES / "banks.json", "-o", tmp_path / "banks.csv"))
    assert "banks.csv: CSV is for packing, and" in said
    assert not (tmp_path / "banks.csv").exists()
