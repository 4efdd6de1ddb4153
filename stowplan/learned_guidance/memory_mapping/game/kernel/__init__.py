"""MMapGame, compiled: the rules of ``game.py`` on flat tables and one flat vector for a state."""

from __future__ import annotations

import numpy as np

from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.learned_guidance.memory_mapping.game.kernel.play import play_actions, play_greedy, play_preferences, play_random
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame, CompiledState
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use

__all__ = ["CompiledGame", "CompiledState", "play_actions", "play_greedy", "play_preferences", "play_random", "warm_up"]


def smallest_problem() -> Problem:
    """A program of two steps, for compiling what is played on it."""
    step = Step("step", "add", 1, (Use(0, False, 1),), (Piece(1, (1,), (0,)),))
    return Problem(
        name="warm-up",
        target="none",
        cost_model="none",
        capacity=1,
        steps=(step, step),
        tensors=(Tensor("tensor", 1, 1, 1, is_input=True),),
    )


def warm_up() -> None:
    """Compile everything, where it has not been, by playing a program of two steps."""
    game = CompiledGame(smallest_problem())
    count = len(game.moves)
    play_random(game.tables, game.reset().data, 0)
    play_preferences(game.tables, game.reset().data, np.zeros((count, 3), np.float32), np.zeros(count, np.int64))
    # Each of these asks for compiled functions of its own.
    state = game.reset()
    assert state.benefit_ps > 0
    assert game.unit_ps > 0
    state.step(Action.DROP)
    state.play([Action.DROP] * (count - 1))
