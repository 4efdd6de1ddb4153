"""What every other action at each move of a game comes to, all later moves as they were wanted; and games made plain by it.

A game found by search holds many choices that do not matter. What an action is worth against its alternatives says which do: a
policy that imitates the game learns from those (:mod:`~lib.memory_mapping.imitation`). It is the
rollout algorithm of Bertsekas et al. 1997, with the game itself as base policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Ints2D, njit
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import COPY, DROP, LEGAL, NOCOPY, RESETS, RETURN_PS
from stowplan.learned_guidance.memory_mapping.game.kernel.readers import benefit, used
from stowplan.learned_guidance.memory_mapping.game.kernel.rules import step
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.game.local_search import adopt, play_on

#: Return of an action that is not legal.
ILLEGAL = -(1 << 62)


def deviations(
    game: CompiledGame,
    actions: Sequence[int] | NDArray[np.integer[Any]],
    *,
    following: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    slack_ps: int = -1,
) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Returns of a game's one-step deviations.

    Parameters
    ----------
    actions
        One for each move of a whole game, as ``CompiledState.actions`` has them: without what Drop-backup took back.
    following
        What is wanted after a deviation, one action for each move; None for the game's own. With those of a better game the
        returns say what to do at positions of a worse one (Ross and Bagnell 2014).
    slack_ps
        Where this is not negative, the game is made plain on the way: at each move the first of fast without a copy, fast with
        one, and slow (slow first where nothing is earned) is taken that loses no more than what is left of this in all.

    Returns
    -------
    tuple
        Actions (M,) of the game, changed where there is slack; and returns in ps (M, 3) of each action in its place, the rest
        as wanted, :data:`ILLEGAL` where it is not legal.
    """
    path = np.array(actions, np.int64)
    wanted = path if following is None else np.array(following, np.int64)
    returns = np.full((len(wanted), 3), ILLEGAL, np.int64)
    here, trial = np.array(game.tables.initial), np.empty_like(game.tables.initial)
    deviate(game.tables, path, wanted, here, trial, returns, slack_ps)
    return path.astype(np.int8), returns


@njit
def deviate(tables: Tables, path: Ints, wanted: Ints, here: Ints, trial: Ints, returns: Ints2D, slack_ps: int) -> None:
    """See :func:`deviations`; ``path`` is the game, ``here`` the state before its first move, ``trial`` (D,) room.

    With slack, ``path`` and ``wanted`` must be the same array.
    """
    for cell in range(used(tables, here)):
        trial[cell] = here[cell]
    play_on(tables, trial, wanted)
    present = trial[RETURN_PS]
    least = present - slack_ps
    for position in range(len(wanted)):
        first = DROP if benefit(tables, here, position) <= 0 else NOCOPY
        is_settled = slack_ps < 0
        for number in range(3):
            action = first
            if number == 1:
                action = NOCOPY if first == DROP else COPY
            elif number == 2:
                action = COPY if first == DROP else DROP
            if not here[LEGAL] >> action & 1:
                continue
            if slack_ps >= 0 and action == wanted[position]:
                returns[position, action] = present
                is_settled = True
                continue
            for cell in range(used(tables, here)):
                trial[cell] = here[cell]
            step(tables, trial, action)
            play_on(tables, trial, wanted)
            returns[position, action] = trial[RETURN_PS]
            # What is better is taken in any case; what led back may have changed moves before this one.
            is_enough = trial[RETURN_PS] > present or (not is_settled and trial[RETURN_PS] >= least)
            if slack_ps >= 0 and is_enough and trial[RESETS] == here[RESETS]:
                least = max(least, trial[RETURN_PS] - slack_ps)
                present = trial[RETURN_PS]
                adopt(tables, trial, wanted)
                is_settled = True
        step(tables, here, path[position])
