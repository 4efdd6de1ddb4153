"""When a run stops: the criteria alone, without workers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from stowplan.deadline import Deadline
from stowplan.kernel.context import Options
from stowplan.kernel.criteria import first_of, idle, is_decided, out_of_time, settled, user_criterion
from stowplan.kernel.kind import Baseline, Candidate
from stowplan.kernel.state import RunState
from stowplan.kernel.workers.clock import Clock
from stowplan.result import Progress
from stowplan.stop import Target
from tests.kernel.fakes import OPTIMUM, fake_kind, ladder_plan, ladder_problem

HEURISTIC = Candidate("finds", "heuristic")
EXACT = Candidate("proves", "exact")
PROVER = replace(EXACT, proves_only=True)


@dataclass
class Now:
    """A moment of a run."""

    state: RunState
    running_or_waiting: list[Candidate] = field(default_factory=list)
    could_win_ties: list[Candidate] = field(default_factory=list)
    unfinished: list[Candidate] = field(default_factory=list)
    is_idle: bool = False

    @property
    def clock(self) -> Clock:
        return Clock(self.state, self.state.options, self.state.deadline)


def state(
    *, cancelled: bool = False, seconds: float | None = None, baselines: tuple[str, ...] = (), **options: Any
) -> RunState:
    event = threading.Event()
    if cancelled:
        event.set()
    awaited = [Baseline(name=name, is_awaited=lambda problem: True) for name in baselines]
    kind = fake_kind(baselines=(Baseline(name="own"), *awaited))
    return RunState(kind, ladder_problem(), Options(**options), Deadline(seconds, event))


def solved(**options: Any) -> RunState:
    known = state(**options)
    known.offer_bound(OPTIMUM, "proves")
    assert known.offer_plan(ladder_plan(known.problem, 3), "finds", (0, 0)) is None
    return known


def clock(known: RunState) -> Clock:
    return Now(known).clock


def test_goes_on_while_there_is_something_to_gain() -> None:
    assert settled(Now(state(), [HEURISTIC])) is None
    assert settled(Now(solved(), [HEURISTIC])) == "optimal"


def test_waits_at_a_proof_only_for_a_baseline_that_can_come() -> None:
    known = solved(baselines=("greedy",))
    assert settled(Now(known, [EXACT, HEURISTIC])) is None
    assert settled(Now(known, [EXACT])) == "optimal"
    assert settled(Now(solved(baselines=("finds",)), [HEURISTIC])) == "optimal"


@pytest.mark.parametrize("deterministic", [False, True])
def test_waits_for_no_baseline_that_is_known_to_have_no_plan(deterministic: bool) -> None:
    """Its candidate is still at work, and may be for long."""
    known = solved(baselines=("greedy",), deterministic=deterministic)
    known.without_plan.add("greedy")
    assert settled(Now(known, [HEURISTIC])) == "optimal"


def test_a_deterministic_run_waits_at_a_proof_for_those_whose_plans_go_before_the_best() -> None:
    known = solved(deterministic=True)
    assert settled(Now(known, [EXACT, PROVER], [EXACT])) is None
    assert settled(Now(known, [EXACT, PROVER], [PROVER])) == "optimal"
    assert settled(Now(known, [EXACT, PROVER])) == "optimal"


def test_without_a_proof_a_deterministic_run_waits_for_all_that_make_plans() -> None:
    known = state(deterministic=True, gap=0.5)
    known.offer_bound(OPTIMUM - 1, "proves")
    assert known.offer_plan(ladder_plan(known.problem, 3), "finds", (0, 0)) is None
    assert settled(Now(known, [EXACT, PROVER])) is None
    assert settled(Now(known, [PROVER])) == "gap_reached"


def test_a_deterministic_run_waits_at_a_proof_for_all_where_more_than_the_order_decides() -> None:
    """A named baseline goes before what is as good; plans that are kept close to another are chosen from all."""
    known = solved(deterministic=True)
    assert is_decided(known, [EXACT], [])
    known.baseline = "greedy"
    assert not is_decided(known, [EXACT], [])
    known.baseline = "finds"
    assert is_decided(known, [EXACT], [])
    known.on_plan = lambda plan, check: None
    assert not is_decided(known, [EXACT], [])
    assert is_decided(known, [PROVER], [])


def test_the_baselines_of_a_deterministic_run_do_not_depend_on_when_the_proof_comes() -> None:
    known = solved(deterministic=True, baselines=("greedy",))
    assert settled(Now(known, [HEURISTIC])) is None
    assert settled(Now(known, [EXACT])) == "optimal"


@pytest.mark.parametrize("deterministic", [False, True])
def test_nothing_is_waited_for_where_there_is_no_plan(deterministic: bool) -> None:
    known = state(deterministic=deterministic, baselines=("greedy",))
    known.offer_infeasibility("proves")
    assert settled(Now(known, [HEURISTIC, EXACT])) == "infeasible"
    assert is_decided(known, [HEURISTIC, EXACT], [])


def test_the_callers_criterion_ends_a_run_once_nobody_is_waited_for() -> None:
    known = solved(baselines=("greedy",))
    assert user_criterion(None)(Now(known)) is None
    assert user_criterion(Target(OPTIMUM - 1))(Now(known)) is None
    assert user_criterion(Target(OPTIMUM))(Now(known, [EXACT])) == "criterion"
    assert user_criterion(Target(OPTIMUM))(Now(known, [HEURISTIC])) is None
    assert user_criterion(Target(OPTIMUM))(Now(known, [replace(EXACT, family="baseline")])) is None


def test_the_callers_criterion_is_told_what_is_known() -> None:
    said: list[Progress] = []

    def never(progress: Progress) -> bool:
        said.append(progress)
        return False

    assert user_criterion(never)(Now(state())) is None
    assert user_criterion(never)(Now(solved())) is None
    nothing, best = said
    assert (nothing.objective, nothing.bound, nothing.source, nothing.improved) == (None, None, "", None)
    assert (best.objective, best.bound, best.source) == (OPTIMUM, OPTIMUM, "finds")
    assert best.improved is not None
    assert 0 <= best.improved <= best.seconds + 0.001


def test_the_first_criterion_that_holds_says_why() -> None:
    moment = Now(solved(seconds=0.0), is_idle=True)
    assert first_of(idle, settled)(moment) == "candidates_done"
    assert first_of(settled, idle)(moment) == "optimal"
    assert first_of()(moment) is None


def test_the_reason_at_the_limit() -> None:
    assert out_of_time(Now(state(), [EXACT])) is None
    over = state(seconds=0.0)
    assert out_of_time(Now(over, [EXACT], unfinished=[EXACT])) == "time_limit"
    assert out_of_time(Now(state(cancelled=True), [EXACT], unfinished=[EXACT])) == "cancelled"
    # The plan is that of all the work, whatever the provers might still have shown.
    deterministic = state(seconds=0.0, deterministic=True)
    assert out_of_time(Now(deterministic, [PROVER], unfinished=[PROVER])) == "work_limit"
    assert out_of_time(Now(deterministic, [PROVER], unfinished=[PROVER, HEURISTIC])) == "time_limit"


def test_the_reason_when_nothing_runs() -> None:
    assert idle(Now(state())) is None
    assert idle(Now(state(), is_idle=True)) == "candidates_done"
    assert idle(Now(state(deterministic=True), is_idle=True)) == "work_limit"
    assert idle(Now(state(), unfinished=[EXACT], is_idle=True)) == "time_limit"
    assert idle(Now(state(cancelled=True), unfinished=[EXACT], is_idle=True)) == "cancelled"


def test_in_a_deterministic_run_only_proofs_have_the_limit() -> None:
    """What makes plans has no end here (a run has a net), so that the plan does not depend on the load."""
    time = clock(state(deterministic=True, time_limit=1000.0))
    assert time.time_left([PROVER]) < 1000 < time.time_left([PROVER, HEURISTIC])
    assert time.worker_seconds(PROVER) < 1000 < time.worker_seconds(HEURISTIC)


def test_no_worker_starts_and_no_plan_is_verified_after_the_end() -> None:
    known = state(seconds=0.0)
    time = clock(known)
    assert time.worker_seconds(HEURISTIC) < 0
    assert time.time_left([HEURISTIC]) < 0
    known.families["finds"] = "heuristic"
    assert not time.may_verify()


def test_a_heuristic_in_a_thread_has_time_for_a_first_plan() -> None:
    known = state(seconds=0.0)
    time, here = clock(known), replace(HEURISTIC, place="thread")
    assert time.worker_seconds(here) > 0
    assert time.time_left([here]) > 0
    assert time.may_verify()
    known.families["finds"] = "heuristic"
    assert max(time.worker_seconds(here), time.time_left([here])) < 0
    cancelled = clock(state(cancelled=True))
    assert max(cancelled.worker_seconds(here), cancelled.time_left([here])) < 0
    assert not cancelled.may_verify()


def test_bounds_are_rounded_up_to_what_objectives_can_be() -> None:
    known = state()
    known.kind = replace(known.kind, granularity=lambda problem: 4)
    for offered, rounded in ((1, 4), (4, 4), (5, 8), (-3, 8)):
        known.offer_bound(offered, "proves")
        assert known.bound == rounded


def test_what_objectives_can_be_is_computed_once() -> None:
    """For a large graph it is the greatest common divisor of many costs, and a run may report thousands of bounds."""
    known, problems = state(), []

    def granularity(problem: object) -> int:
        problems.append(problem)
        return 4

    known.kind = replace(known.kind, granularity=granularity)
    for offered in range(1, 50):
        known.offer_bound(offered, "proves")
    assert known.bound == 52
    assert problems == [known.problem]
