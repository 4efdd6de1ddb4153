"""Deterministic runs: the same plan file, byte for byte, whatever the load, the hash seed and the order of arrival."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan import kinds
from stowplan.deadline import Deadline
from stowplan.kernel.run import stages
from stowplan.result import Progress
from tests.kernel.conftest import AMPLE, OF_EACH_KIND, SolveFakes
from tests.kernel.fakes import ALL_SLOW, NO_PLANS, OPTIMUM, ladder_plan, ladder_problem
from tests.models.memory_mapping.cases import random_problem
from tests.paths import EXAMPLES, ROOT
from tests.patience import no_hang

#: A process of its own for each run: nothing is left over from the one before.
RUN = """
import json, sys
import stowplan
problem, plan, workers, limit = sys.argv[1:]
problem = stowplan.read(problem)
result = stowplan.solve(problem, deterministic=True, work_limit=float(limit), time_limit=1000.0, workers=int(workers))
result.plan.save(plan)
print(json.dumps(result.to_dict(plan)))
"""


def run(problem: Path, plan: Path, *, hash_seed: int, workers: int = 2, limit: float = 0.7) -> tuple[bytes, dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-c", RUN, str(problem), str(plan), str(workers), str(limit)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return plan.read_bytes(), json.loads(done.stdout)


@contextmanager
def load(loops: int) -> Iterator[None]:
    """So many busy loops beside the run."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_the_same_bytes_from_the_real_candidates(tmp_path: Path) -> None:
    """Also where the heuristics have never been compiled on this machine, so that the first run takes longer."""
    problem = random_problem(random.Random("deterministic"), steps=40, tensors=16, channels=1, loops=0, stalls="allowed")
    problem = msgspec.structs.replace(problem, capacity=16)
    problem.save(tmp_path / "problem.json")
    quiet, result = run(tmp_path / "problem.json", tmp_path / "quiet.json", hash_seed=0)
    with load(3):
        loaded, second = run(tmp_path / "problem.json", tmp_path / "loaded.json", hash_seed=1)
    alone, third = run(tmp_path / "problem.json", tmp_path / "alone.json", hash_seed=2, workers=1)
    assert quiet == loaded == alone
    for each in (result, second, third):
        assert each["warnings"] == []
        assert each["objective"] < each["baselines"]["all_slow"]
        # A proof may come before others have come to their end; no clock ends it.
        assert each["stop_reason"] in ("optimal", "work_limit")
        assert {report["outcome"] for report in each["candidates"]} <= {"finished", "stopped", "skipped"}


def test_every_kind_is_among_them() -> None:
    assert {*OF_EACH_KIND} == {each.name for each in kinds.registered()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OF_EACH_KIND)
def test_the_same_bytes_of_every_kind_with_all_cores_busy(kind: str, tmp_path: Path) -> None:
    """Also in one process that has solved before, whose workers are warm."""
    file, target = OF_EACH_KIND[kind]
    problem = stowplan.read(EXAMPLES / file, target=target)
    problem.save(tmp_path / "problem.json")
    quiet, result = run(tmp_path / "problem.json", tmp_path / "quiet.json", hash_seed=0, limit=0.4)
    with load(2 * (os.cpu_count() or 1)):
        busy, second = run(tmp_path / "problem.json", tmp_path / "busy.json", hash_seed=1, limit=0.4)
    warm = [stowplan.solve(problem, deterministic=True, work_limit=0.4, time_limit=AMPLE) for _ in range(2)]
    assert result["kind"] == kind
    assert quiet == busy
    assert (result["warnings"], result["objective"]) == (second["warnings"], second["objective"])
    for number, each in enumerate(warm):
        each.plan.save(tmp_path / f"{number}.json")
        assert (tmp_path / f"{number}.json").read_bytes() == quiet


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_candidate_wins_a_tie_whoever_comes_first(solve_fakes: SolveFakes, workers: int) -> None:
    expected = ladder_plan(ladder_problem(), 3, first=0)
    for names in (["equal_late", "equal_early"], ["equal_early", "equal_late"]):
        result = solve_fakes(*names, deterministic=True, workers=workers)
        assert result.provenance.candidate == names[0]
        assert (result.plan.fast_uses == expected.fast_uses) == (names[0] == "equal_late")
        assert (result.stop_reason, result.warnings) == ("work_limit", ())


