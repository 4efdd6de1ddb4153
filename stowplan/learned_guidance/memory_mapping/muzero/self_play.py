"""Games played side by side: each move of all of them is chosen by one batched search, some with an exploration bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.learned_guidance.mcts.search import Model, search
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.exploration import NO_BIAS, Bias, EpisodeStart, with_bias
from stowplan.learned_guidance.memory_mapping.muzero.replay import F32, Trajectory
from stowplan.learned_guidance.memory_mapping.observation.layout import Observations, empty_observations
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer
from stowplan.models.memory_mapping.problem import Problem


def first_rows(observations: Observations, count: int) -> Observations:
    """The first ``count`` observations, in the same memory."""
    return Observations._make(array[:count] for array in observations)


def as_f32(array: NDArray[Any]) -> F32:
    """The same numbers in single precision, as they are kept."""
    return np.asarray(array, np.float32)


class ProgramGame:
    """The game of one program, or one of its games, and who observes it."""

    def __init__(self, program: Problem | CompiledGame, config: TrainingConfig):
        self.game = program if isinstance(program, CompiledGame) else CompiledGame(program, placing=config.placing)
        self.problem = self.game.problem
        self.observer = Observer(self.game, config.network.observation)

    def normalised(self, return_ps: float) -> float:
        """A return as R: 0 where all is slow, 1 where all is fast."""
        return self.problem.normalised_return(round(self.problem.all_slow_ps - return_ps))


@dataclass
class Episode:
    """A game under way, with what is to be remembered of each move."""

    program: int
    state: CompiledState
    first: int = 0
    """Moves before it were not searched."""
    bias: Bias = field(default_factory=NO_BIAS.copy)
    actions: list[int] = field(default_factory=list)
    policy: list[F32] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    legal: list[NDArray[np.bool_]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def trajectory(self, discount: float) -> Trajectory:
        """What has been played, as it is kept."""
        return Trajectory(
            program=self.program,
            actions=np.array(self.actions, np.int8),
            policy=np.array(self.policy, np.float32).reshape(-1, 3),
            value=np.array(self.value, np.float32),
            legal=np.array(self.legal, np.bool_).reshape(-1, 3),
            rewards=np.array(self.rewards, np.float32),
            return_ps=self.state.return_ps,
            first=self.first,
            discount=discount,
        )


def episode_of(program_game: ProgramGame, game: Trajectory, bias: Bias = NO_BIAS) -> Episode:
    """A game under way again, from what has been played of it."""
    state = program_game.game.reset()
    state.play(game.actions)
    return Episode(
        game.program,
        state,
        game.first,
        bias,
        game.actions.tolist(),
        list(game.policy),
        game.value.tolist(),
        list(game.legal),
        game.rewards.tolist(),
    )


def replayed(
    program_game: ProgramGame, program: int, actions: NDArray[np.int8], discount: float, *, is_demonstration: bool = True
) -> Trajectory:
    """A game that was played without search: the policy is what was played, the values the returns.

    Raises
    ------
    ValueError
        Where an action is not legal, or the game does not end with the last action.
    """
    episode = Episode(program, program_game.game.reset())
    _play_prefix(program_game, episode, actions)
    if not episode.state.is_over:
        raise ValueError(f"{len(actions)} actions do not end the game")
    game = episode.trajectory(discount)
    return replace(
        game,
        policy=np.eye(3, dtype=np.float32)[game.actions],
        value=game.returns[:-1].astype(np.float32),
        is_demonstration=is_demonstration,
    )


def _play_prefix(program_game: ProgramGame, episode: Episode, actions: NDArray[np.int8]) -> None:
    for action in actions.tolist():
        episode.legal.append(episode.state.legal.copy())
        episode.rewards.append(episode.state.step(action) / program_game.game.unit_ps)
        episode.actions.append(action)
        episode.policy.append(np.zeros(3, np.float32))
        episode.value.append(0.0)


class SelfPlay:
    """``games`` games at once; where one ends another begins.

    Parameters
    ----------
    programs
        What is played.
    begin
        Says how each new game begins.

    Raises
    ------
    InputError
        A program has no moves.
    """

    def __init__(self, programs: Sequence[ProgramGame], config: TrainingConfig, begin: Callable[[], EpisodeStart]):
        for program in programs:
            if not program.game.moves:
                raise InputError("nothing to learn: the program has no moves", source=program.problem.name)
        self._programs = programs
        self._config = config
        self._begin = begin
        self._observations = empty_observations(config.network.observation, config.games)
        self.episodes: list[Episode] = []

    def _new_episode(self) -> Episode:
        start = self._begin()
        program_game = self._programs[start.program]
        episode = Episode(start.program, program_game.game.reset(), bias=start.bias)
        _play_prefix(program_game, episode, start.prefix)
        episode.first = len(episode.actions)
        return episode

    def advance(self, model: Model, step: int, rng: np.random.Generator) -> list[Trajectory]:
        """One move of each game, after so many training steps; the games that it ends. The first move begins all games."""
        self.episodes = self.episodes or [self._new_episode() for _ in range(self._config.games)]
        for row, episode in enumerate(self.episodes):
            self._programs[episode.program].observer.observe(episode.state, self._observations, row)
        legal = np.array([episode.state.legal for episode in self.episodes], np.bool_)
        searched = search(model, self._observations, legal, self._config.search_at(step), rng, explore=True)
        actions, policy, values = searched.action, as_f32(searched.policy), as_f32(searched.value)
        if self._config.exploration_bias_fraction > 0:
            biases = np.array([episode.bias for episode in self.episodes], np.float32)
            actions = with_bias(actions, policy, biases, self._observations, legal, rng)
        finished = []
        for row, episode in enumerate(self.episodes):
            episode.legal.append(legal[row])
            episode.policy.append(policy[row].copy())
            episode.value.append(float(values[row]))
            action = int(actions[row])
            episode.actions.append(action)
            episode.rewards.append(episode.state.step(action) / self._programs[episode.program].game.unit_ps)
            if episode.state.is_over:
                finished.append(episode.trajectory(self._config.discount))
                self.episodes[row] = self._new_episode()
        return finished
