"""Criteria to stop by: each alone, combined, and in runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import stowplan
from stowplan.errors import UsageError
from stowplan.kernel.plan_cache import PlanCache
from stowplan.result import Progress
from stowplan.stop import Criterion, FirstPlan, MaxSeconds, NoImprovement, Target, WithinGap, all_of, any_of
from tests.kernel.conftest import SolveFakes
from tests.kernel.fakes import ALL_SLOW, FLOOR, OPTIMUM
from tests.paths import EXAMPLES

NOTHING = Progress(3.0, None, 90, "")
PLAN = Progress(7.0, 100, 90, "search", 5.0)


@pytest.mark.parametrize(
    ("criterion", "without_plan", "with_plan"),
    [
        (MaxSeconds(3.0), True, True),
        (MaxSeconds(7.1), False, False),
        (NoImprovement(0.0), False, True),
        (NoImprovement(2.0), False, True),
        (NoImprovement(2.1), False, False),
        (Target(100), False, True),
        (Target(99), False, False),
        (WithinGap(0.1), False, True),
        (WithinGap(0.09), False, False),
        (FirstPlan(), False, True),
        (any_of(MaxSeconds(5.0), Target(0)), False, True),
        (any_of(), False, False),
        (all_of(MaxSeconds(3.0), FirstPlan()), False, True),
        (all_of(FirstPlan(), Target(99)), False, False),
        (lambda progress: progress.source == "search", False, True),
    ],
)
def test_each_by_what_is_known(criterion: Criterion, without_plan: bool, with_plan: bool) -> None:
    assert (criterion(NOTHING), criterion(PLAN)) == (without_plan, with_plan)


def test_without_a_bound_no_gap_is_small() -> None:
    assert not WithinGap(0.5)(Progress(1.0, 100, None, "search", 0.5))


@pytest.mark.parametrize("make", [lambda: MaxSeconds(-1), lambda: NoImprovement(float("nan")), lambda: WithinGap(1.0)])
def test_values_out_of_range(make: object) -> None:
    with pytest.raises(UsageError, match=r"found .* expected at least 0"):
        make()  # type: ignore[operator]


def test_a_target_is_a_whole_number() -> None:
    with pytest.raises(UsageError, match=r"found a target of 1\.5, expected at least 0, a whole number"):
        Target(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stop", "objective"),
    [
        (Target(ALL_SLOW), ALL_SLOW),
        (FirstPlan(), ALL_SLOW),
        (Target(OPTIMUM), OPTIMUM),
        (all_of(NoImprovement(0.1), Target(OPTIMUM)), OPTIMUM),
        (all_of(MaxSeconds(0.2), WithinGap(0.9)), None),
    ],
)
def test_a_run_ends_by_it(solve_fakes: SolveFakes, stop: Criterion, objective: int | None) -> None:
    """Without it this one goes on until its limit: its candidate has found the optimum, and proves nothing."""
    result = solve_fakes("waits", "solves", stop=stop)
    assert result.stop_reason == "criterion"
    assert result.status == "feasible"
    assert (result.verified, result.warnings) == (True, ())
    assert objective is None or result.objective == objective
    assert result.bound == FLOOR
    assert not result.is_reproducible


def test_a_proof_goes_before_it(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("solves_and_proves", stop=lambda progress: progress.bound == OPTIMUM)
    assert (result.stop_reason, result.status) == ("optimal", "optimal")


def test_a_named_baseline_is_waited_for() -> None:
    problem = stowplan.read(EXAMPLES / "buffers.csv")
    result = stowplan.solve(problem, stop=FirstPlan(), baseline="greedy")
    assert result.baseline is not None
    assert result.objective is not None
    assert result.objective <= result.baseline


def test_what_it_raises_ends_the_run(solve_fakes: SolveFakes) -> None:
    def fails(progress: Progress) -> bool:
        raise RuntimeError("of the caller's own")

    with pytest.raises(RuntimeError, match="of the caller's own"):
        solve_fakes("waits", stop=fails)


@pytest.mark.parametrize("stop", [3, "gap", FirstPlan])
def test_what_is_no_criterion(solve_fakes: SolveFakes, stop: object) -> None:
    with pytest.raises(UsageError, match=r"found stop .*, expected a function of a Progress"):
        solve_fakes("solves", stop=stop)


def test_not_in_a_deterministic_run(solve_fakes: SolveFakes) -> None:
    with pytest.raises(UsageError, match="found stop and deterministic, expected one of them"):
        solve_fakes("solves", stop=FirstPlan(), deterministic=True)


def test_what_it_ended_is_not_kept_in_a_plan_cache(tmp_path: Path) -> None:
    problem = stowplan.read(EXAMPLES / "lstm_scan_inf_b32.hlo.txt.gz", target="tpu-v4")
    cut = stowplan.solve(problem, stop=FirstPlan(), cache=tmp_path)
    assert cut.stop_reason == "criterion"
    assert PlanCache(tmp_path).clear() == 0
