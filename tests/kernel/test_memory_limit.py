"""A candidate that takes more memory than it may is a failed candidate, not a failed run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan import process_memory
from stowplan.errors import UsageError
from stowplan.kernel.workers.warm import workers
from stowplan.process_memory import resident
from stowplan.result import Result
from tests.kernel.conftest import SolveFakes, is_running
from tests.kernel.fakes import OPTIMUM
from tests.paths import EXAMPLES
from tests.patience import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")

BUFFERS = EXAMPLES / "buffers.csv"

#: Room for what a worker imports; less than what the greedy ones take.
LIMIT = 400 << 20


def pid_of(result: Result) -> int:
    found = re.search(r"pid (\d+)", result.candidates[0].note)
    assert found
    return int(found[1])


@pytest.mark.parametrize("name", ["allocates", "has_a_child_that_allocates"])
def test_one_that_takes_more_has_failed_and_others_go_on(solve_fakes: SolveFakes, name: str) -> None:
    result = solve_fakes(name, "solves", "proves", workers=1, memory_limit=LIMIT)
    greedy = result.candidates[0]
    assert (greedy.name, greedy.outcome) == (name, "failed")
    why = re.search(r"took (\d+) MiB of memory, more than its limit of 400 MiB", greedy.note)
    assert why
    assert int(why[1]) > 400
    assert any(f"the candidate {name} failed: took " in warning for warning in result.warnings)
    assert (result.status, result.objective) == ("optimal", OPTIMUM)
    assert result.provenance.options["memory_limit"] == LIMIT


def test_its_process_is_gone(solve_fakes: SolveFakes) -> None:
    pid = pid_of(solve_fakes("allocates", memory_limit=LIMIT))
    wait_until(lambda: not is_running(pid))


def test_a_limit_is_that_of_one_call(solve_fakes: SolveFakes) -> None:
    """The same process may take more in the next, and what it holds by then does not count against a later limit."""
    workers().close()
    first = solve_fakes("says_where", memory_limit=LIMIT)
    second = solve_fakes("holds_memory")
    assert pid_of(first) == pid_of(second)
    assert second.candidates[0].outcome == "finished"
    held = resident(pid_of(second))
    third = solve_fakes("says_where", memory_limit=2 * held - 2)
    assert pid_of(third) != pid_of(second)
    workers().close()


def test_the_kernel_is_told_whom_to_end_first(solve_fakes: SolveFakes) -> None:
    """Where the memory of the machine runs out, it is a candidate that goes, not the run."""
    (report,) = solve_fakes("says_its_oom_score").candidates
    assert int(report.note.removeprefix("score ")) >= 500


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2GB", True])
def test_a_limit_is_a_number_of_bytes(limit: Any) -> None:
    with pytest.raises(UsageError, match=r"^found a memory limit of .* bytes, expected at least 1, a whole number$"):
        stowplan.solve(stowplan.read(BUFFERS), memory_limit=limit)


def test_where_nobody_can_look_there_are_no_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_memory, "_PROC", tmp_path)
    with pytest.raises(UsageError, match="a memory limit needs /proc, which this system does not have"):
        stowplan.solve(stowplan.read(BUFFERS), memory_limit=LIMIT)


def test_small_problems_are_solved_in_threads_all_the_same() -> None:
    result = stowplan.solve(stowplan.read(BUFFERS), memory_limit=LIMIT, time_limit=60)
    assert result.status == "optimal"


def test_available_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_memory, "_PROC", tmp_path)
    assert process_memory.available() == float("inf")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    7 kB\nBuffers: 1 kB\n")
    assert process_memory.available() == 7 * 1024
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\n")
    assert process_memory.available() == float("inf")
