"""What the logger ``stowplan`` has of a run."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stowplan
from tests.kernel.conftest import SolveFakes
from tests.kernel.fakes import ladder_problem
from tests.patience import HANG


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "stowplan" and record.levelno == level]


def test_plans_bounds_and_the_end_are_told(solve_fakes: SolveFakes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="stowplan"):
        result = solve_fakes("improves", "solves", "proves")
    told = messages(caplog, logging.INFO)
    assert told[0].startswith(f"run of memory mapping {ladder_problem().digest[:12]}: improves, solves, proves; limit ")
    assert told[-1].startswith("run ended by optimal after ")
    assert sum(each.startswith("first plan ") for each in told) == 1
    assert any(re.fullmatch(r"better plan .* by (improves|solves) after [\d.]+ s", each) for each in told)
    assert any(re.fullmatch(r"bound .* by proves after [\d.]+ s", each) for each in told)
    assert result.status == "optimal"


def test_candidates_start_and_end(solve_fakes: SolveFakes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="stowplan"):
        solve_fakes("solves", "improves")
    told = messages(caplog, logging.DEBUG)
    for name in ("solves", "improves"):
        assert sum(each.startswith(f"candidate {name} started in a process ") for each in told) == 1
        assert sum(each.startswith(f"candidate {name} finished after ") for each in told) == 1


def test_failures_and_bad_plans_are_told(solve_fakes: SolveFakes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="stowplan"):
        result = solve_fakes("raises", "overfills")
    told = messages(caplog, logging.INFO)
    outcomes = {report.name: report.outcome for report in result.candidates}
    assert outcomes == {"raises": "failed", "overfills": "rejected"}
    assert any(each.startswith("candidate raises failed after ") for each in told)
    assert any("failed verification: " in each for each in told)
    assert not messages(caplog, logging.DEBUG)


def test_a_result_of_the_plan_cache_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tests.report.test_notebook import problem

    with caplog.at_level(logging.INFO, logger="stowplan"):
        for _ in range(2):
            stowplan.solve(problem(), candidates="heuristic", time_limit=20, cache=tmp_path)
    told = messages(caplog, logging.INFO)
    assert sum(each.startswith("run of packing ") for each in told) == 1
    assert told[-1].startswith("found in the plan cache: optimal")


def test_nothing_is_written_by_itself() -> None:
    code = "import logging, stowplan.log; logging.getLogger('stowplan').error('x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True)
    assert (done.stdout, done.stderr) == ("", "")
