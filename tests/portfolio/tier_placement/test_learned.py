"""The learned candidate of tier placement: when it runs, what it says where it cannot, and that its plans are valid."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from stowplan.errors import UsageError
from stowplan.kernel.call import select_candidates
from stowplan.kernel.context import Options
from stowplan.kernel.solve import solve
from stowplan.models.tier_placement.problem import Problem, Tier
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio import policies
from stowplan.portfolio.tier_placement import learned
from stowplan.portfolio.tier_placement.kind import KIND
from tests.kernel.recorder import Recorder
from tests.learned_guidance.tier_placement.policies import small_network, write_policy
from tests.models.tier_placement.cases import chain
from tests.patience import HANG


@pytest.fixture
def any_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A policy file, as far as the parent looks, where all packages are installed."""
    monkeypatch.setattr(policies, "find_spec", lambda name: object())
    path = tmp_path / "egrl.pt"
    path.write_bytes(b"policy")
    monkeypatch.setenv(learned.POLICY.variable, str(path))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy that knows next to nothing."""
    pytest.importorskip("torch")
    return write_policy(tmp_path_factory.mktemp("policy") / "egrl.pt")


@pytest.fixture
def policy(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(learned.POLICY.variable, str(trained))
    return trained


def chosen(options: Options, problem: Problem | None = None) -> list[str]:
    return [candidate.name for candidate in select_candidates(KIND.candidates(problem or small_network(), options), options)]


# When it runs


def test_with_its_family_only_where_it_takes_little_from_others(any_file: Path) -> None:
    assert chosen(Options(time_limit=30)) == ["presolve", "search", "milp", "cpsat"]
    assert chosen(Options(time_limit=300)) == ["presolve", "search", "milp", "egrl", "cpsat"]
    assert "egrl" in chosen(Options(time_limit=30, workers=6))
    assert chosen(Options(time_limit=30, candidates=("learned",))) == ["egrl"]
    # Of a large network it is the first to have a plan.
    assert chosen(Options(time_limit=5), small_network(2_000)) == ["search", "egrl", "linear", "lns"]


def test_on_large_networks_it_is_not_stopped_just_before_its_plan(any_file: Path) -> None:
    found = {each.name: each.share for each in KIND.candidates(small_network(2_000), Options(time_limit=40))}
    assert found["egrl"] == policies.MOST_SHARE


# Where it cannot run


def test_without_torch(any_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "find_spec", lambda name: None)
    assert "egrl" not in chosen(Options(time_limit=300))
    with pytest.raises(UsageError, match=r"^candidate 'egrl' needs torch: pip install '\.\[learned\]' in a clone of stowplan$"):
        chosen(Options(candidates=("learned",)))


def test_without_a_policy(any_file: Path) -> None:
    any_file.unlink()
    assert "egrl" not in chosen(Options(time_limit=300))
    expected = rf"^candidate 'egrl' found no policy {any_file}: name one in STOWPLAN_EGRL_POLICY, or train one "
    with pytest.raises(UsageError, match=expected + r"\(stowplan train egrl --help\)$"):
        chosen(Options(candidates=("egrl",)))


def test_without_features(any_file: Path) -> None:
    assert "egrl" not in chosen(Options(time_limit=300), chain(5))
    with pytest.raises(UsageError, match=r"^candidate 'egrl' needs node features, as reading a network gives; "):
        chosen(Options(candidates=("egrl",)), chain(5))


def test_the_package_has_a_place_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(learned.POLICY.variable, raising=False)
    assert learned.POLICY.path.parts[-3:] == ("learned_guidance", "checkpoints", "egrl.pt")


def test_the_parent_never_imports_torch(any_file: Path) -> None:
    program = """
        import sys
        from tests.learned_guidance.tier_placement.policies import small_network
        from stowplan.kernel.context import Options
        from stowplan.portfolio.tier_placement.kind import KIND
        KIND.candidates(small_network(), Options(candidates=("egrl",)))
        sys.exit("torch" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=HANG)


# What it does


def run(problem: Problem, context: Recorder) -> list[tuple[str, int]]:
    """Sources and objectives of its plans, which must be valid."""
    learned.egrl(problem, context)
    assert all(verify(problem, plan).ok for plan, _ in context.plans)
    return [(source, plan.objective) for plan, source in context.plans]


@pytest.mark.parametrize("address_spaces", [False, True])
def test_plans_are_valid_and_a_deterministic_run_repeats(policy: Path, address_spaces: bool) -> None:
    problem = small_network(address_spaces=address_spaces)
    found = [run(problem, Recorder(deterministic=True, time_limit=1.0, seed=4)) for _ in range(2)]
    assert found[0] == found[1]
    assert [source for source, _ in found[0]] == ["egrl"]


def test_it_stops(policy: Path) -> None:
    assert run(small_network(), Recorder(looks=0)) == []


def test_a_chip_of_other_tiers_is_a_note(policy: Path) -> None:
    problem = small_network()
    more = msgspec.structs.replace(problem, tiers=(*problem.tiers, Tier(name="faster", capacity=10, bandwidth=10**13)))
    context = Recorder()
    assert run(more, context) == []
    assert context.notes == ["egrl: tiers: found a chip of 3 tiers, expected 2, as the policy was trained with"]


def test_a_network_that_fits_nowhere(policy: Path) -> None:
    problem = small_network()
    less = msgspec.structs.replace(problem, tiers=tuple(msgspec.structs.replace(tier, capacity=39) for tier in problem.tiers))
    context = Recorder()
    assert run(less, context) == []
    assert context.infeasible


@pytest.mark.slow
def test_the_result_names_the_policy(policy: Path) -> None:
    result = solve(small_network(), time_limit=60, candidates="egrl", workers=1)
    assert [(report.name, report.outcome) for report in result.candidates] == [("egrl", "finished")]
    assert "egrl" in result.details["sources"]
    assert result.provenance.checkpoint == hashlib.sha256(policy.read_bytes()).hexdigest()
    assert "torch" in result.provenance.versions
    # What is said of the package's own holds of no other.
    assert result.provenance.checkpoint_training == ""


@pytest.mark.slow
def test_the_result_says_how_the_packages_own_policy_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("STOWPLAN_EGRL_POLICY", raising=False)
    result = solve(small_network(), time_limit=60, candidates="egrl", workers=1)
    assert result.provenance.checkpoint_training == "trained by imitation of linear relaxations, no evaluations of its own"


@pytest.mark.slow
def test_a_file_that_is_no_policy(any_file: Path) -> None:
    pytest.importorskip("torch")
    result = solve(small_network(), time_limit=60, candidates="egrl", workers=1)
    (report,) = result.candidates
    assert report.outcome == "failed"
    assert str(any_file) in report.note
