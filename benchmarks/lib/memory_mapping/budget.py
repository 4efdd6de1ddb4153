"""When a player that could play for ever stops: after so many games, so long, or when it is told to."""

from __future__ import annotations

import math
from collections.abc import Callable

from stowplan.deadline import Deadline
from stowplan.errors import UsageError
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.game import Best


class Budget:
    """Limits of a player; at least one game is played, or one generation of games.

    Parameters
    ----------
    player
        Its name, for the error.
    count
        Games or generations, whatever it counts in.
    counted
        What it counts in, for the error.

    Raises
    ------
    UsageError
        If nothing would end it.
    """

    def __init__(
        self,
        player: str,
        count: int | None,
        time_limit: float | None,
        should_stop: Callable[[], bool] | None,
        *,
        counted: str = "games",
    ):
        if count is None and time_limit is None and should_stop is None:
            raise UsageError(f"{player} has no limit, expected {counted}, time_limit or should_stop")
        self.most = math.inf if count is None else max(1, count)
        self._deadline = Deadline(time_limit)
        self._should_stop = should_stop

    def is_over(self, best: Best) -> bool:
        """Whether time is up, or it was told to stop; not before the first game."""
        return best.games > 0 and (self._deadline.expired or (self._should_stop is not None and self._should_stop()))


def games_at_once(game: CompiledGame, moves: int) -> int:
    """How many games make some ``moves`` moves together; at least one."""
    return max(1, moves // max(1, len(game.moves)))
