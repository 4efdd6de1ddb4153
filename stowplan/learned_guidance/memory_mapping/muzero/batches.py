"""Training batches: positions from the replay with their observations, what was played from there on, and the targets.

The targets of a reanalysed position, and of those it is unrolled to, come from fresh searches (Schrittwieser et al. 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.learned_guidance.mcts.search import Model, search
from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledState
from stowplan.learned_guidance.memory_mapping.muzero.replay import Sample
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame, first_rows
from stowplan.learned_guidance.memory_mapping.muzero.targets import F32
from stowplan.learned_guidance.memory_mapping.muzero.training_config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.observation.layout import Observations, empty_observations


class Batch(NamedTuple):
    """S samples, unrolled K steps. What lies beyond the end of a game is absorbing: no reward, value 0, no policy."""

    observations: Observations
    """S rows: the positions where the unrolling begins."""
    actions: NDArray[np.int64]
    """(S, K) played; random beyond the end."""
    rewards: F32
    """(S, K) in units."""
    values: F32
    """(S, K + 1) targets, in units."""
    policy: F32
    """(S, K + 1, 3) targets, each row weighted: it sums to the weight that it has in the loss."""
    played: NDArray[np.int64]
    """(S, K + 1) actions; -1 beyond the end."""
    behaviour: F32
    """(S, K + 1) probability that the action had when it was played, for learning without search."""
    legal: NDArray[np.bool_]
    """(S, K + 1, 3); all beyond the end."""
    weights: F32
    """(S,)"""


def make_batch(
    sample: Sample, programs: Sequence[ProgramGame], config: TrainingConfig, model: Model, rng: np.random.Generator
) -> Batch:
    """Observations and targets of a sample; ``model`` searches anew where positions are reanalysed."""
    size, unroll = len(sample.positions), config.unroll_steps
    batch = Batch(
        observations=empty_observations(config.network.observation, size),
        actions=rng.integers(3, size=(size, unroll)),
        rewards=np.zeros((size, unroll), np.float32),
        values=np.zeros((size, unroll + 1), np.float32),
        policy=np.zeros((size, unroll + 1, 3), np.float32),
        played=np.full((size, unroll + 1), -1, np.int64),
        behaviour=np.ones((size, unroll + 1), np.float32),
        legal=np.ones((size, unroll + 1, 3), np.bool_),
        weights=sample.weights,
    )
    full = rng.random(size) < config.full_return_fraction
    # Spread over the batch, so that newest and kept games have equal parts.
    is_reanalysed = config.use_search & (rng.random(size) < config.reanalyse_fraction)
    fresh = _Fresh(config, (unroll + 1) * int(is_reanalysed.sum()))
    for row, (game, position) in enumerate(zip(sample.trajectories, sample.positions.tolist(), strict=True)):
        _fill(batch, row, sample, config, bool(full[row]))
        program_game = programs[game.program]
        state = program_game.game.reset()
        state.play(game.actions[:position])
        program_game.observer.observe(state, batch.observations, row)
        if is_reanalysed[row]:
            for step in range(min(unroll + 1, len(game) - position)):
                if step:
                    state.step(int(game.actions[position + step - 1]))
                fresh.add(program_game, state, row, step)
    fresh.search(batch, model, rng)
    _imitate(batch, sample, config)
    return batch


def _fill(batch: Batch, row: int, sample: Sample, config: TrainingConfig, full_return: bool) -> None:
    """What is stored of one sample."""
    game, position = sample.trajectories[row], int(sample.positions[row])
    unroll = config.unroll_steps
    left = min(unroll, len(game) - position)
    batch.actions[row, :left] = game.actions[position : position + left]
    batch.rewards[row, :left] = game.rewards[position : position + left]
    values = game.values(None if full_return else config.td_steps)[position : position + unroll + 1]
    batch.values[row, : len(values)] = values
    seen = slice(position, min(len(game), position + unroll + 1))
    count = seen.stop - position
    played = game.actions[seen]
    batch.played[row, :count] = played
    batch.legal[row, :count] = game.legal[seen]
    if not game.is_demonstration:
        batch.policy[row, :count] = game.policy[seen]
        batch.behaviour[row, :count] = game.policy[seen][np.arange(count), played]


def _imitate(batch: Batch, sample: Sample, config: TrainingConfig) -> None:
    """Add the weight of what was played in kept games, where it can be seen that they are: they have no slot."""
    if config.imitation == 0.0:
        return
    rows, steps = np.nonzero((sample.slots < 0)[:, None] & (batch.played >= 0))
    batch.policy[rows, steps, batch.played[rows, steps]] += np.float32(config.imitation)


class _Fresh:
    """Positions to search anew, all at once."""

    def __init__(self, config: TrainingConfig, capacity: int):
        self._config = config
        self._observations = empty_observations(config.network.observation, capacity)
        self._legal: list[NDArray[np.bool_]] = []
        self._places: list[tuple[int, int]] = []

    def add(self, program_game: ProgramGame, state: CompiledState, row: int, step: int) -> None:
        """Search this state for row ``row``, unrolled ``step`` steps."""
        program_game.observer.observe(state, self._observations, len(self._places))
        self._legal.append(state.legal.copy())
        self._places.append((row, step))

    def search(self, batch: Batch, model: Model, rng: np.random.Generator) -> None:
        """Put the targets of the searches into the batch."""
        count = len(self._places)
        if count == 0:
            return
        observations = first_rows(self._observations, count)
        found = search(model, observations, np.array(self._legal), self._config.reanalyse_search(), rng, explore=False)
        rows, steps = np.array(self._places).T
        batch.policy[rows, steps] = found.policy
        share = np.float32(self._config.reanalyse_return_weight)
        batch.values[rows, steps] = share * batch.values[rows, steps] + (1 - share) * found.value
