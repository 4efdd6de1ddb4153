"""A package that is installed beside stowplan adds a kind by entry points, with its form of certificates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stowplan import kinds
from stowplan.errors import UsageError
from tests.patience import HANG

HERE = Path(__file__).parent

PROBLEM = {"format": "stowplan.makespan.problem", "version": 1, "jobs": [5, 3, 3, 2, 2, 1], "machines": 2, "name": "six"}


def run(*arguments: object, code: int = 0) -> str:
    """Output of a Python process that finds the package, as one that is installed."""
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, env=environment)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "six.json"
    path.write_text(json.dumps(PROBLEM))
    return path


def test_it_is_solved_verified_and_certified(problem: Path, tmp_path: Path) -> None:
    plan, proof = tmp_path / "plan.json", tmp_path / "proof.json"
    solved = run("stowplan", "solve", problem, "-o", plan, "--certificate", proof, "--time-limit", 60, "-q", "--json")
    result = json.loads(solved)
    assert (result["kind"], result["objective"], result["status"], result["proof"]) == ("makespan", 8, "optimal", "area")
    assert run("stowplan", "verify", problem, plan) == "valid: 8 minutes\n"
    assert run("stowplan.certificates.checker", problem, proof) == "proven by area: no plan is below 8\n"
    proof.write_text(json.dumps(json.loads(proof.read_text()) | {"bound": 9}))
    assert "it claims 9, its proof shows 8" in run("stowplan.certificates.checker", problem, proof, code=4)
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"machines": [0, 0, 0, 0, 0, 2]}))
    assert "unknown_machine: job 5 is on machine 2 of 2" in run("stowplan", "verify", problem, plan, code=4)


def test_without_the_package_there_is_no_such_kind() -> None:
    with pytest.raises(UsageError, match="found kind 'makespan', expected one of memory_mapping, packing, "):
        kinds.by_name("makespan")
    assert kinds.of_format("stowplan.makespan.problem", "problem") is None
