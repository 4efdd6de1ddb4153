"""The learned candidate of modulo scheduling: when it runs, what it says where it cannot, and that its plans are valid."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lib.modulo_scheduling import kernels
from benchmarks.lib.modulo_scheduling.generated_graphs import generated
from stowplan import work_rates
from stowplan.errors import InputError, UsageError
from stowplan.frontends.dfg import lower
from stowplan.hardware.se import load_machine
from stowplan.kernel.call import select_candidates
from stowplan.kernel.context import Options
from stowplan.kernel.solve import solve
from stowplan.learned_guidance.modulo_scheduling.state import Mapping, Uniform
from stowplan.models.modulo_scheduling.machine import Link
from stowplan.models.modulo_scheduling.plan import encode_objective
from stowplan.models.modulo_scheduling.problem import Problem, Rules
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio import policies
from stowplan.portfolio.modulo_scheduling import learned
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.kind import KIND
from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts
from stowplan.portfolio.modulo_scheduling.search import Tally
from stowplan.portfolio.policies import PolicySource
from tests.kernel.recorder import Recorder
from tests.models.modulo_scheduling import brute_force
from tests.models.modulo_scheduling.cases import graph, line, random_problem
from tests.patience import HANG


@pytest.fixture
def any_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A policy file, as far as the parent looks, where all packages are installed."""
    monkeypatch.setattr(policies, "find_spec", lambda name: object())
    path = tmp_path / "ppo.pt"
    path.write_bytes(b"policy")
    monkeypatch.setenv(learned.POLICY.variable, str(path))
    return path


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Uniform:
    """A policy that knows nothing."""
    found = Uniform()
    monkeypatch.setattr(PolicySource, "load", lambda source: found)
    return found


def chosen(options: Options) -> list[str]:
    return [candidate.name for candidate in select_candidates(KIND.candidates(graph("a>b"), options), options)]


# When it runs


def test_with_its_family_only_where_it_takes_little_from_others(any_file: Path) -> None:
    assert chosen(Options(time_limit=30)) == ["cpsat", "search"]
    assert chosen(Options(time_limit=300)) == ["cpsat", "search", "ppo"]
    assert chosen(Options(time_limit=30, workers=6)) == ["cpsat", "search", "ppo"]
    assert chosen(Options(time_limit=30, candidates=("learned",))) == ["ppo"]


