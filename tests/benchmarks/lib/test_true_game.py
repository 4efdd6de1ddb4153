"""A search by the true game: whole games, and true rewards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.lib.memory_mapping.true_game import TrueModel, searched
from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame
from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
from stowplan.learned_guidance.training.run import run
from tests.learned_guidance.memory_mapping.muzero.programs import small_config, small_program
from tests.learned_guidance.memory_mapping.muzero.test_play import check


@pytest.mark.slow
def test_a_search_by_the_true_game_plays_whole_games_and_knows_the_rewards(tmp_path: Path) -> None:
    trainer = Trainer([small_program()], small_config(training_steps=30, batch_size=16), seed=0)
    run(trainer)
    trainer.save_policy(tmp_path / "policy.pt")
    policy, problem = Policy.load(tmp_path / "policy.pt"), small_program()
    check(problem, searched(policy, problem, simulations=8))
    played = ProgramGame(problem, policy.config)
    model, state = TrueModel(policy.model, played.observer), played.game.reset()
    numbers, logits, _ = model.initial([state])
    assert (np.isfinite(logits[0]) == state.legal).all()
    total = 0.0
    while not state.is_over:
        action = int(np.flatnonzero(state.legal)[-1])
        numbers, rewards, logits, values = model.recurrent(numbers, np.array([action]))
        assert rewards[0] == pytest.approx(state.step(action) / played.game.unit_ps, abs=1e-6)
        total += float(rewards[0])
    assert total == pytest.approx(state.return_ps / played.game.unit_ps, abs=1e-5)
    assert (values.tolist(), logits.tolist()) == ([0.0], [[0.0, 0.0, 0.0]])
    _, rewards, _, _ = model.recurrent(numbers, np.array([0]))
    assert rewards.tolist() == [0.0]
