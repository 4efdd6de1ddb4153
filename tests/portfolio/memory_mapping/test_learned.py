"""The learned candidate: when it runs, what it says where it cannot, and that its plans are valid."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from stowplan.errors import UsageError
from stowplan.kernel.call import select_candidates
from stowplan.kernel.context import Context, Options
from stowplan.kernel.solve import solve
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio import policies
from stowplan.portfolio.memory_mapping import learned
from stowplan.portfolio.memory_mapping.kind import KIND
from tests.models.memory_mapping.cases import random_problem
from tests.patience import HANG


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch is installed, be it or not."""
    monkeypatch.setattr(policies, "find_spec", lambda name: object())


@pytest.fixture
def any_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, with_torch: None) -> Path:
    """A policy file, as far as the parent looks."""
    path = tmp_path / "policy.pt"
    path.write_bytes(b"policy")
    monkeypatch.setenv(learned.POLICY.variable, str(path))
    return path


def problem_of(seed: int = 1) -> Problem:
    return random_problem(random.Random(seed), steps=10, tensors=5)


def chosen(options: Options) -> list[str]:
    return [candidate.name for candidate in select_candidates(KIND.candidates(problem_of(), options), options)]


# When it runs


def test_with_its_family_only_where_it_takes_little_from_others(any_file: Path) -> None:
    everything = ["presolve", "search", "relaxation", "policy", "cpsat", "lns"]
    assert "policy" not in chosen(Options(time_limit=30))
    assert [name for name in chosen(Options(time_limit=300)) if name != "greedy"] == everything
    # A place for each is a free place.
    assert "policy" in chosen(Options(time_limit=30, workers=6))
    assert "policy" in chosen(Options(time_limit=30, candidates=("learned",)))
    assert "policy" in chosen(Options(time_limit=30, candidates=("search", "learned")))
    assert "policy" not in chosen(Options(time_limit=30, candidates=("search", "learned"), workers=1))


@pytest.mark.parametrize("time_limit", [1.0, 30.0, 300.0])
def test_search_keeps_its_place(any_file: Path, time_limit: float) -> None:
    options = Options(time_limit=time_limit)
    running = select_candidates(KIND.candidates(problem_of(), options), options)
    shares = {
        candidate.name: candidate.share for candidate in running if candidate.name != "greedy" and candidate.turn != "presolver"
    }
    assert shares["search"] == 1.0
    assert sum(shares.values()) == pytest.approx(2.0)
    assert all(share >= 0 for share in shares.values())


def test_a_relaxation_that_would_take_half_of_the_limit_is_left_out(any_file: Path) -> None:
    assert "relaxation" not in chosen(Options(time_limit=1e-3))
    assert "relaxation" in chosen(Options(time_limit=1e-3, deterministic=True))
    for candidates in (("relaxation", "search", "lns"), ("exact",)):
        assert "relaxation" in chosen(Options(time_limit=1e-3, candidates=candidates))


def test_one_worker_is_for_the_search_where_time_is_short(any_file: Path) -> None:
    for time_limit, is_short in ((1.0, True), (30.0, False)):
        options = Options(time_limit=time_limit, workers=1)
        found = select_candidates(KIND.candidates(problem_of(), options), options)
        others = [each.share for each in found if each.name not in ("search", "greedy") and each.turn != "presolver"]
        assert (sum(others) < 0.5) is is_short


# Where it cannot run


def test_without_torch(any_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "find_spec", lambda name: None)
    assert "policy" not in chosen(Options(time_limit=300))
    for names in (("policy",), ("policy", "search"), ("learned",)):
        with pytest.raises(
            UsageError, match=r"^candidate 'policy' needs torch: pip install '\.\[learned\]' in a clone of stowplan$"
        ):
            chosen(Options(candidates=names))


def test_without_a_policy(any_file: Path) -> None:
    any_file.unlink()
    assert "policy" not in chosen(Options(time_limit=300))
    with pytest.raises(UsageError, match=rf"^candidate 'policy' found no policy {any_file}: name one in STOWPLAN_POLICY"):
        chosen(Options(candidates=("policy",)))


def test_the_package_has_a_place_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(learned.POLICY.variable, raising=False)
    assert learned.POLICY.path.parts[-3:] == ("learned_guidance", "checkpoints", "mmap_muzero.pt")


def test_the_parent_never_imports_torch(any_file: Path) -> None:
    program = """
        import sys
        from stowplan.models.memory_mapping.problem import Problem
        from stowplan.kernel.context import Options
        from stowplan.portfolio.memory_mapping.kind import KIND
        problem = Problem(name="x", target="x", cost_model="x", capacity=1, steps=(), tensors=())
        KIND.candidates(problem, Options(candidates=("policy",)))
        sys.exit("torch" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=HANG)


# What it does


class FakeContext(Context):
    """Takes in what a candidate reports; time is up after so many looks at the clock."""

    def __init__(self, looks: int = 10**9, start_plan: Plan | None = None, **options: Any):
        super().__init__(Options(**options), start_plan)
        self.plans: list[tuple[str, Plan]] = []
        self._looks = looks

    def plan(self, plan: Plan, source: str) -> None:
        self.plans.append((source, plan))

    def hints(self) -> tuple[Hint, ...]:
        return ()

    def incumbent(self) -> tuple[Plan | None, int | None]:
        return self.start_plan, None

    def closed(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def remaining(self) -> float:
        return 1.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy that knows next to nothing."""
    pytest.importorskip("torch")
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
    from stowplan.learned_guidance.training.run import run
    from tests.learned_guidance.memory_mapping.muzero.programs import small_config, small_program

    path = tmp_path_factory.mktemp("policy") / "policy.pt"
    trainer = Trainer([small_program()], small_config(training_steps=4), seed=0)
    run(trainer)
    trainer.save_policy(path)
    return path


def run(problem: Problem, context: FakeContext) -> list[tuple[str, int]]:
    """Sources and objectives of its plans, which must be valid."""
    learned.policy(problem, context)
    assert all(verify(problem, plan).ok for _, plan in context.plans)
    return [(source, plan.objective) for source, plan in context.plans]


def test_plans_are_valid_and_a_run_repeats(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(learned.POLICY.variable, str(trained))
    found = [run(problem_of(3), FakeContext()) for _ in range(2)]
    assert found[0] == found[1]
    assert [source for source, _ in found[0]] == ["policy", "policy"]
    assert run(problem_of(3), FakeContext(looks=0)) == []


def test_nothing_to_play(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(learned.POLICY.variable, str(trained))
    empty = Problem(name="x", target="x", cost_model="x", capacity=1, steps=(), tensors=())
    assert run(empty, FakeContext()) == []


@pytest.mark.slow
def test_the_result_names_the_policy(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(learned.POLICY.variable, str(trained))
    result = solve(problem_of(3), time_limit=60, candidates="policy", workers=1)
    assert [(report.name, report.outcome) for report in result.candidates] == [("policy", "finished")]
    assert "policy" in result.details["sources"]
    assert result.provenance.checkpoint == hashlib.sha256(trained.read_bytes()).hexdigest()
    assert "torch" in result.provenance.versions
    without = solve(problem_of(3), time_limit=1, candidates="search", workers=1)
    assert without.provenance.checkpoint is None
    assert "torch" not in without.provenance.versions


@pytest.mark.slow
def test_a_file_that_is_no_policy(any_file: Path) -> None:
    pytest.importorskip("torch")
    result = solve(problem_of(3), time_limit=60, candidates="policy", workers=1)
    (report,) = result.candidates
    assert report.outcome == "failed"
    assert str(any_file) in report.note
