"""A run against candidates that misbehave: it keeps the best verified plan, and the limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stowplan.kernel.workers.warm import workers
from stowplan.models.memory_mapping.hint import of_plan
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping.kind import KIND
from stowplan.result import CandidateReport, Progress, Result
from tests.kernel.conftest import SolveFakes, is_running
from tests.kernel.fakes import ALL_SLOW, FLOOR, NO_PLANS, OPTIMUM, WAITS_FOR_GREEDY, ladder_plan, ladder_problem
from tests.patience import no_hang, wait_until

#: Limits for runs that only their limit ends, in seconds: the first is long enough for processes to start on most machines.
LIMITS = (1.5, 6.0, 24.0, 96.0)


def check(result: Result) -> None:
    """What holds of every result, whatever the candidates did."""
    assert result.verified
    found = verify(ladder_problem(), result.plan)
    assert found.ok
    assert found.objective == result.objective == result.plan.objective
    assert result.bound is not None
    assert result.bound <= result.objective <= result.baselines["all_slow"] == ALL_SLOW
    assert (result.status == "optimal") == (result.objective == result.bound)


def report_of(result: Result, name: str) -> CandidateReport:
    return next(report for report in result.candidates if report.name == name)


def solve_with_time_for(solve_fakes: SolveFakes, *names: str, finish: tuple[str, ...] = (), **options: Any) -> Result:
    """A run within a limit so long that each of these candidates came to say what it does (``waits`` says nothing), and
    those of ``finish`` to their end."""
    for limit in LIMITS:
        result = solve_fakes(*names, time_limit=limit, **options)
        silent = [report for report in result.candidates if report.objective is None and report.bound is None]
        done = all(report_of(result, name).outcome == "finished" for name in finish)
        if done and all(report.outcome == "finished" or report.name == "waits" for report in silent):
            return result
    raise AssertionError(f"silent for {LIMITS[-1]} s: {silent}, or not finished: {finish}")


def pids(result: Result) -> list[int]:
    notes = "; ".join(report.note for report in result.candidates)
    return [int(note.removeprefix("pid ")) for note in notes.split("; ") if note.startswith("pid ")]


# -------------------------------------------------------------------------------------------------------- the ordinary


def test_keeps_the_best_of_all(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("improves", "solves")
    check(result)
    assert (result.objective, result.status, result.stop_reason) == (OPTIMUM, "feasible", "candidates_done")
    assert result.provenance.candidate == "solves"
    assert [(report.name, report.objective, report.outcome) for report in result.candidates] == [
        ("improves", ALL_SLOW - 18, "finished"),
        ("solves", OPTIMUM, "finished"),
    ]


def test_stops_at_a_proof_though_others_go_on(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("sleeps", "solves", "proves", workers=3)
    check(result)
    assert (result.status, result.stop_reason, result.bound, result.gap) == ("optimal", "optimal", OPTIMUM, 0.0)
    assert report_of(result, "sleeps").outcome == "stopped"
    assert report_of(result, "proves").bound == OPTIMUM


def test_waits_at_a_proof_for_the_baseline(solve_fakes: SolveFakes) -> None:
    """A speedup is over something; but nothing is waited for that cannot come."""
    result = solve_fakes("solves", "proves", "brings_the_baseline", workers=3, kind=WAITS_FOR_GREEDY)
    assert (result.status, result.stop_reason) == ("optimal", "optimal")
    assert (result.baseline, result.speedup) == (ALL_SLOW - 9, (ALL_SLOW - 9) / OPTIMUM)
    result = solve_fakes("solves", "proves", kind=WAITS_FOR_GREEDY)
    assert (result.status, result.baseline, result.speedup) == ("optimal", None, None)


def test_stops_at_a_gap(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("sleeps", "solves", gap=0.1, workers=2)
    check(result)
    assert (result.status, result.stop_reason, result.bound) == ("feasible", "gap_reached", FLOOR)
    assert result.gap == pytest.approx((OPTIMUM - FLOOR) / OPTIMUM)


def test_candidates_hear_of_each_other(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("listens", "speaks", workers=2)
    check(result)
    assert result.stop_reason == "optimal"
    assert report_of(result, "listens").note == f"heard {OPTIMUM} and {OPTIMUM - 1}"


def test_hints_reach_the_other_candidates(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("takes_a_hint", "hints", time_limit=1200)
    check(result)
    assert result.objective == OPTIMUM
    assert report_of(result, "takes_a_hint").note == "hinted by hints"
    assert result.provenance.guides == ("guide.npz sha256:1",)


def test_the_hint_of_the_caller_is_there_from_the_start(solve_fakes: SolveFakes) -> None:
    problem = ladder_problem()
    for options in ({}, {"deterministic": True}):
        hint = of_plan(problem, ladder_plan(problem, 3), "caller")
        result = solve_fakes("takes_a_hint", hint=msgspec.structs.replace(hint, plan=None), time_limit=1200, **options)
        check(result)
        assert report_of(result, "takes_a_hint").note == "hinted by caller"
        assert result.provenance.options["hint"] == "caller"


def test_a_hint_that_does_not_fit_is_not_handed_on(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("hints_nonsense", "proves", time_limit=1200)
    check(result)
    report = report_of(result, "hints_nonsense")
    assert report.outcome == "rejected"
    assert "gave a hint that is none" in report.note


def test_a_later_candidate_starts_from_the_best(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("solves", "tells_start", workers=1)
    assert report_of(result, "tells_start").note == f"starts from {OPTIMUM}, incumbent {OPTIMUM}"


def test_progress_is_told_in_order(solve_fakes: SolveFakes) -> None:
    told: list[Progress] = []
    result = solve_fakes("solves", "proves", on_progress=told.append, workers=1)
    assert [(each.objective, each.bound) for each in told] == [(entry.objective, entry.bound) for entry in result.history]
    assert [(each.objective, each.bound, each.source) for each in told[:3]] == [
        (None, FLOOR, "floor"),
        (ALL_SLOW, FLOOR, "all_slow"),
        (OPTIMUM, FLOOR, "solves"),
    ]
    assert (told[-1].objective, told[-1].bound) == (OPTIMUM, OPTIMUM)
    assert [entry.seconds for entry in result.history] == sorted(entry.seconds for entry in result.history)


def test_an_error_in_the_callback_is_the_callers(solve_fakes: SolveFakes) -> None:
    seen: list[int] = []

    def fail(progress: Progress) -> None:
        if progress.source == "sleeps":
            seen.append(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        solve_fakes("sleeps", on_progress=fail)
    assert seen


# ------------------------------------------------------------------------------------------------------------ the limit


@pytest.mark.parametrize("name", ["sleeps", "holds_the_lock"])
def test_ends_those_that_do_not_stop(solve_fakes: SolveFakes, name: str) -> None:
    with no_hang():
        result = solve_with_time_for(solve_fakes, name)
    check(result)
    assert (result.objective, result.stop_reason) == (ALL_SLOW - 9, "time_limit")
    assert report_of(result, name).outcome == "stopped"
    assert len(pids(result)) == 1
    wait_until(lambda: not any(is_running(pid) for pid in pids(result)))


def test_a_flood_of_plans_neither_delays_nor_fills_memory(solve_fakes: SolveFakes) -> None:
    solve_fakes("solves")
    workers().close()
    threads = threading.active_count()
    with no_hang():
        result = solve_with_time_for(solve_fakes, "floods", "improves", finish=("improves",))
    check(result)
    assert result.objective == ALL_SLOW - 18
    workers().close()
    wait_until(lambda: threading.active_count() <= threads)


def test_what_a_candidate_started_ends_with_it(solve_fakes: SolveFakes) -> None:
    result = solve_with_time_for(solve_fakes, "has_children")
    assert len(pids(result)) == 2
    wait_until(lambda: not any(is_running(pid) for pid in pids(result)))


def test_the_last_plan_of_one_that_obeys_arrives(solve_fakes: SolveFakes) -> None:
    result = solve_with_time_for(solve_fakes, "obeys")
    check(result)
    assert (result.objective, result.stop_reason) == (ALL_SLOW - 18, "time_limit")


def test_shares_are_kept_where_others_wait(solve_fakes: SolveFakes) -> None:
    """One worker, and the first candidate never stops: the second gets its turn all the same."""
    result = solve_with_time_for(solve_fakes, "sleeps/0.4", "solves/0.4", workers=1)
    check(result)
    assert result.objective == OPTIMUM
    assert report_of(result, "sleeps").outcome == "stopped"
    # The run may end by its proof before its last word has come.
    assert report_of(result, "solves").outcome in ("finished", "stopped")


def test_shares_of_more_than_all_are_scaled(solve_fakes: SolveFakes) -> None:
    result = solve_with_time_for(solve_fakes, "obeys/1", "improves/1", "solves/1", workers=1)
    first, *others = [report.outcome for report in result.candidates]
    assert first == "stopped"
    assert {*others} <= {"finished", "stopped"}, "each gets its turn"


def test_what_takes_over_has_the_place_of_one_that_has_ended(solve_fakes: SolveFakes) -> None:
    result = solve_with_time_for(solve_fakes, "does_nothing", "solves:reserve", workers=1)
    assert result.objective == OPTIMUM


def test_nobody_makes_way_for_what_takes_over(solve_fakes: SolveFakes) -> None:
    """Its share counts for nothing: the one before it has all of the time."""
    result = next(
        found
        for found in (solve_fakes("obeys/0.1", "solves:reserve", workers=1, time_limit=limit) for limit in LIMITS)
        if report_of(found, "obeys").objective is not None
    )
    assert (result.objective, result.stop_reason) == (ALL_SLOW - 18, "time_limit")
    assert report_of(result, "solves").outcome == "skipped"


def test_those_never_started_are_listed(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("solves", "proves", "does_nothing", workers=1)
    assert [report.name for report in result.candidates] == ["solves", "proves", "does_nothing"]
    assert (report_of(result, "does_nothing").outcome, report_of(result, "does_nothing").note) == ("skipped", "was not needed")


def test_a_tiny_limit_still_gives_a_plan(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("solves", time_limit=0.01)
    check(result)
    assert (result.status, result.stop_reason) == ("feasible", "time_limit")
    assert report_of(result, "solves").outcome in ("skipped", "stopped")


def test_cancel_returns_the_best_so_far(solve_fakes: SolveFakes) -> None:
    cancel = threading.Event()
    with no_hang():
        result = solve_fakes("sleeps", cancel=cancel, on_progress=lambda now: now.source == "sleeps" and cancel.set())
    check(result)
    assert (result.objective, result.stop_reason) == (ALL_SLOW - 9, "cancelled")


def test_cancelled_before_it_began(solve_fakes: SolveFakes) -> None:
    cancel = threading.Event()
    cancel.set()
    result = solve_fakes("solves", cancel=cancel)
    check(result)
    assert (result.objective, result.stop_reason) == (ALL_SLOW, "cancelled")


# ------------------------------------------------------------------------------------------------------ those that fail


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("exits", "exit status 3"),
        ("raises", "RuntimeError: it broke"),
        ("segfaults", "SIGSEGV"),
        ("writes_garbage", "no message"),
        ("writes_another_message", "no message"),
    ],
)
def test_what_they_found_before_stays(solve_fakes: SolveFakes, name: str, note: str) -> None:
    result = solve_fakes(name)
    check(result)
    report = report_of(result, name)
    assert (report.outcome, report.objective, result.objective) == ("failed", ALL_SLOW - 9, ALL_SLOW - 9)
    assert note in report.note
    assert result.stop_reason == "candidates_done"


def test_leaving_by_sys_exit_is_a_failure(solve_fakes: SolveFakes) -> None:
    assert report_of(solve_fakes("leaves"), "leaves").outcome == "failed"


def test_talk_on_standard_output_and_reading_input_do_no_harm(
    solve_fakes: SolveFakes, capfd: pytest.CaptureFixture[str]
) -> None:
    result = solve_fakes("prints")
    check(result)
    assert result.objective == ALL_SLOW - 18
    assert report_of(result, "prints").note == "input: ''"
    assert capfd.readouterr().out == ""


def test_nothing_stays_open(solve_fakes: SolveFakes) -> None:
    """But for workers that wait, and those end when they are told to."""
    solve_fakes("solves")
    workers().close()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for name in ("solves", "exits", "writes_garbage"):
        solve_fakes(name)
    workers().close()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before and threading.active_count() <= threads)


def test_no_process_can_be_started(solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    result = solve_fakes("solves")
    check(result)
    assert report_of(result, "solves").outcome == "failed"
    assert "could not be started" in report_of(result, "solves").note


@pytest.mark.parametrize(
    ("name", "reason"),
    [("exits", "exit status 3"), ("raises", "RuntimeError: it broke"), ("segfaults", "signal SIGSEGV")],
)
def test_those_that_fail_are_named(solve_fakes: SolveFakes, name: str, reason: str) -> None:
    result = solve_fakes(name, "improves")
    assert [warning for warning in result.warnings if f"the candidate {name} failed: " in warning and reason in warning]
    assert reason in result.summary()


@pytest.mark.slow
def test_those_never_heard_of_are_named(solve_fakes: SolveFakes) -> None:
    """Not those that found something, nor those that were not needed."""
    result = solve_with_time_for(solve_fakes, "waits", "sleeps", workers=2)
    assert result.warnings == ("waits: no report within the limit",)
    assert "warning    waits: no report within the limit" in result.summary()
    assert solve_fakes("waits", "solves", "proves", "does_nothing", workers=3).warnings == ()


def test_cancelled_before_anything_came(solve_fakes: SolveFakes) -> None:
    cancel = threading.Event()
    cancel.set()
    assert solve_fakes("solves", cancel=cancel).warnings == ("solves: no report before the run was cancelled",)


# -------------------------------------------------------------------------------------------------------- those that err


def test_a_plan_that_breaks_the_rules_is_left_out(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("overfills")
    check(result)
    assert result.objective == ALL_SLOW - 9
    assert report_of(result, "overfills").outcome == "rejected"
    assert [warning for warning in result.warnings if "overfills" in warning and "bad_offset" in warning]


def test_a_plan_that_claims_too_much_is_left_out(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("boasts")
    check(result)
    assert result.objective == ALL_SLOW
    assert "wrong_objective" in report_of(result, "boasts").note


def test_what_is_no_plan_is_left_out(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("writes_no_plan")
    check(result)
    assert result.objective == ALL_SLOW - 9
    assert report_of(result, "writes_no_plan").outcome == "rejected"


def test_a_verifier_that_fails_costs_no_plan(solve_fakes: SolveFakes) -> None:
    def verify_or_fail(problem: object, plan: object) -> object:
        if plan == ladder_plan(ladder_problem(), 3):
            raise RecursionError
        return KIND.verify(problem, plan)

    result = solve_fakes("improves", "solves", kind={"verify": verify_or_fail})
    check(result)
    assert result.objective == ALL_SLOW - 18
    assert "the verifier failed: RecursionError" in report_of(result, "solves").note


def test_repeated_nonsense_is_told_once(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("repeats_nonsense")
    assert len(result.warnings) == 1
    assert len(report_of(result, "repeats_nonsense").note) < 10_000


def test_a_bound_above_a_plan_is_refuted(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("solves", "bounds_too_high", workers=1)
    check(result)
    assert (result.bound, result.status) == (FLOOR, "feasible")
    report = report_of(result, "bounds_too_high")
    assert (report.outcome, report.bound) == ("rejected", None)
    assert [warning for warning in result.warnings if "bounds_too_high" in warning]


def test_a_bound_that_a_later_plan_undercuts_is_taken_back(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("bounds_too_high_then_finds")
    check(result)
    # Whoever was wrong once is not believed again; others' bounds stay.
    assert (result.objective, result.bound) == (OPTIMUM, FLOOR + 1)


# ------------------------------------------------------------------------------------------------------- no plan at all


def test_first_bounds_are_taken_in_and_cost_a_warning_where_they_fail(solve_fakes: SolveFakes) -> None:
    def failing(problem: object) -> Iterator[int]:
        yield FLOOR + 1
        raise ValueError("out of prices")

    result = solve_fakes("solves", "works_in_vain", time_limit=1, kind={"first_bounds": failing})
    assert (result.objective, result.bound) == (OPTIMUM, FLOOR + 1)
    assert "the first bounds failed: ValueError: out of prices" in result.warnings


def test_infeasible_only_with_a_proof(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("proves_infeasible", "obeys", kind=NO_PLANS)
    assert (result.status, result.stop_reason, result.plan, result.objective) == ("infeasible", "infeasible", None, None)
    assert (result.verified, result.gap, result.speedup) == (False, None, None)
    assert "infeasible" in result.summary()


def test_a_time_out_is_not_infeasibility_and_keeps_its_bound(solve_fakes: SolveFakes) -> None:
    result = solve_with_time_for(solve_fakes, "proves", "waits", kind=NO_PLANS)
    assert (result.status, result.plan, result.bound) == ("no_plan", None, OPTIMUM)
    assert "no plan" in result.summary()


def test_called_infeasible_with_a_plan_at_hand(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("proves_infeasible")
    check(result)
    assert (result.status, result.objective) == ("feasible", ALL_SLOW)
    assert report_of(result, "proves_infeasible").outcome == "rejected"
    assert [warning for warning in result.warnings if "infeasible" in warning]
