"""Exploration without the network: beginnings of games, exploration biases, warm-start episodes, and local search.

Warm-start episodes come before the first iteration of training and are played by biases alone.

Noise at single moves hardly ever keeps fast memory empty for long enough to place a very large buffer. Dozens of moves in a row
would have to be Drop, the action that leaves a buffer in slow memory. A *bias* is drawn once for an episode and
changes the preferences of all of its moves in the same way: it favours fast memory only for buffers whose benefit, or benefit
per byte and step, is above some threshold. This is the exploration by perturbed parameters of Plappert et al. 2018, with a few
meaningful parameters instead of those of a network. The paper about MMap-MuZero uses no biases; see
``docs/reference/mmap-muzero.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Singles2D, njit
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.readers import benefit, is_over, placement
from stowplan.learned_guidance.memory_mapping.game.compiled.rules import step
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledState
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.game.game import Best
from stowplan.learned_guidance.memory_mapping.game.local_search import improve
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.replay import F32, Replay
from stowplan.learned_guidance.memory_mapping.observation.compiled import clipped, signed
from stowplan.learned_guidance.memory_mapping.observation.layout import ActionFeature, Floats, Observations

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame

Bias = NDArray[np.float32]
"""Shape (4,): reward slope r, density slope d, threshold t and copy preference c. Except for Drop, whose preference is 0, the
preference of an action is r * reward + d * density - t, plus c if it is Copy; *density* is reward per byte and step."""

#: Smallest and largest slope, in nats per unit of the features REWARD and DENSITY.
SLOPES = 1.0, 30.0

#: Range of thresholds in units of these features. If a reward or density is x times the program's mean, the feature is log2(1 +
#: x) / 4. The threshold 1.4 thus stands for 47 times the mean. With -0.2, even slightly negative benefits are above the
#: threshold.
THRESHOLDS = -0.2, 1.4

NO_BIAS: Bias = np.zeros(4, np.float32)
"""The bias that changes nothing."""


def draw_bias(rng: np.random.Generator) -> Bias:
    """Draws a random bias: a slope, how it is divided between reward and density, a threshold, and a preference for copies."""
    slope = np.exp(rng.uniform(*np.log(SLOPES)))
    share = rng.random()
    threshold = rng.uniform(*THRESHOLDS)
    return np.array([slope * share, slope * (1.0 - share), slope * threshold, rng.normal()], np.float32)


def bias_preferences(biases: Floats, actions: Floats) -> Floats:
    """The numbers that biases add to the log probabilities of the three actions in B games: an array of shape (B, 3).

    ``biases`` has the shape (B, 4), and ``actions``, the action features of the games, (B, 3, features).
    """
    reward, density, threshold, copies = (biases[:, number, None] for number in range(4))
    preferences = reward * actions[:, :, ActionFeature.REWARD] + density * actions[:, :, ActionFeature.DENSITY] - threshold
    preferences[:, layout.COPY] += copies[:, 0]
    preferences[:, layout.DROP] = 0.0
    return np.asarray(preferences, np.float32)


@njit
def play_biased(tables: Tables, data: Ints, bias: Floats, noise: Singles2D, mean_benefit: float, density: float) -> int:
    """Play a game to its end; returns its return in ps. Every move is the legal action with the largest bias plus noise.

    ``noise`` has the shape (moves, 3). ``mean_benefit`` and ``density`` (benefit per byte and step) are the program's means, by
    which the action features are scaled.
    """
    while not is_over(tables, data):
        position = data[layout.POSITION]
        reward = float(benefit(tables, data, position))
        best, most = -1, 0.0
        for action in range(3):
            if not data[layout.LEGAL] >> action & 1:
                continue
            preference = float(noise[position, action])
            if action != layout.DROP:
                start, end, _ = placement(data, action)
                area = float(tables.moves[position].bytes) * (end - start)
                preference += bias[0] * signed(reward / mean_benefit) - bias[2]
                preference += bias[1] * clipped(signed(reward / max(area, 1e-9) / density))
            if action == layout.COPY:
                preference += bias[3]
            if best < 0 or preference > most:
                best, most = action, preference
        step(tables, data, best)
    return data[layout.RETURN_PS]  # type: ignore[no-any-return]


def with_bias(
    actions: NDArray[np.int64],
    policy: F32,
    biases: F32,
    observations: Observations,
    legal: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """The actions that a search chose for B games; in games with a bias, other actions are drawn.

    They are drawn from the improved policy of the search, to whose log probabilities the bias is added.

    Parameters
    ----------
    actions
        Shape (B,): the actions that the search chose.
    policy
        Shape (B, 3): the improved policy.
    biases
        Shape (B, 4); a row of zeros is no bias.
    observations
        The observations of the B positions, whose action features the biases refer to.
    legal
        Shape (B, 3): which actions are legal.
    rng
        Source of the random numbers.
    """
    noise = rng.gumbel(size=legal.shape)
    rows = np.flatnonzero(biases.any(axis=1))
    wanted = np.log(np.maximum(policy[rows], 1e-6)) + bias_preferences(biases[rows], observations.actions[rows])
    actions = actions.copy()
    actions[rows] = np.where(legal[rows], wanted + noise[rows], -np.inf).argmax(axis=1)
    return actions


class EpisodeStart(NamedTuple):
    """How a new episode begins."""

    program: int
    """Number of the program."""
    prefix: NDArray[np.int8]
    """The first actions of another game. The episode repeats them before it chooses actions of its own."""
    bias: Bias = NO_BIAS
    """The exploration bias of the episode."""


def play_warm_start(program_game: ProgramGame, start: EpisodeStart, rng: np.random.Generator) -> CompiledState:
    """Play a warm-start episode to its end by an exploration bias alone, without the network. Raises ValueError if an action of
    the prefix is illegal."""
    state = program_game.game.reset()
    state.play(start.prefix)
    noise = rng.gumbel(size=(len(program_game.game.moves), 3)).astype(np.float32)
    play_biased(program_game.game.tables, state.data, start.bias, noise, *program_game.observer.scales)
    return state


class Exploration:
    """Draws the beginnings of games, plays warm-start episodes, and improves good games by local search.

    Parameters
    ----------
    programs
        The programs to play on.
    config
        How often games are continued or get a bias, and how long local search is.
    replay
        The replay buffer, whose games are continued and improved.
    rng
        Source of all random numbers used here.
    """

    def __init__(self, programs: Sequence[ProgramGame], config: TrainingConfig, replay: Replay, rng: np.random.Generator):
        self.programs, self.config, self.replay, self.rng = programs, config, replay, rng

    def draw_start(self, is_biased: bool = False) -> EpisodeStart:
        """Draws how a game begins: a uniformly random program, sometimes the first moves of a good game, sometimes a bias."""
        rng, config = self.rng, self.config
        program = int(rng.integers(len(self.programs)))
        bias = NO_BIAS
        if is_biased or (config.exploration_bias_fraction > 0 and rng.random() < config.exploration_bias_fraction):
            bias = draw_bias(rng)
        if config.restart_fraction > 0 and rng.random() < config.restart_fraction:
            games = [*self.replay.elite[program], *(game for game in self.replay.demonstrations if game.program == program)]
            if games:
                game = games[int(rng.integers(len(games)))]
                return EpisodeStart(program, game.actions[: int(rng.integers(len(game)))], bias)
        return EpisodeStart(program, np.empty(0, np.int8), bias)

    def warm_start(self) -> tuple[int, CompiledState]:
        """Play a warm-start episode; returns the number of its program and the finished game."""
        start = self.draw_start(is_biased=True)
        return start.program, play_warm_start(self.programs[start.program], start, self.rng)

    def search_locally(self, should_stop: Callable[[], bool]) -> tuple[int, Best | None] | None:
        """Improve one of the best games of a uniformly random program; returns the program's number and the best game found.

        Returns None if the search was stopped; the random generator is then in the same state as before. The game is None if
        the program has no games yet.
        """
        rng, before = self.rng, self.rng.bit_generator.state
        program = int(rng.integers(len(self.programs)))
        games = self.replay.elite[program]
        if not games:
            return program, None
        start_game = games[int(rng.integers(len(games)))]
        game = self.programs[program].game
        state = game.reset()
        state.play(start_game.actions)
        seed = int(rng.integers(2**31))
        rounds = max(1, self.config.local_search_moves // len(game.moves))
        best = improve(game, state.actions, rounds=rounds, seed=seed, should_stop=should_stop)
        # A search that was not stopped has played the first game again, and one game in each round.
        if best.games <= rounds:
            rng.bit_generator.state = before
            return None
        return program, best
