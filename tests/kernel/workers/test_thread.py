"""Candidates in threads of the calling process: the same results, limits and interruptions as in processes."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import pytest

import stowplan
from stowplan.kernel.kind import kind_of
from stowplan.kernel.workers.warm import workers
from stowplan.result import Result
from tests.kernel import fakes
from tests.kernel.conftest import SolveFakes
from tests.kernel.fakes import ALL_SLOW, OPTIMUM
from tests.paths import EXAMPLES
from tests.patience import no_hang, wait_until


@pytest.fixture
def solve_in_threads(solve_fakes: SolveFakes) -> SolveFakes:
    """As ``solve_fakes``, all candidates in threads."""

    def run(*names: str, **options: Any) -> Result:
        candidates = [replace(each, place="thread") for each in fakes.fake_kind(*names).candidates(None, None)]
        return solve_fakes(kind={"candidates": lambda problem, options: candidates}, **options)

    return run


def pid(result: Result) -> int:
    return int(next(each.note for each in result.candidates if each.note.startswith("pid ")).removeprefix("pid "))


def test_they_run_here(solve_in_threads: SolveFakes) -> None:
    result = solve_in_threads("says_where")
    assert (pid(result), result.objective, result.candidates[0].outcome) == (os.getpid(), ALL_SLOW - 18, "finished")


def test_they_hear_of_each_other(solve_in_threads: SolveFakes) -> None:
    result = solve_in_threads("listens", "speaks", workers=2)
    assert (result.stop_reason, result.objective) == ("optimal", OPTIMUM)


def test_a_limit_that_is_over_at_once_still_gives_a_plan(solve_in_threads: SolveFakes) -> None:
    result = solve_in_threads("solves", time_limit=0.001)
    assert (result.objective, result.provenance.candidate) == (OPTIMUM, "solves")


def test_others_start_once_a_long_one_has_a_plan(solve_fakes: SolveFakes) -> None:
    workers().close()
    first, second = fakes.fake_kind("works_in_vain", "proves").candidates(None, None)
    candidates = [replace(first, place="compiled thread"), second]
    result = solve_fakes(kind={"candidates": lambda problem, options: candidates}, time_limit=20)
    assert result.bound == OPTIMUM
    plan, proof = (next(each for each in result.history if each.source == source) for source in ("works_in_vain", "proves"))
    assert plan.seconds <= proof.seconds


def test_no_thread_takes_turns_with_a_presolver(solve_fakes: SolveFakes) -> None:
    first, second = fakes.fake_kind("improves", "solves").candidates(None, None)
    candidates = [replace(first, place="thread", turn="presolver"), replace(second, place="compiled thread")]
    result = solve_fakes(kind={"candidates": lambda problem, options: candidates})
    assert [entry.source for entry in result.history if entry.objective != ALL_SLOW][-1] == "solves"
    before = [report for report in result.candidates if report.name == "improves"]
    assert before[0].outcome == "finished"


def test_they_stop_at_the_limit(solve_in_threads: SolveFakes) -> None:
    threads = threading.active_count()
    with no_hang():
        result = solve_in_threads("works_in_vain", time_limit=0.5)
    assert (result.stop_reason, result.objective, result.candidates[0].outcome) == ("time_limit", ALL_SLOW - 9, "stopped")
    wait_until(lambda: threading.active_count() <= threads)


def test_they_stop_at_a_proof_and_when_cancelled(solve_in_threads: SolveFakes) -> None:
    threads = threading.active_count()
    assert solve_in_threads("works_until_told").status == "optimal"
    cancel = threading.Event()
    result = solve_in_threads(
        "works_in_vain", cancel=cancel, on_progress=lambda now: now.source == "works_in_vain" and cancel.set()
    )
    assert (result.stop_reason, result.objective) == ("cancelled", ALL_SLOW - 9)
    wait_until(lambda: threading.active_count() <= threads)


def test_one_that_does_not_stop_costs_the_limit_and_no_more(
    solve_in_threads: SolveFakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be killed; its last words are not heard."""
    release = threading.Event()
    monkeypatch.setattr(fakes.time, "sleep", lambda seconds: release.wait(30))
    with no_hang():
        result = solve_in_threads("sleeps", time_limit=0.5)
    release.set()
    assert (result.stop_reason, result.objective) == ("time_limit", ALL_SLOW - 9)


@pytest.mark.parametrize("name", ["raises", "leaves"])
def test_what_they_raise_is_a_failure(solve_in_threads: SolveFakes, name: str) -> None:
    result = solve_in_threads(name)
    assert result.candidates[0].outcome == "failed"
    assert result.verified


@pytest.mark.parametrize(("file", "target"), [("saxpy.dfg.json", "se"), ("attention.hlo.txt", "inferentia")])
def test_small_problems_start_no_process(file: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = stowplan.read(EXAMPLES / file, target=target)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    candidates = [each.name for each in kind_of(problem).candidates(problem, _options()) if each.in_thread]
    result = stowplan.solve(problem, candidates=candidates, time_limit=60)
    assert (result.status, result.warnings) == ("optimal", ())


def _options() -> Any:
    from stowplan.kernel.context import Options

    return Options()