def test_a_plan_at_hand_wins_a_tie(solve_fakes: SolveFakes) -> None:
    mine = ladder_plan(ladder_problem(), 3, first=1)
    result = solve_fakes("solves", deterministic=True, plans={"mine": mine})
    assert (result.provenance.candidate, result.plan.fast_uses) == ("mine", mine.fast_uses)


def test_all_start_from_the_plans_at_hand(solve_fakes: SolveFakes) -> None:
    """Not from what another candidate has found before them, which depends on the load."""
    result = solve_fakes("solves", "tells_start", deterministic=True, workers=1)
    assert result.candidates[1].note == f"starts from {ALL_SLOW}, incumbent {ALL_SLOW}"


def test_all_come_to_their_end_without_a_proof(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("solves", "improves", "equal_late", deterministic=True, workers=3)
    assert [report.outcome for report in result.candidates] == ["finished"] * 3
    assert (result.status, result.stop_reason) == ("feasible", "work_limit")


@pytest.mark.parametrize("workers", [2, 3])
def test_a_proof_ends_the_run(solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """One that would go on for ever stands after the best, so that its plans are not waited for."""
    monkeypatch.setattr(importlib.import_module("stowplan.kernel.solve"), "CEILING", 20.0)
    with no_hang():
        result = solve_fakes("solves", "proves", "sleeps", deterministic=True, workers=workers, time_limit=0.5)
    assert (result.status, result.stop_reason, result.warnings) == ("optimal", "optimal", ())
    assert result.provenance.candidate == "solves"


def test_a_proof_waits_for_an_equal_plan_that_stands_before_the_best(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("equal_late", "solves_and_proves", "waits", deterministic=True, workers=3, time_limit=AMPLE)
    assert result.provenance.candidate == "equal_late"
    assert (result.status, result.stop_reason, result.warnings) == ("optimal", "optimal", ())


def test_a_proof_that_there_is_no_plan_is_no_run_cut_short(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("waits", "proves_infeasible", deterministic=True, workers=2, kind=NO_PLANS)
    assert (result.status, result.warnings) == ("infeasible", ())


def test_plans_take_the_time_they_need_and_proofs_what_is_left(solve_fakes: SolveFakes) -> None:
    """A limit too short for the work: the plan is the whole work's, the bound what there was time for."""
    result = solve_fakes("waits:proves_only", "equal_late", deterministic=True, time_limit=0.4, workers=2)
    assert (result.objective, result.stop_reason, result.warnings) == (OPTIMUM, "work_limit", ())
    outcomes = {report.name: report.outcome for report in result.candidates}
    assert outcomes["equal_late"] == "finished"
    assert outcomes["waits"] in ("stopped", "skipped")


@pytest.mark.slow
def test_a_candidate_that_hangs_is_ended_and_told_of(solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("stowplan.kernel.solve"), "CEILING", 10.0)
    with no_hang():
        result = solve_fakes("sleeps", deterministic=True, time_limit=0.5)
    # What it had found is a matter of load.
    assert (result.objective, result.stop_reason) == (ALL_SLOW, "time_limit")
    assert [warning for warning in result.warnings if "another run may differ" in warning]
    assert (result.cut_short, result.is_reproducible) == (True, False)


def test_stages_of_less_work_begin_with_the_same() -> None:
    for work in (0.01, 0.25, 2.0, 30.0, 1000.0):
        found = stages(work)
        assert found[-1] == work
        for count, less in enumerate(found, 1):
            assert stages(less) == found[:count]


def test_a_run_without_time_has_the_plan_of_its_last_whole_stage(
    solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far the one that was ended has come is a matter of load. The options that are named make the plan again."""
    deadlines: list[Deadline] = []

    class Ending(Deadline):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            deadlines.append(self)

    def end(progress: Progress) -> None:
        if progress.objective == ALL_SLOW - 18:
            deadlines[0]._end = 0.0

    monkeypatch.setattr(importlib.import_module("stowplan.kernel.solve"), "Deadline", Ending)
    with no_hang():
        cut = solve_fakes("goes_by_work", deterministic=True, work_limit=0.5, on_progress=end)
    assert (cut.objective, cut.stop_reason, cut.history[-1].objective) == (ALL_SLOW - 9, "time_limit", ALL_SLOW - 9)
    assert "another run may differ; this plan is that of work_limit=0.0625" in cut.warnings[-1]
    again = solve_fakes("goes_by_work", deterministic=True, work_limit=cut.provenance.options["work_limit"])
    assert msgspec.json.encode(again.plan) == msgspec.json.encode(cut.plan)
    assert (again.stop_reason, again.warnings) == ("work_limit", ())
