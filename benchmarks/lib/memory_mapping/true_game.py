"""Games searched by the true game, with a network's policy and values: a control for the learned dynamics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.learned_guidance.mcts.search import search
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.muzero.network import Floats, TorchModel
from stowplan.learned_guidance.memory_mapping.muzero.play import Played, Policy
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame
from stowplan.learned_guidance.memory_mapping.observation.layout import empty_observations
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer
from stowplan.models.memory_mapping.problem import Problem

Numbers = NDArray[np.int64]


class TrueModel:
    """States of one game as ``search.Model`` has hidden states: numbers, of states that are kept until the next search.

    Every state that is looked ahead to is observed and evaluated anew, which takes many times as long as imagining it.
    """

    def __init__(self, model: TorchModel, observer: Observer):
        self._model = model
        self._observer = observer
        self._states: list[CompiledState] = []

    def initial(self, observations: Sequence[CompiledState]) -> tuple[Numbers, Floats, Floats]:
        """Numbers (B,) of states before their games' ends, logits of the policy (B, 3), and values (B,) in units."""
        self._states = [state.copy() for state in observations]
        logits, values = self._evaluated(self._states)
        return np.arange(len(self._states)), logits, values

    def recurrent(self, hidden: Numbers, actions: Numbers) -> tuple[Numbers, Floats, Floats, Floats]:
        """Numbers, true rewards (B,), logits (B, 3), -inf where an action is not legal, and values (B,) after actions (B,)."""
        first, unit = len(self._states), self._observer.game.unit_ps
        rewards = np.zeros(len(hidden), np.float32)
        following = []
        for row, (number, action) in enumerate(zip(hidden.tolist(), actions.tolist(), strict=True)):
            state = self._states[number]
            if not state.is_over:
                state = state.copy()
                rewards[row] = state.step(action) / unit
            following.append(state)
        self._states += following
        logits, values = self._evaluated(following)
        return np.arange(first, first + len(following)), rewards, logits, values

    def _evaluated(self, states: Sequence[CompiledState]) -> tuple[Floats, Floats]:
        """After its end a game earns nothing, whatever is done."""
        logits, values = np.zeros((len(states), 3), np.float32), np.zeros(len(states), np.float32)
        going = [row for row, state in enumerate(states) if not state.is_over]
        if going:
            seen = empty_observations(self._observer.config, len(going))
            for place, row in enumerate(going):
                self._observer.observe(states[row], seen, place)
            _, found, worth = self._model.initial(seen)
            legal = np.array([states[row].legal for row in going], np.bool_)
            logits[going] = np.where(legal, found, -np.inf)
            values[going] = worth
        return logits, values


def searched(policy: Policy, problem: Problem | CompiledGame, simulations: int, seed: int = 0) -> Played:
    """A game, each move searched, as ``Policy.searched`` does it: the same network, nothing imagined."""
    rng = np.random.default_rng(seed)
    config = policy.config.search_at(policy.file.provenance.training_steps).changed(simulations=simulations)
    played = ProgramGame(problem, policy.config)
    state = played.game.reset()
    model = TrueModel(policy.model, played.observer)

    def found(_: Any, legal: NDArray[np.bool_], games: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        result = search(model, [state], legal, config, rng, explore=False)
        return result.action, result.value

    return policy._play([played], found, None, [state])[0]
