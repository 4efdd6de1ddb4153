"""When a run stops: the rules alone, without workers."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from stowplan.deadline import Deadline
from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run.state import RunState
from stowplan.portfolio.run.stop_policy import StopPolicy
from tests.portfolio.fakes import OPTIMUM, fake_kind, ladder_plan, ladder_problem

HEURISTIC = Candidate("finds", "heuristic")
EXACT = Candidate("proves", "exact")
PROVER = replace(EXACT, proves_only=True)


def state(
    *, cancelled: bool = False, seconds: float | None = None, baselines: tuple[str, ...] = (), **options: Any
) -> RunState:
    event = threading.Event()
    if cancelled:
        event.set()
    return RunState(fake_kind(baseline_sources=baselines), ladder_problem(), Options(**options), Deadline(seconds, event))


def solved(**options: Any) -> RunState:
    known = state(**options)
    known.offer_bound(OPTIMUM, "proves")
    assert known.offer_plan(ladder_plan(known.problem, 3), "finds", (0, 0)) is None
    return known


def test_goes_on_while_there_is_something_to_gain() -> None:
    assert StopPolicy(state()).may_stop([HEURISTIC]) is None
    assert StopPolicy(solved()).may_stop([HEURISTIC]) == "optimal"


def test_waits_at_a_proof_only_for_a_baseline_that_can_come() -> None:
    policy = StopPolicy(solved(baselines=("greedy",)))
    assert policy.may_stop([EXACT, HEURISTIC]) is None
    assert policy.may_stop([EXACT]) == "optimal"
    assert StopPolicy(solved(baselines=("finds",))).may_stop([HEURISTIC]) == "optimal"


@pytest.mark.parametrize("deterministic", [False, True])
def test_waits_for_no_baseline_that_is_known_to_have_no_plan(deterministic: bool) -> None:
    """Its candidate is still at work, and may be for long."""
    known = solved(baselines=("greedy",), deterministic=deterministic)
    known.without_plan.add("greedy")
    assert StopPolicy(known).may_stop([HEURISTIC]) == "optimal"


def test_a_deterministic_run_waits_at_a_proof_for_those_whose_plans_go_before_the_best() -> None:
    policy = StopPolicy(solved(deterministic=True))
    assert policy.may_stop([EXACT, PROVER], [EXACT]) is None
    assert policy.may_stop([EXACT, PROVER], [PROVER]) == "optimal"
    assert policy.may_stop([EXACT, PROVER]) == "optimal"


def test_without_a_proof_a_deterministic_run_waits_for_all_that_make_plans() -> None:
    known = state(deterministic=True, gap=0.5)
    known.offer_bound(OPTIMUM - 1, "proves")
    assert known.offer_plan(ladder_plan(known.problem, 3), "finds", (0, 0)) is None
    assert StopPolicy(known).may_stop([EXACT, PROVER]) is None
    assert StopPolicy(known).may_stop([PROVER]) == "gap_reached"


def test_a_deterministic_run_waits_at_a_proof_for_all_where_more_than_the_order_decides() -> None:
    """A named baseline goes before what is as good; plans that are kept close to another are chosen from all."""
    known = solved(deterministic=True)
    assert StopPolicy(known).is_decided([EXACT], [])
    known.baseline = "greedy"
    assert not StopPolicy(known).is_decided([EXACT], [])
    known.baseline = "finds"
    assert StopPolicy(known).is_decided([EXACT], [])
    known.on_plan = lambda plan, check: None
    assert not StopPolicy(known).is_decided([EXACT], [])
    assert StopPolicy(known).is_decided([PROVER], [])


def test_the_baselines_of_a_deterministic_run_do_not_depend_on_when_the_proof_comes() -> None:
    policy = StopPolicy(solved(deterministic=True, baselines=("greedy",)))
    assert policy.may_stop([HEURISTIC]) is None
    assert policy.may_stop([EXACT]) == "optimal"


@pytest.mark.parametrize("deterministic", [False, True])
def test_nothing_is_waited_for_where_there_is_no_plan(deterministic: bool) -> None:
    known = state(deterministic=deterministic, baselines=("greedy",))
    known.offer_infeasibility("proves")
    assert StopPolicy(known).may_stop([HEURISTIC, EXACT]) == "infeasible"
    assert StopPolicy(known).is_decided([HEURISTIC, EXACT], [])


def test_the_reason_at_the_limit() -> None:
    assert StopPolicy(state()).at_limit([EXACT]) == "time_limit"
    assert StopPolicy(state(cancelled=True)).at_limit([EXACT]) == "cancelled"
    # The plan is that of all the work, whatever the provers might still have shown.
    assert StopPolicy(state(deterministic=True)).at_limit([PROVER]) == "work_limit"
    assert StopPolicy(state(deterministic=True)).at_limit([PROVER, HEURISTIC]) == "time_limit"
    # What is known comes first.
    assert StopPolicy(solved(cancelled=True)).at_limit([EXACT]) == "optimal"


def test_the_reason_when_nothing_runs() -> None:
    assert StopPolicy(state()).when_idle([]) == "candidates_done"
    assert StopPolicy(state(deterministic=True)).when_idle([]) == "work_limit"
    assert StopPolicy(state()).when_idle([EXACT]) == "time_limit"
    assert StopPolicy(solved()).when_idle([]) == "optimal"


def test_in_a_deterministic_run_only_proofs_have_the_limit() -> None:
    """What makes plans has no end here (a run has a net), so that the plan does not depend on the load."""
    policy = StopPolicy(state(deterministic=True, time_limit=1000.0))
    assert policy.time_left([PROVER]) < 1000 < policy.time_left([PROVER, HEURISTIC])
    assert policy.worker_seconds(PROVER) < 1000 < policy.worker_seconds(HEURISTIC)


def test_no_worker_starts_and_no_plan_is_verified_after_the_end() -> None:
    known = state(seconds=0.0)
    policy = StopPolicy(known)
    assert policy.worker_seconds(HEURISTIC) < 0
    assert policy.time_left([HEURISTIC]) < 0
    known.families["finds"] = "heuristic"
    assert not policy.may_verify()


def test_a_heuristic_in_a_thread_has_time_for_a_first_plan() -> None:
    known = state(seconds=0.0)
    policy, here = StopPolicy(known), replace(HEURISTIC, in_thread=True)
    assert policy.worker_seconds(here) > 0
    assert policy.time_left([here]) > 0
    assert policy.may_verify()
    known.families["finds"] = "heuristic"
    assert max(policy.worker_seconds(here), policy.time_left([here])) < 0
    cancelled = StopPolicy(state(cancelled=True))
    assert max(cancelled.worker_seconds(here), cancelled.time_left([here])) < 0
    assert not cancelled.may_verify()
