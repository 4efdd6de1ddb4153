"""A policy's game as a hint for searches, and a hint shown to a policy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import msgspec

from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledGame
from stowplan.learned_guidance.memory_mapping.muzero.checkpoint import POLICY
from stowplan.learned_guidance.memory_mapping.muzero.hint import policy_hint
from stowplan.learned_guidance.memory_mapping.muzero.play import Policy, Seat
from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
from stowplan.learned_guidance.training import checkpoint
from stowplan.models.hint import check
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from tests.learned_guidance.memory_mapping.muzero.programs import other_program, small_config, small_program
from tests.learned_guidance.memory_mapping.programs import program


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    path = tmp_path_factory.mktemp("policy") / "policy.pt"
    Trainer([small_program()], small_config(), seed=0).save_policy(path)
    return Policy(checkpoint.load(path, POLICY))


@pytest.mark.parametrize("problem", [small_program(), other_program()], ids=["one", "other"])
def test_it_fits_the_problem_and_says_what_the_plan_does(policy: Policy, problem: Problem) -> None:
    found = policy_hint(policy, problem, games=3)
    assert found is not None
    check(problem, found)
    plan = msgspec.convert(found.plan, Plan)
    assert verify(problem, plan).ok
    assert found == hints.of_plan(problem, plan, source="MMap-MuZero")
    one = policy_hint(policy, problem)
    assert one is not None
    assert msgspec.convert(one.plan, Plan).objective_ps >= plan.objective_ps


def test_there_is_none_of_a_stopped_game_or_an_empty_program(policy: Policy) -> None:
    assert policy_hint(policy, small_program(), should_stop=lambda: True) is None
    assert policy_hint(policy, program([""], {})) is None


def test_a_hint_that_is_shown_changes_what_the_network_sees_and_no_rule(policy: Policy) -> None:
    problem = small_program()
    count = hints.counts(problem)["fast"]
    shown = hints.hint(problem, np.linspace(0, 1, count).tolist(), [0.5] * count)
    game = CompiledGame(problem)
    played = policy.rollout(game, hint=shown)
    assert played is not None
    assert verify(problem, played.plan).ok
    (bare,) = policy.play([Seat.of(game, policy.config)], temperatures=np.zeros(1))
    (seen,) = policy.play([Seat.of(game, policy.config, shown)], temperatures=np.zeros(1))
    assert [value for _, value, _ in bare.estimates] != [value for _, value, _ in seen.estimates]


def test_games_of_several_programs_side_by_side_are_those_played_alone(policy: Policy) -> None:
    seats = [Seat.of(problem, policy.config) for problem in (small_program(), other_program())]
    together = policy.play(seats, temperatures=np.zeros(2))
    alone = [policy.play([seat], temperatures=np.zeros(1))[0] for seat in seats]
    assert [each.actions.tolist() for each in together] == [each.actions.tolist() for each in alone]
