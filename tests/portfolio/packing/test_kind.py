"""Packing end to end: read, solve, save, read again; the contract of its results."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan.deadline import Deadline
from stowplan.errors import UsageError
from stowplan.kernel.context import Options
from stowplan.kernel.criteria import settled
from stowplan.kernel.kind import Candidate
from stowplan.kernel.state import RunState
from stowplan.models.packing import plan as plans
from stowplan.models.packing.csv_files import read_plan
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing.candidates import beam2, search
from stowplan.portfolio.packing.kind import KIND
from stowplan.portfolio.packing.quick import quick_plan
from tests.kernel.recorder import Recorder
from tests.kernel.test_criteria import Now
from tests.models.packing.cases import least_height, random_problem

FIVE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


@pytest.fixture
def five(tmp_path: Path) -> Path:
    path = tmp_path / "five.csv"
    path.write_text(FIVE)
    return path


def test_least_height_from_file_to_files(five: Path, tmp_path: Path) -> None:
    problem = stowplan.read(five)
    result = stowplan.solve(problem, time_limit=20)
    assert (result.kind, result.unit.name, result.status) == ("packing", "bytes", "optimal")
    assert (result.objective, result.bound) == (12, 12)
    assert "12 bytes" in result.summary()
    assert result.baselines["stack"] == 20
    result.plan.save(tmp_path / "plan.json")
    assert plans.Plan.load(tmp_path / "plan.json") == result.plan
    result.plan.save(tmp_path / "plan.csv")
    assert verify(problem, read_plan(tmp_path / "plan.csv", problem)).ok
    # Read as a problem, the offsets of a plan are fixed.
    again = stowplan.solve(stowplan.read(tmp_path / "plan.csv"), time_limit=20)
    assert again.plan.offsets == result.plan.offsets


def test_a_capacity_that_is_too_small_is_explained(five: Path) -> None:
    result = stowplan.solve(stowplan.read(five, capacity=11), time_limit=20)
    assert (result.status, result.objective, result.plan) == ("infeasible", None, None)
    assert result.details["conflict"]["load"] == 12
    assert "more than the capacity of 11" in result.summary()


def test_deterministic_runs_agree(five: Path) -> None:
    problem = stowplan.read(five, capacity=12)
    first, second = (
        stowplan.solve(problem, time_limit=20, deterministic=True, candidates="search,canonical") for _ in range(2)
    )
    assert first.objective == 12
    assert first.plan == second.plan


def test_any_plan_within_a_capacity_ends_the_run(five: Path) -> None:
    # A moment of 13 bytes at worst, but 14 are needed, so that the height never meets the bound.
    five.write_text("id,lower,upper,size,alignment\na,0,2,5,1\nb,1,3,8,7\n")
    result = stowplan.solve(stowplan.read(five, capacity=16), time_limit=20, candidates="canonical")
    assert (result.status, result.stop_reason, result.exit_code) == ("feasible", "fits", 0)
    assert result.objective in (13, 15)


def test_hints_that_are_a_plan_are_taken(five: Path) -> None:
    five.write_text("id,lower,upper,size,hint\na,0,3,4,4\nb,1,5,4,0\n")
    result = stowplan.solve(stowplan.read(five, capacity=9), time_limit=20)
    assert result.plan.offsets == (4, 0)
    assert result.provenance.candidate == "hint"


def test_nothing_to_pack(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("id,lower,upper,size\n")
    result = stowplan.solve(stowplan.read(path), time_limit=20)
    assert (result.status, result.objective, result.plan.offsets) == ("optimal", 0, ())


def test_no_target_for_buffers(five: Path) -> None:
    with pytest.raises(UsageError, match="but not --target"):
        stowplan.read(five, target="tpu-v4")


@pytest.mark.parametrize(("count", "reason"), [(1500, None), (1501, "optimal")])
def test_no_waiting_for_a_baseline_that_does_not_come(count: int, reason: str | None) -> None:
    # Many buffers are placed in other ways first: once these have met the bound, the baseline is left out.
    problem = Problem(buffers=tuple(Buffer(id=f"b{number}", lower=number, upper=number + 1, size=1) for number in range(count)))
    state = RunState(KIND, problem, Options(), Deadline(None))
    state.offer_bound(1, "floor")
    assert state.offer_plan(plans.Plan(problem=problem.digest, objective=1, offsets=(0,) * count), "climb", (0, 0)) is None
    assert settled(Now(state, [Candidate("search", "heuristic")])) == reason


def greedy_is_too_high() -> Problem:
    """At a capacity that another plan meets, and first fit by size does not."""
    for seed in range(1000):
        problem = random_problem(seed)
        if any(buffer.gaps or buffer.offset is not None for buffer in problem.buffers):
            continue
        found, least = quick_plan(problem), least_height(problem)
        if found is not None and found[1].objective > least:
            return msgspec.structs.replace(problem, capacity=least)
    raise AssertionError("no such problem")


def test_a_baseline_above_the_capacity_is_told_of() -> None:
    """Else a proven run would wait for it until its search is through."""
    problem = greedy_is_too_high()
    for candidate in (search, beam2):
        context = Recorder(looks=200, deterministic=True, time_limit=0.01)
        candidate(problem, context)
        assert context.without == ["greedy"]


def test_a_hard_instance(shared: Path) -> None:
    problem = stowplan.read(shared / "dsa" / "minimalloc" / "E.1048576.csv", capacity=1 << 20)
    result = stowplan.solve(problem, time_limit=60, candidates="canonical", seed=0)
    assert (result.status, result.objective) == ("optimal", 1 << 20)
