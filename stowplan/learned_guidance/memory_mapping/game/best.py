"""The best game found so far, and when: one record for all methods that play for a time, so that they can be compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Point:
    """The best return at a moment."""

    seconds: float
    """Since the method began."""
    games: int
    """Finished games until then."""
    return_ps: int
    """Best return of these games, in picoseconds."""


class Best:
    """Keeps the best game that is offered and the curve of best returns.

    Parameters
    ----------
    seconds_before, games_before
        What an earlier part of the same run took, where it is resumed from a checkpoint.
    clock
        Monotonic clock in seconds.
    """

    def __init__(self, *, seconds_before: float = 0.0, games_before: int = 0, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._began = clock() - seconds_before
        self.games = games_before
        """Games offered so far."""
        self.return_ps: int | None = None
        """Best return; None before the first game."""
        self.actions: NDArray[np.int8] | None = None
        """Actions of the best game, in order; None before the first game."""
        self.points: list[Point] = []
        """One for each improvement, ascending in time and strictly ascending in return."""

    @property
    def seconds(self) -> float:
        """Since the method began."""
        return self._clock() - self._began

    def offer(self, return_ps: int, actions: Sequence[int] | NDArray[np.integer], *, games: int = 1) -> bool:
        """Count ``games`` finished games, of which this is the best; True where it is the best of all so far.

        The actions are copied.
        """
        self.games += games
        if self.return_ps is not None and return_ps <= self.return_ps:
            return False
        self.return_ps = int(return_ps)
        self.actions = np.array(actions, np.int8)
        self.points.append(Point(self.seconds, self.games, self.return_ps))
        return True