def test_without_torch_or_a_policy(any_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    any_file.unlink()
    assert "ppo" not in chosen(Options(time_limit=300))
    with pytest.raises(UsageError, match=r"^candidate 'ppo' found no policy .*STOWPLAN_PPO_POLICY.*stowplan train ppo --help"):
        chosen(Options(candidates=("ppo",)))
    monkeypatch.setattr(policies, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^candidate 'ppo' needs torch: pip install '\.\[learned\]' in a clone of stowplan$"):
        chosen(Options(candidates=("learned",)))


def test_the_parent_imports_neither_torch_nor_numba(any_file: Path) -> None:
    program = """
        import sys
        from tests.models.modulo_scheduling.cases import graph
        from stowplan.kernel.context import Options
        from stowplan.portfolio.modulo_scheduling.kind import KIND
        KIND.candidates(graph("a>b"), Options(candidates=("ppo",)))
        sys.exit("torch" in sys.modules or "numba" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=HANG)


# What it does


def run(problem: Problem, context: Recorder) -> list[tuple[str, int]]:
    """Sources and objectives of its plans, which must be valid."""
    learned.ppo(problem, context)
    for plan, _ in context.plans:
        assert verify(problem, plan).ok, verify(problem, plan).violations
    return [(source, plan.objective) for plan, source in context.plans]


def test_plans_are_valid_and_a_deterministic_run_repeats(player: Uniform) -> None:
    problem = lower(kernels.fft(8), inputs="instructions")
    found = [run(problem, Recorder(deterministic=True, time_limit=2.0, seed=4)) for _ in range(2)]
    assert found[0] == found[1]
    assert {source for source, _ in found[0]} == {"ppo"}
    objectives = [objective for _, objective in found[0]]
    assert objectives == sorted({*objectives}, reverse=True)


def test_work_of_deterministic_runs_is_counted(player: Uniform) -> None:
    problem = lower(kernels.fft(8), inputs="instructions")
    budget = int(work_rates.MODULO_POLICY_PLACEMENTS.per_second * 2.0) // len(problem.instructions) + 1
    context = Recorder(deterministic=True, time_limit=2.0)
    run(problem, context)
    spent = int(context.notes[-1].split(" after ")[1].split()[0])
    assert budget <= spent <= 2.5 * budget


def test_random_problems(player: Uniform) -> None:
    """Plans hold, none beats brute force, and infeasibility is claimed only where there is no plan."""
    found = 0
    for seed in range(25):
        problem = random_problem(seed)
        best = brute_force.best(problem)
        context = Recorder(time_limit=0.02, deterministic=True, seed=seed)
        for _, objective in run(problem, context):
            assert best is not None
            assert objective >= encode_objective(*best), seed
        assert best is None or context.why is None, seed
        found += bool(context.plans)
    assert found > 5


def test_it_stops(player: Uniform) -> None:
    problem = lower(kernels.fft(8), inputs="instructions")
    assert run(problem, Recorder(looks=0)) == []
    context = Recorder(looks=60)
    run(problem, context)
    assert context.notes[-1].startswith("ppo: ")


def test_the_proven_optimum_ends_them(player: Uniform) -> None:
    """Where somebody proves that nothing is better, and has the plan."""
    problem = lower(kernels.vector_add())
    context = Recorder()
    context.bound(encode_objective(1, 3), "cpsat")
    assert run(problem, context) == [("ppo", encode_objective(1, 3))]


def test_values_that_pass_through_are_left_to_others(player: Uniform) -> None:
    far = (
        Link(name="down", rows=1, clocks=3),
        Link(name="right", rows=0, columns=1),
        Link(name="long", rows=1, columns=1, clocks=9),
    )
    quicker = graph("a>b", line(2, columns=2, links=far), rules=Rules(pass_through=True))
    context = Recorder(deterministic=True, time_limit=0.1)
    assert run(quicker, context) == []
    assert "left to CP-SAT" in context.notes[0]
    same = graph("a>b b>c", line(2), rules=Rules(pass_through=True))
    assert run(same, Recorder(deterministic=True, time_limit=0.1))


def test_registers_are_left_to_others(player: Uniform) -> None:
    context = Recorder(deterministic=True, time_limit=0.1)
    problem = graph("a>b", load_machine("satmapit-2x2"))
    assert run(problem, context) == []
    assert "no registers" in context.notes[0]
    with pytest.raises(InputError, match=r"machine\.registers: found registers"):
        Mapping(problem, 1)


def test_intervals_rise_until_there_is_a_mapping_and_fall_again() -> None:
    problem = lower(kernels.fft(8), inputs="instructions")
    tally = Tally(Body(problem))
    rollouts = RollOuts(tally, Uniform(), 0, look_ahead=False, resample=False)
    seen = []
    for _ in range(60):
        best = tally.best
        rollouts.step(tally.body.least_ii, lambda: False)
        seen.append((rollouts._ii, best))
        if tally.best is not None and tally.best.ii == tally.body.least_ii:
            break
    first = [ii for ii, best in seen if best is None]
    assert first == sorted(first)
    assert first[0] == tally.body.least_ii
    assert tally.best is not None
    assert verify(problem, tally.best).ok


def test_repairs_begin_with_what_came_furthest() -> None:
    """They count what they place only, keep within the rules, and come further than fresh roll-outs."""
    problem = lower(kernels.fft(8), inputs="instructions")
    reached = {}
    for repair in (False, True):
        tally = Tally(Body(problem))
        rollouts = RollOuts(tally, Uniform(), 1, look_ahead=False, resample=False, repair=repair)
        least, before = tally.body.least_ii, 0
        while tally.evaluations < 150:
            rollouts.step(least, lambda: False)
            assert tally.placements > before
            before = tally.placements
        assert tally.best is None or verify(problem, tally.best).ok
        reached[repair] = 99 if tally.best is None else tally.best.ii
        assert bool(rollouts._furthest) == repair
    assert reached[True] < reached[False]


# With a network


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy file of a network that knows nothing."""
    pytest.importorskip("sb3_contrib")
    from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer
    from tests.learned_guidance.modulo_scheduling.ppo.small import small

    path = tmp_path_factory.mktemp("policy") / "ppo.pt"
    Trainer([graph("a>b")], small(), seed=0).save_policy(path)
    return path


@pytest.mark.slow
def test_a_network_that_was_never_trained(untrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plans are valid and come again."""
    problem = generated(np.random.default_rng(3), instructions=8)
    monkeypatch.setenv(learned.POLICY.variable, str(untrained))
    found = [run(problem, Recorder(deterministic=True, time_limit=0.2, seed=1)) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.slow
def test_the_result_names_the_policy(untrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(learned.POLICY.variable, str(untrained))
    result = solve(lower(kernels.vector_add()), time_limit=60, candidates="ppo", workers=1, gap=0.9)
    assert [report.name for report in result.candidates] == ["ppo"]
    assert result.objective == encode_objective(1, 3)
    assert result.provenance.checkpoint == hashlib.sha256(untrained.read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_file_that_is_no_policy(any_file: Path) -> None:
    pytest.importorskip("torch")
    result = solve(graph("a>b b>c a>d"), time_limit=60, candidates="ppo", workers=1)
    (report,) = result.candidates
    assert report.outcome == "failed"
    assert str(any_file) in report.note
