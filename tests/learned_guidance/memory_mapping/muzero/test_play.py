"""Games of a policy are whole games with valid plans; the same each time; and stop when told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

pytest.importorskip("torch")

from benchmarks.lib.memory_mapping.plain_game import reset
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.game import Action, Placing
from stowplan.learned_guidance.memory_mapping.muzero.play import Played, Policy
from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
from stowplan.learned_guidance.training.run import run
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from tests.learned_guidance.memory_mapping.muzero.programs import other_program, small_config, small_program


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Trained for a few steps on a small program."""
    path = tmp_path_factory.mktemp("policy") / "policy.pt"
    trainer = Trainer([small_program()], small_config(training_steps=30, batch_size=16), seed=0)
    run(trainer)
    trainer.save_policy(path)
    return Policy.load(path)


def check(problem: Problem, played: Played) -> None:
    state = reset(problem)
    for action in played.actions.tolist():
        state.step(Action(action))
    assert state.is_over
    assert state.return_ps == played.return_ps
    assert state.plan() == played.plan
    assert not verify(problem, played.plan).violations


@pytest.mark.parametrize("problem", [small_program(), other_program()], ids=["trained", "never seen"])
def test_games_are_whole_and_their_plans_valid(policy: Policy, problem: Problem) -> None:
    rollout = policy.rollout(problem)
    assert rollout is not None
    games = [rollout, *policy.rollouts(problem, 3), *policy.searched(problem, count=2, simulations=3, explore=True)]
    assert len(games) == 6
    for game in games:
        check(problem, game)


def test_a_compiled_game_does_as_well(policy: Policy) -> None:
    problem = small_program()
    one, other = policy.rollout(problem), policy.rollout(CompiledGame(problem))
    assert one is not None
    assert other is not None
    assert one.actions.tolist() == other.actions.tolist()


def test_games_depend_on_their_seed_alone(policy: Policy) -> None:
    problem = small_program()

    def actions(games: list[Played]) -> list[list[int]]:
        return [game.actions.tolist() for game in games]

    first = actions(policy.rollouts(problem, 8, seed=1))
    assert first == actions(policy.rollouts(problem, 8, seed=1))
    assert first != actions(policy.rollouts(problem, 8, seed=2))
    assert len({str(each) for each in first}) > 1
    assert actions(policy.searched(problem, seed=1)) == actions(policy.searched(problem, seed=2))


def test_at_temperature_0_all_games_are_the_likeliest(policy: Policy) -> None:
    problem = small_program()
    rollout = policy.rollout(problem)
    assert rollout is not None
    for game in policy.rollouts(problem, 3, temperature=0.0):
        assert game.actions.tolist() == rollout.actions.tolist()


@pytest.mark.parametrize("problem", [small_program(), other_program()], ids=["trained", "never seen"])
def test_the_best_game_is_that_of_both_rules_of_placing_and_of_draws_near_the_likeliest(
    policy: Policy, problem: Problem
) -> None:
    likeliest = [policy.rollout(CompiledGame(problem, placing=placing)) for placing in get_args(Placing)]
    best, drawn = policy.best_rollout(problem), policy.best_rollout(problem, drawn=3, seed=5)
    assert best is not None
    assert drawn is not None
    assert best.return_ps == max(game.return_ps for game in likeliest if game is not None)
    assert drawn.return_ps >= best.return_ps
    for played in (best, drawn):
        found = verify(problem, played.plan)
        assert found.ok, found.violations
        assert found.objective == problem.all_slow_ps - played.return_ps
    again = policy.best_rollout(problem, drawn=3, seed=5)
    assert again is not None
    assert again.actions.tolist() == drawn.actions.tolist()
    assert policy.best_rollout(problem, should_stop=stop_after(3)) is None


def stop_after(calls: int) -> Callable[[], bool]:
    left = [calls]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    return stop


def test_playing_stops_when_told_to(policy: Policy) -> None:
    problem = small_program()
    assert policy.rollout(problem, should_stop=stop_after(3)) is None
    assert policy.rollouts(problem, 2, should_stop=stop_after(3)) == []
    assert policy.searched(problem, should_stop=stop_after(0)) == []
    assert policy.rollout(problem, should_stop=stop_after(1000)) is not None


def test_a_policy_file_says_what_it_is(policy: Policy) -> None:
    assert policy.file.provenance.training_steps == 30
