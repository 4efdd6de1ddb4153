"""Workers that outlive a run: kept, taken again, replaced, and ended with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stowplan.kernel.workers.messages import CandidateId
from stowplan.kernel.workers.warm import KEEP_VARIABLE, workers
from stowplan.result import Result
from tests.kernel.conftest import SolveFakes, is_running
from tests.kernel.fakes import ALL_SLOW, OPTIMUM
from tests.paths import ROOT
from tests.patience import HANG, wait_until

SAYS_WHERE = CandidateId("memory_mapping", "says_where", "tests.kernel.fakes:FAKES")


@pytest.fixture(autouse=True)
def no_others() -> Iterator[None]:
    """Nothing is left of other tests, nor for them."""
    workers().close()
    yield
    workers().close()


def pids(result: Result) -> list[int]:
    notes = "; ".join(report.note for report in result.candidates)
    return [int(note.removeprefix("pid ")) for note in notes.split("; ") if note.startswith("pid ")]


def test_one_process_for_one_call_after_the_other(solve_fakes: SolveFakes) -> None:
    first, second = (solve_fakes("says_where") for _ in range(2))
    assert pids(first) == pids(second)
    assert (first.objective, first.stop_reason) == (second.objective, second.stop_reason)
    assert all(is_running(pid) for pid in pids(first))


def test_one_process_for_one_candidate_after_the_other(solve_fakes: SolveFakes) -> None:
    assert len({*pids(solve_fakes("says_where", "says_where", "says_where", workers=1))}) == 1


def test_one_that_was_prepared_takes_the_first_job(solve_fakes: SolveFakes) -> None:
    assert not workers()._waiting
    workers().prepare(SAYS_WHERE)
    assert workers()._waiting
    assert not workers().is_ready(SAYS_WHERE)
    (pid,) = [process.pid for process in workers()._waiting]
    assert pids(solve_fakes("says_where")) == [pid]
    assert workers().is_ready(SAYS_WHERE)


def test_a_call_from_a_thread_that_ends_leaves_its_workers(solve_fakes: SolveFakes) -> None:
    """The kernel ends a process with the thread that has started it."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(pids(solve_fakes("says_where"))))
    thread.start()
    thread.join()
    assert pids(solve_fakes("says_where")) == found


@pytest.mark.parametrize(
    "name", ["leaves_a_thread", "leaves_a_child", "leaves_the_folder", "leaves_a_variable", "raises", "exits", "leaves"]
)
def test_what_leaves_something_behind_is_not_kept(solve_fakes: SolveFakes, name: str) -> None:
    found = pids(solve_fakes("says_where"))
    assert pids(solve_fakes(name)) in (found, [])
    assert pids(solve_fakes("says_where")) != found
    wait_until(lambda: not any(is_running(pid) for pid in found))


def test_those_that_stop_when_told_are_kept(solve_fakes: SolveFakes) -> None:
    """Long before the limit, at a proof."""
    first = solve_fakes("works_until_told")
    assert (first.status, first.candidates[0].outcome) == ("optimal", "stopped")
    wait_until(lambda: workers()._waiting)
    assert pids(solve_fakes("says_where")) == pids(first)


@pytest.mark.slow
def test_those_that_do_not_stop_are_killed_and_replaced(solve_fakes: SolveFakes) -> None:
    solve_fakes("solves")
    result = solve_fakes("never_stops")
    assert result.status == "optimal"
    (stubborn,) = pids(result)
    wait_until(lambda: not is_running(stubborn))
    wait_until(lambda: workers()._waiting)
    assert solve_fakes("says_where").objective == ALL_SLOW - 18


def test_one_that_is_killed_while_it_waits_is_replaced(solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch) -> None:
    (waiting,) = pids(solve_fakes("says_where"))
    os.kill(waiting, signal.SIGKILL)
    wait_until(lambda: not is_running(waiting))
    result = solve_fakes("says_where")
    assert (result.warnings, result.candidates[0].outcome) == ((), "finished")
    assert pids(result) != [waiting]


