"""The replay buffer of MMap-MuZero, and the value targets that are computed from its games.

It has the newest games of self-play, the best games of each program, and *demonstrations*, which are games made from plans. A
*position* is the state before a move. Its *value target* is the number that the value network learns for it: an n-step return.

A game is stored as its actions and the search results of each move. States and observations are computed again from the actions
when they are needed. Positions of the newest games are drawn by priority (Schrittwieser et al. 2020, appendix G: proportional
to |search value - n-step value|, as in Schaul et al. 2016); positions of the other games are drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def full_returns(rewards: F32, discount: float) -> F64:
    """Return the discounted return from each move to the end of the game, then 0: shape (L + 1,)."""
    returns = np.zeros(len(rewards) + 1)
    total = 0.0
    for position in range(len(rewards) - 1, -1, -1):
        total = float(rewards[position]) + discount * total
        returns[position] = total
    return returns


def td_values(returns: F64, values: F32, discount: float, steps: int | None) -> F32:
    """Return the n-step return of each position and of the end, shape (L + 1,), where n is ``steps``.

    It is the sum of the next n discounted rewards and of the discounted search value of the position after them. With full
    returns G and search values v it equals G_t - discount^n (G_{t+n} - v_{t+n}), where both are 0 from the end on. If ``steps``
    is None, it is the full return G_t.
    """
    targets = returns.copy()
    if steps is not None and steps < len(values):
        targets[: len(values) - steps] -= discount**steps * (returns[steps:-1] - values[steps:])
    return targets.astype(np.float32)


#: Added to each priority, so that each position can be drawn.
_LEAST_PRIORITY = 1e-3


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One game of L moves. The actions alone determine the whole game, also where Drop-backup went back to an earlier position.

    With Drop-backup (docs/reference/mmap-game.md), a game that reaches a position without legal actions goes back to an earlier
    position, from which it can be finished.
    """

    program: int
    """Number of the program."""
    actions: NDArray[np.int8]
    """(L,) the actions in the order of play."""
    policy: F32
    """(L, 3) improved policies of the searches."""
    value: F32
    """(L,) values of the roots of the searches, in the game's unit of reward."""
    legal: NDArray[np.bool_]
    """(L, 3) legal actions."""
    rewards: F32
    """(L,) rewards of the moves, in the same unit."""
    return_ps: int
    """The return of the whole game in ps: the latency that its plan saves."""
    first: int = 0
    """The number of the first move that a search has chosen. The moves before it were copied from another game, and the network
    does not learn from them."""
    is_demonstration: bool = False
    """Whether the game comes from a plan, not from self-play; ``policy`` and ``value`` then have no meaning."""
    discount: float = 1.0
    """Discount of rewards for each move."""
    returns: F64 = field(init=False)
    """(L + 1,) discounted return from each position to the end of the game, in the same unit."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "returns", full_returns(self.rewards, self.discount))

    def __len__(self) -> int:
        return len(self.actions)

    def values(self, td_steps: int | None) -> F32:
        """Return the (L + 1,) value targets. For a demonstration they are the full returns."""
        return td_values(self.returns, self.value, self.discount, None if self.is_demonstration else td_steps)


class Sample(NamedTuple):
    """S positions to learn from."""

    trajectories: list[Trajectory]
    """The game of each position."""
    positions: NDArray[np.int64]
    """(S,) index of the move within its game."""
    slots: NDArray[np.int64]
    """(S,) slot of the game in :attr:`Replay.recent`; -1 for demonstrations and best games."""
    weights: F32
    """(S,) importance weights, at most 1."""


class Replay:
    """The replay buffer that the module describes; ``programs`` is the number of programs."""

    def __init__(self, config: TrainingConfig, programs: int):
        self._config = config
        self.recent: list[Trajectory] = []
        """The newest games of self-play: a ring of ``replay_size`` slots."""
        self.priorities: list[F32] = []
        """Priority of each position of each of the newest games."""
        self.next_slot = 0
        """Slot of the next game once the ring is full."""
        # For each of the newest games, the sum of the unnormalised probabilities of its positions.
        self._mass: list[float] = []
        self.elite: list[list[Trajectory]] = [[] for _ in range(programs)]
        """Best games of self-play of each program, the best first."""
        self.demonstrations: list[Trajectory] = []
        """All demonstrations."""

    def __len__(self) -> int:
        return len(self.recent) + len(self.demonstrations)

    def kept(self) -> list[Trajectory]:
        """The demonstrations and the best games."""
        return [*self.demonstrations, *(game for games in self.elite for game in games)]

    def add(self, game: Trajectory) -> None:
        """Add a finished game. A demonstration is added to the demonstrations. Any other game is added to the newest games, in
        place of the oldest one if there is no room, and also to the best games if it is one of them."""
        if game.is_demonstration:
            self.demonstrations.append(game)
            return
        targets = game.values(self._config.td_steps)[:-1]
        priorities = np.abs(game.value - targets) + np.float32(_LEAST_PRIORITY)
        priorities[: game.first] = 0.0
        self._put(game, priorities)
        self._keep_best(game)

    def _put(self, game: Trajectory, priorities: F32) -> None:
        """Add a game to the ring of the newest games, in place of the oldest one if the ring is full."""
        if len(self.recent) < self._config.replay_size:
            self.recent.append(game)
            self.priorities.append(priorities)
            self._mass.append(self._weigh(priorities))
            return
        slot = self.next_slot
        self.recent[slot], self.priorities[slot], self._mass[slot] = game, priorities, self._weigh(priorities)
        self.next_slot = (slot + 1) % self._config.replay_size

    def is_elite(self, program: int, return_ps: int) -> bool:
        """Whether a game with this return would be among the best games that are kept for the program."""
        best, limit = self.elite[program], self._config.elite_games
        return limit > 0 and (len(best) < limit or return_ps > best[-1].return_ps)

    def _keep_best(self, game: Trajectory) -> None:
        """Add a game to the best games of its program if it is one of them and not there yet."""
        best, limit = self.elite[game.program], self._config.elite_games
        if not self.is_elite(game.program, game.return_ps):
            return
        if any(game.return_ps == other.return_ps and np.array_equal(game.actions, other.actions) for other in best):
            return
        best.append(game)
        best.sort(key=lambda other: -other.return_ps)
        del best[limit:]

    def _powers(self, priorities: F32) -> F64:
        """Return the unnormalised probability of each position; 0 for moves without search."""
        powers = priorities.astype(np.float64) ** self._config.priority_exponent
        return np.where(priorities > 0, powers, 0.0)

    def _weigh(self, priorities: F32) -> float:
        """Return the sum of the unnormalised probabilities of a game's positions."""
        return float(self._powers(priorities).sum())

    def sample(self, size: int, rng: np.random.Generator) -> Sample:
        """Draw ``size`` positions with replacement; raise ValueError if there are no games.

        The fraction ``kept_fraction`` of the positions comes from demonstrations and best games if there are any. All positions
        come from them if there are no positions of newest games to learn from.
        """
        kept = self.kept()
        mass = np.array(self._mass)
        newest = mass.sum() > 0
        if not kept and not newest:
            raise ValueError("no games to learn from")
        count = 0 if not kept else size if not newest else round(self._config.kept_fraction * size)
        own, games = size - count, list[Trajectory]()
        positions, slots, weights = np.empty(size, np.int64), np.full(size, -1, np.int64), np.ones(size, np.float32)
        if own:
            positions[:own], slots[:own], weights[:own] = self._draw_recent(own, mass, rng)
            games = [self.recent[slot] for slot in slots[:own]]
        if count:
            chosen = [kept[number] for number in rng.integers(len(kept), size=count)]
            positions[own:] = [rng.integers(game.first, len(game)) for game in chosen]
            games += chosen
        return Sample(games, positions, slots, weights)

    def _draw_recent(self, size: int, mass: F64, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64], F64]:
        """Draw positions of the newest games; return positions, slots and importance weights."""
        slots = _draw(mass, rng.random(size))
        positions, weights = np.empty(size, np.int64), np.empty(size)
        points, total = rng.random(size), mass.sum()
        entries = sum(len(game) - game.first for game in self.recent)
        for row, slot in enumerate(slots):
            powers = self._powers(self.priorities[slot])
            positions[row] = _draw(powers, points[row : row + 1])[0]
            # The importance weight 1 / (N P) of Schaul et al. 2016: N positions, of which this one is drawn with probability P.
            weights[row] = total / (entries * powers[positions[row]])
        weights **= self._config.importance_exponent
        weights /= weights.max()
        return positions, slots, weights

    def update(self, sample: Sample, errors: F32) -> None:
        """Set new priorities from |predicted value - target| of a batch, shape (S,)."""
        changed: set[int] = set()
        for slot, position, error in zip(sample.slots.tolist(), sample.positions.tolist(), errors, strict=True):
            if slot >= 0:
                self.priorities[slot][position] = error + np.float32(_LEAST_PRIORITY)
                changed.add(slot)
        for slot in changed:
            self._mass[slot] = self._weigh(self.priorities[slot])

    def restore(self, recent: Sequence[Trajectory], priorities: Sequence[F32], next_slot: int) -> None:
        """Restore the newest games and their priorities from a checkpoint."""
        self.recent, self.priorities, self.next_slot = list(recent), list(priorities), next_slot
        self._mass = [self._weigh(priority) for priority in self.priorities]


def _draw(mass: F64, points: F64) -> NDArray[np.int64]:
    """Return an index for each point in [0, 1), with probabilities proportional to ``mass``; never one with mass 0."""
    edges = np.cumsum(mass)
    drawn = np.searchsorted(edges, points * edges[-1], side="right")
    # A point just below 1 may be rounded up to the end.
    last = int(np.flatnonzero(mass)[-1])
    return np.asarray(np.minimum(drawn, last), np.int64)
