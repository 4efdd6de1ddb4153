"""Evolution strategies over the actions of one game: the search baseline of MMap-MuZero (Wang et al. 2023, section 5.1).

The method is that of Salimans et al. 2017, "Evolution strategies as a scalable alternative to reinforcement learning": mirrored
Gaussian perturbations of a vector of parameters, fitness by rank, a gradient step with Adam, weight decay. The parameters are
three preferences for each move, and a candidate plays the legal action that it prefers most. Nothing is learned that another
program could use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.memory_mapping.budget import Budget, games_at_once
from stowplan.compiled import Ints2D, Singles2D, Singles3D, njit
from stowplan.errors import UsageError
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.readers import action_of, is_over, legal
from stowplan.learned_guidance.memory_mapping.game.compiled.rules import step
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.game.game import Best

Floats = NDArray[np.float32]

#: Moves played between two looks at the clock: some milliseconds.
MOVES_AT_ONCE = 10_000

#: Weight decay by default: such that a few moves of each game are changed, whatever its length.
MOST_DECAY, DECAY_TIMES_MOVES = 0.45, 140.0


@dataclass(frozen=True)
class EvolutionConfig:
    """How to evolve. UsageError where a value makes no sense.

    Only the order of a move's preferences counts, so that their scale is free: ``sigma`` matters in proportion to
    ``learning_rate`` alone.
    """

    pairs: int = 32
    """Mirrored pairs of candidates in a generation."""
    sigma: float = 1.0
    """Standard deviation of the perturbations."""
    learning_rate: float = 0.3
    weight_decay: float | None = None
    """Part of the parameters that a step takes off, times the learning rate; None for :meth:`decay_for`."""
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        if not (self.pairs >= 1 and self.sigma > 0):
            raise UsageError(f"evolution: found {self.pairs} pairs and sigma {self.sigma}, expected 1 or more, and more than 0")
        if not (self.learning_rate >= 0 and (self.weight_decay is None or self.weight_decay >= 0)):
            raise UsageError(
                f"evolution: found learning rate {self.learning_rate} and weight decay {self.weight_decay}, expected 0 or more"
            )
        if not (0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0):
            raise UsageError(f"evolution: betas are {self.beta1} and {self.beta2}, expected at least 0 and less than 1")

    def decay_for(self, moves: int) -> float:
        """Weight decay on a program.

        Decay is what keeps the search alive: parameters stay below 1 / decay or nearly so, and perturbations go on changing
        some moves of every game. With little decay a program of 300 moves ends in its first local optimum within a second;
        with much a long one never settles.
        """
        return min(MOST_DECAY, DECAY_TIMES_MOVES / max(1, moves)) if self.weight_decay is None else self.weight_decay


def evolve(
    game: CompiledGame,
    config: EvolutionConfig | None = None,
    *,
    generations: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> Best:
    """Evolve preferences from none, and keep the best game that any candidate plays.

    Parameters
    ----------
    config
        Sizes and rates; the defaults where None.
    generations, time_limit, should_stop
        What ends it: a number of generations, seconds, a callback; at least one game is played. UsageError where none is given.
    seed
        Decides all perturbations, so that with ``generations`` alone the result is the same every time.

    Returns
    -------
    Best
        The best game, and how many were played.

    Raises
    ------
    UsageError
        If nothing would end it.
    """
    budget = Budget("evolution", generations, time_limit, should_stop, counted="generations")
    config = config or EvolutionConfig()
    best = Best()
    candidates = _Candidates(game, best, lambda: budget.is_over(best))
    rng = np.random.default_rng(seed)
    shape = (len(game.moves), 3)
    parameters = np.zeros(shape, np.float32)
    adam = _Adam(shape, config)
    shrink = 1.0 - config.learning_rate * config.decay_for(len(game.moves))
    generation = 0
    while not budget.is_over(best) and generation < budget.most:
        noise = rng.standard_normal((config.pairs, *shape), np.float32)
        returns = candidates.play(parameters, noise, config.sigma)
        if returns is None:
            break
        fitness = ranks(returns)
        weights = (fitness[:, 0] - fitness[:, 1]).astype(np.float32)
        gradient = np.tensordot(weights, noise, 1) / (2 * config.pairs * config.sigma)
        parameters *= shrink
        parameters += adam.step(gradient)
        generation += 1
        candidates.play_one(parameters)
    return best


def ranks(returns: NDArray[np.integer]) -> NDArray[np.float64]:
    """Fitness by rank: -0.5 for the worst to 0.5 for the best, equal returns alike; the shape stays."""
    _, place, count = np.unique(returns, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - (count + 1) / 2
    fitness: NDArray[np.float64] = (middle - (returns.size - 1) / 2) / max(1, returns.size - 1)
    return fitness[place].reshape(returns.shape)


class _Adam:
    """Steps uphill (Kingma and Ba 2015)."""

    def __init__(self, shape: tuple[int, ...], config: EvolutionConfig):
        self.config = config
        self.mean = np.zeros(shape, np.float32)
        self.square = np.zeros(shape, np.float32)
        self.steps = 0

    def step(self, gradient: Floats) -> Floats:
        config = self.config
        self.steps += 1
        self.mean += (1 - config.beta1) * (gradient - self.mean)
        self.square += (1 - config.beta2) * (gradient * gradient - self.square)
        mean = self.mean / (1 - config.beta1**self.steps)
        square = self.square / (1 - config.beta2**self.steps)
        change: Floats = config.learning_rate * mean / (np.sqrt(square) + 1e-8)
        return change


class _Candidates:
    """Plays the candidates of a generation, and offers the best of them."""

    def __init__(self, game: CompiledGame, best: Best, stop: Callable[[], bool]):
        self.game, self.best, self.stop = game, best, stop
        moves = len(game.moves)
        self.data = game.reset().data
        self.preferences = np.zeros((moves, 3), np.float32)
        self.actions = np.zeros((2, moves), np.int64)
        self.at_once = games_at_once(game, MOVES_AT_ONCE)

    def play(self, parameters: Floats, noise: Floats, sigma: float) -> Ints | None:
        """Returns of ``parameters + sigma * noise`` and ``parameters - sigma * noise``, (pairs, 2); None where time ran out."""
        returns = np.zeros(2 * len(noise), np.int64)
        for first in range(0, len(returns), self.at_once):
            if self.stop():
                return None
            some = returns[first : first + self.at_once]
            _play(self.game.tables, self.data, parameters, noise, sigma, first, some, self.preferences, self.actions)
            self.best.offer(int(some.max()), self.actions[1], games=len(some))
        return returns.reshape(-1, 2)

    def play_one(self, parameters: Floats) -> None:
        """The game that is preferred without any perturbation."""
        self.data[:] = self.game.tables.initial
        return_ps = int(play_preferences(self.game.tables, self.data, parameters, self.actions[0]))
        self.best.offer(return_ps, self.actions[0])


@njit
def _play(
    tables: Tables,
    data: Ints,
    parameters: Singles2D,
    noise: Singles3D,
    sigma: float,
    first: int,
    returns: Ints,
    preferences: Singles2D,
    actions: Ints2D,
) -> None:
    """Play the candidates from number ``first`` on, two of each pair; the actions of the best go to ``actions[1]``."""
    highest = -(1 << 62)
    for number in range(len(returns)):
        pair = (first + number) // 2
        scale = sigma if (first + number) % 2 == 0 else -sigma
        for move in range(len(parameters)):
            for action in range(3):
                preferences[move, action] = parameters[move, action] + scale * noise[pair, move, action]
        for cell in range(len(data)):
            data[cell] = tables.initial[cell]
        returns[number] = play_preferences(tables, data, preferences, actions[0])
        if returns[number] > highest:
            highest = returns[number]
            for move in range(len(parameters)):
                actions[1, move] = actions[0, move]


@njit
def play_preferences(tables: Tables, data: Ints, preferences: Singles2D, actions_out: Ints) -> int:
    """Play to the end, at each move the legal action of greatest preference, the first of equals; the return (ps).

    ``preferences`` (M, 3) float32, a row for each move. ``actions_out`` (M,) gets the action of every move, without
    those that Drop-backup took back: they lead to the same plan, without a reset. All are -1 in a game that is lost.
    """
    while not is_over(tables, data):
        position = data[layout.POSITION]
        best = -1
        for action in range(3):
            if legal(tables, data, action) and (best < 0 or preferences[position, action] > preferences[position, best]):
                best = action
        step(tables, data, best)
    for position in range(len(actions_out)):
        actions_out[position] = action_of(tables, data, position)
    return data[layout.RETURN_PS]  # type: ignore[no-any-return]