@pytest.mark.parametrize("is_over", [False, True])
def test_one_that_dies_on_taking_a_job_costs_nothing(
    is_over: bool, solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end shows only when it is written to, be it there already or on its way."""
    (waiting,) = pids(solve_fakes("says_where"))
    os.kill(waiting, signal.SIGSTOP)
    monkeypatch.setattr("stowplan.kernel.workers.process.WorkerProcess.is_alive", True)
    os.kill(waiting, signal.SIGKILL)
    if is_over:
        wait_until(lambda: not is_running(waiting))
    result = solve_fakes("says_where")
    assert (result.warnings, result.candidates[0].outcome) == ((), "finished")
    assert pids(result) != [waiting]


def test_another_environment_has_other_workers(
    solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = pids(solve_fakes("says_where"))
    monkeypatch.setenv("STOWPLAN_TEST_ANYTHING", "1")
    second = pids(solve_fakes("says_where"))
    monkeypatch.chdir(tmp_path)
    third = pids(solve_fakes("says_where"))
    assert len({*first, *second, *third}) == 3


def test_none_are_kept_where_none_are_wanted(solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv(KEEP_VARIABLE, "0")
        workers().prepare(SAYS_WHERE)
    assert not workers()._waiting
    monkeypatch.setenv(KEEP_VARIABLE, "0")
    found = pids(solve_fakes("says_where"))
    wait_until(lambda: not any(is_running(pid) for pid in found))
    assert pids(solve_fakes("says_where")) != found


def test_no_more_are_kept_than_asked_for(solve_fakes: SolveFakes) -> None:
    solve_fakes(*["says_where"] * 6, workers=6)
    own = workers()
    assert len(own._waiting) <= own._max_waiting


def test_runs_side_by_side_do_not_disturb_each_other(solve_fakes: SolveFakes) -> None:
    results: dict[int, Any] = {}

    def run(number: int) -> None:
        results[number] = [solve_fakes("improves", "solves", "proves", workers=2).objective for _ in range(5)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [OPTIMUM] * 5 for number in range(3)}


#: Solves, says where the worker is that waits, and waits to be killed.
PARENT = """
import importlib, os, sys, time
from tests.kernel.fakes import fake_kind, ladder_problem
module = importlib.import_module("stowplan.kernel.solve")
fakes = fake_kind("says_where")
module.kind_of = lambda problem: fakes
result = module.solve(ladder_problem(), time_limit=1200)
print(result.candidates[0].note, flush=True)
if sys.argv[1:] == ["fork"]:
    if os.fork():
        os.wait()
    else:
        print(module.solve(ladder_problem(), time_limit=1200).candidates[0].note, flush=True)
        os._exit(0)
if sys.argv[1:] != ["end"]:
    time.sleep(1200)
"""


@pytest.fixture
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", PARENT, *request.param], env=environment, stdout=-1, text=True) as process:
        yield process
        process.kill()


def _said(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline().removeprefix("pid "))


@pytest.mark.parametrize("parent", [["kill"]], indirect=True)
def test_those_that_wait_end_with_a_parent_that_is_killed(parent: subprocess.Popen[str]) -> None:
    waiting = _said(parent)
    assert is_running(waiting)
    parent.kill()
    wait_until(lambda: not is_running(waiting))


@pytest.mark.parametrize("parent", [["end"]], indirect=True)
def test_those_that_wait_do_not_keep_their_parent(parent: subprocess.Popen[str]) -> None:
    waiting = _said(parent)
    assert parent.wait(HANG) == 0
    wait_until(lambda: not is_running(waiting))


@pytest.mark.parametrize("parent", [["fork"]], indirect=True)
def test_a_forked_child_has_workers_of_its_own(parent: subprocess.Popen[str]) -> None:
    first, second = _said(parent), _said(parent)
    assert first != second
    assert is_running(first)
