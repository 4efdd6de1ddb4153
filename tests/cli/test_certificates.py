"""``solve --certificate`` writes a proof of the bound, ``verify --bound`` checks it, and results say both bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import EXAMPLES, Cli, error_line

BUFFERS = EXAMPLES / "buffers.csv"


@pytest.fixture
def made(cli: Cli, tmp_path: Path) -> tuple[Path, Path]:
    """Plan and certificate of the example of packing."""
    plan, proof = tmp_path / "plan.json", tmp_path / "proof.json"
    done = cli("solve", BUFFERS, "-q", "-o", plan, "--certificate", proof, "--time-limit", 5)
    assert done.code == 0, done.err
    assert "certified  2,609,152 bytes  gap 0.00%  (by load)" in done.out
    return plan, proof


def test_a_certificate_is_checked(cli: Cli, made: tuple[Path, Path]) -> None:
    plan, proof = made
    done = cli("verify", BUFFERS, plan, "--bound", proof)
    assert done.code == 0, done.err
    assert "proven bound: 2,609,152 bytes, by load: within 0.00% of the optimum" in done.out
    values = json.loads(cli("verify", BUFFERS, plan, "--bound", proof, "--json").out)
    assert values == {"ok": True, "objective": 2609152, "violations": [], "bound": 2609152, "proof": "load"}


def test_a_proof_that_fails_says_where(cli: Cli, made: tuple[Path, Path]) -> None:
    plan, proof = made
    stated = json.loads(proof.read_text())
    proof.write_text(json.dumps(stated | {"bound": stated["bound"] + 1}))
    done = cli("verify", BUFFERS, plan, "--bound", proof)
    assert done.code == 4
    assert "the bound is not proven: bound: it claims 2609153, its proof shows 2609152" in done.err
    done = cli("verify", BUFFERS, plan, "--bound", proof, "--json")
    assert done.code == 4
    assert not json.loads(done.out)["ok"]
    proof.write_text(json.dumps(stated | {"proof": {"form": "trusted"}}))
    assert cli("verify", BUFFERS, plan, "--bound", proof).code == 4


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "stowplan.certificate", "version": 9}', "[" * 9999])
def test_what_is_no_certificate_is_refused(cli: Cli, made: tuple[Path, Path], text: str) -> None:
    plan, proof = made
    proof.write_text(text)
    done = cli("verify", BUFFERS, plan, "--bound", proof)
    assert done.code == 2
    assert str(proof) in error_line(done)


def test_a_certificate_does_not_overwrite_the_input(cli: Cli, tmp_path: Path) -> None:
    copy = tmp_path / "buffers.csv"
    copy.write_bytes(BUFFERS.read_bytes())
    assert cli("solve", copy, "--certificate", copy).code == 2
    assert copy.read_bytes() == BUFFERS.read_bytes()


def test_results_and_reports_say_both_bounds(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = cli("solve", BUFFERS, "-q", "--json", "--set", "certify=yes", "--report", page, "--time-limit", 5)
    values = json.loads(done.out)
    assert (values["bound"], values["certified_bound"], values["proof"]) == (2609152, 2609152, "load")
    assert "Certified bound" in page.read_text()
    plain = json.loads(cli("solve", BUFFERS, "-q", "--json", "--time-limit", 5).out)
    assert "proof" not in plain


def test_a_batch_says_both_bounds(cli: Cli, tmp_path: Path) -> None:
    done = cli("batch", BUFFERS, "-q", "-o", tmp_path / "out", "--set", "certify=yes", "--time-limit", 5)
    assert done.code == 0, done.err
    assert "certified" in done.out
    assert "load" in done.out
    record = json.loads((tmp_path / "out" / "buffers.result.json").read_text())
    assert record["result"]["certified_bound"] == record["result"]["bound"]
