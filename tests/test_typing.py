"""What a type checker knows of the library's calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG

ROOT = Path(__file__).parent.parent

SOLVED = """
import stowplan
from stowplan.models.packing.problem import Problem
from stowplan.portfolio.packing.kind import KIND

result = stowplan.solve(Problem(buffers=()))
reveal_type(result)
reveal_type(result.plan)
reveal_type(KIND.initial)
reveal_type(stowplan.solve(stowplan.read("x")).plan)
"""


@pytest.mark.slow
def test_a_result_knows_the_type_of_its_plan(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "solved.py"
    script.write_text(SOLVED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, cwd=ROOT)
    plan = "stowplan.models.packing.plan.Plan"
    told = [line.partition('"')[2].rstrip('"') for line in done.stdout.splitlines() if "Revealed type" in line]
    assert told[:2] == [f"stowplan.result.Result[{plan}]", f"{plan} | None"], done.stdout
    assert plan in told[2]
    assert told[3] == "Any | None"
