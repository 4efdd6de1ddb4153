"""A policy that searches on the true game: what it prefers, and what priced play makes of each action, together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.learned_guidance.memory_mapping.game.best import Best
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.rollouts import ILLEGAL, Rollouts
from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame, as_f32

#: Nats are so many mean rewards of a move: as labels are made (``imitation.preferred``).
HEAT = 0.5


def guided(
    policy: Policy,
    game: CompiledGame,
    weight: float,
    *,
    should_stop: Callable[[], bool] | None = None,
    rollouts: Rollouts | None = None,
) -> Best:
    """One game whose moves are the likeliest, ``weight`` times what completions come to added to the logits.

    The best of the game and of all completions; a game that is stopped leaves what it has met. At weight 0 there are no
    completions, and a game that is stopped leaves nothing.
    """
    best = Best()
    played = ProgramGame(game, policy.config)
    state, rollouts = game.reset(), rollouts or Rollouts(game)
    if weight:
        rollouts.look(state)
    # Of the best completion, as the scale of labels is that of the best game.
    heat = HEAT * max(abs(rollouts.return_ps if weight else game.unit_ps), 1) / max(len(game.moves), 1)

    def chosen(observations: Any, legal: NDArray[np.bool_], _: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
        _, logits, values = policy.model.initial(observations)
        scores = np.where(legal, as_f32(logits).astype(np.float64), -np.inf)
        if weight and legal.sum() > 1:
            returns = rollouts.look(state)
            scores[0] += weight * np.where(returns > ILLEGAL, (returns - returns.max()) / heat, 0.0)
        return np.asarray(scores.argmax(axis=1), np.int64), values

    found = policy._play([played], chosen, should_stop, [state])
    for each in found:
        best.offer(each.return_ps, each.actions)
    if weight:
        best.offer(rollouts.return_ps, rollouts.actions)
    return best


def limited(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds of this process's time are over."""
    end = time.process_time() + seconds
    return lambda: time.process_time() > end
