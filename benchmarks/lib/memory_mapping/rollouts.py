"""Search on the true game: each action of a move is played on by priced play, and the best is taken.

That is the rollout algorithm (Bertsekas et al. 1997) with priced play as its base policy; beside it, a known game may be
followed from the action on, and the better completion counts. Every completion is a whole game, so that the best one met is
never worse than priced play, nor than the game that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.memory_mapping.deviations import ILLEGAL
from benchmarks.lib.memory_mapping.prices import (
    AT_ONCE,
    COPY_PRICE,
    Floats,
    estimate,
    find_worths,
    play_priced,
)
from stowplan.compiled import Floats2D, njit
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import RETURN_PS
from stowplan.learned_guidance.memory_mapping.game.kernel.readers import action_of, is_over, legal, used
from stowplan.learned_guidance.memory_mapping.game.kernel.rules import step
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.game.local_search import play_on


class Rollouts:
    """Completions of one game's states, and the best game met in them.

    Parameters
    ----------
    known
        Actions of a whole game to follow beside priced play, if any; where one is not legal the nearest is played.
    """

    def __init__(self, game: CompiledGame, known: Sequence[int] | NDArray[np.integer[Any]] = ()):
        found = estimate(game)
        self.game = game
        memory, copies, worths = found.memory(), COPY_PRICE * found.copy_ps, np.zeros((len(game.moves) + 1, 3))
        find_worths(game.tables, found.shared, found.held_from, found.copy_bound, memory, copies, worths)
        self._priced = found.shared, np.ones(len(game.problem.tensors)), memory, copies, AT_ONCE, worths
        self._known = np.array(known, np.int64)
        self._trial = game.reset().data
        self._returns = np.zeros(3, np.int64)
        self._best = np.full(1, ILLEGAL)
        self.actions = np.zeros(len(game.moves), np.int64)
        """Of the best game met."""

    @property
    def return_ps(self) -> int:
        """Return of the best game met; :data:`ILLEGAL` before the first."""
        return int(self._best[0])

    def completion(self, state: CompiledState) -> int:
        """Return (ps) of the game that priced play makes of a state."""
        self._trial[:] = state.data
        return int(play_priced(self.game.tables, self._trial, *self._priced))

    def look(self, state: CompiledState) -> Ints:
        """(3,) returns (ps) of the better game that is made of a state after each action; the same array every time."""
        found = (self._known, self._returns, self._best, self.actions)
        look_ahead(self.game.tables, state.data, self._trial, *self._priced, *found)
        return self._returns

    def play(self, state: CompiledState, moves: int) -> None:
        """Make so many moves, each the one whose completion is best, or to the end."""
        tables, found = self.game.tables, (self._known, self._returns, self._best, self.actions)
        play_ahead(tables, state.data, self._trial, *self._priced, *found, moves)


@njit
def look_ahead(
    tables: Tables,
    data: Ints,
    trial: Ints,
    savings: Floats,
    weights: Floats,
    memory: Floats,
    copies: float,
    at_once: float,
    worths: Floats2D,
    wanted: Ints,
    returns: Ints,
    best: Ints,
    actions: Ints,
) -> int:
    """See :meth:`Rollouts.look`; the best legal action, the first of equals. ``trial`` is room for a state, ``wanted`` (M,) a
    known game, or (0,).
    """
    chosen = -1
    for action in range(3):
        returns[action] = ILLEGAL
        if not legal(tables, data, action):
            continue
        for way in range(2 if len(wanted) > 0 else 1):
            for cell in range(used(tables, data)):
                trial[cell] = data[cell]
            step(tables, trial, action)
            if way == 0:
                play_priced(tables, trial, savings, weights, memory, copies, at_once, worths)
            else:
                play_on(tables, trial, wanted)
            returns[action] = max(returns[action], trial[RETURN_PS])
            if trial[RETURN_PS] > best[0]:
                best[0] = trial[RETURN_PS]
                for position in range(len(actions)):
                    actions[position] = action_of(tables, trial, position)
        if chosen < 0 or returns[action] > returns[chosen]:
            chosen = action
    return chosen


@njit
def play_ahead(
    tables: Tables,
    data: Ints,
    trial: Ints,
    savings: Floats,
    weights: Floats,
    memory: Floats,
    copies: float,
    at_once: float,
    worths: Floats2D,
    wanted: Ints,
    returns: Ints,
    best: Ints,
    actions: Ints,
    moves: int,
) -> int:
    """See :meth:`Rollouts.play`; the return so far."""
    for _ in range(moves):
        if is_over(tables, data):
            break
        chosen = look_ahead(
            tables, data, trial, savings, weights, memory, copies, at_once, worths, wanted, returns, best, actions
        )
        step(tables, data, chosen)
    return data[RETURN_PS]  # type: ignore[no-any-return]
