"""Self-play of many games side by side: one batched search chooses a move in each game, in some games with an exploration
bias."""

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
    """Return views of the first ``count`` observations, without a copy."""
    return Observations._make(array[:count] for array in observations)


def as_f32(array: NDArray[Any]) -> F32:
    """Convert to single precision, in which trajectories are stored."""
    return np.asarray(array, np.float32)


class ProgramGame:
    """A game with its observer, which encodes its states as observations. It is made from a program, or from a game that exists
    already."""

    def __init__(self, program: Problem | CompiledGame, config: TrainingConfig):
        self.game = program if isinstance(program, CompiledGame) else CompiledGame(program, placing=config.placing)
        self.problem = self.game.problem
        self.observer = Observer(self.game, config.network.observation)

    def normalised(self, return_ps: float) -> float:
        """Convert a return in ps to R: 0 if all buffers are in slow memory, 1 if every step has its least latency."""
        return self.problem.normalised_return(round(self.problem.all_slow_ps - return_ps))


@dataclass
class Episode:
    """A game in progress, with the data of each move that its trajectory will hold."""

    program: int
    """Number of the program."""
    state: CompiledState
    first: int = 0
    """Moves before this one were played without search."""
    bias: Bias = field(default_factory=NO_BIAS.copy)
    """The exploration bias of the game."""
    actions: list[int] = field(default_factory=list)
    """Actions of the moves so far; the following lists have an entry for each of them, as in :class:`Trajectory`."""
    policy: list[F32] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    legal: list[NDArray[np.bool_]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def trajectory(self, discount: float) -> Trajectory:
        """Return the moves so far as a trajectory."""
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
    """Restore a game in progress from its trajectory; raises ValueError if an action is illegal."""
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


def replay_actions(
    program_game: ProgramGame, program: int, actions: NDArray[np.int8], discount: float, *, is_demonstration: bool = True
) -> Trajectory:
    """Play actions without search and return the trajectory: the policy is the actions played, the values are the returns.

    Raises
    ------
    ValueError
        If an action is not legal, or the game does not end with the last action.
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
    """Play actions in an episode without search."""
    for action in actions.tolist():
        episode.legal.append(episode.state.legal.copy())
        episode.rewards.append(episode.state.step(action) / program_game.game.unit_ps)
        episode.actions.append(action)
        episode.policy.append(np.zeros(3, np.float32))
        episode.value.append(0.0)


class SelfPlay:
    """``config.games`` games side by side. When one ends, another begins.

    Parameters
    ----------
    programs
        The programs to play.
    config
        Number of games, and settings of the search and of the observation.
    begin
        Called for each new game; decides how it begins.

    Raises
    ------
    InputError
        If a program has no moves.
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
        """The games in progress; empty before the first call of :meth:`advance`."""

    def _new_episode(self) -> Episode:
        """Begin a game."""
        start = self._begin()
        program_game = self._programs[start.program]
        episode = Episode(start.program, program_game.game.reset(), bias=start.bias)
        _play_prefix(program_game, episode, start.prefix)
        episode.first = len(episode.actions)
        return episode

    def advance(self, model: Model, step: int, rng: np.random.Generator) -> list[Trajectory]:
        """Make one move in each game; return the finished games. The first call begins the games. ``step`` is the number of
        training steps so far, on which the temperature of the search depends. Raises ValueError if the model returns a value
        that is not a number."""
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
