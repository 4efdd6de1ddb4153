"""Whole games, compiled: from a state to the end of the game, or of a list of actions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit_inner, njit_outer
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import COPY, DROP, LEGAL, NOCOPY, POSITION, RETURN_PS
from stowplan.learned_guidance.memory_mapping.game.kernel.readers import action_of, benefit, is_over, legal
from stowplan.learned_guidance.memory_mapping.game.kernel.rules import step
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints, Tables

Preferences = NDArray[np.float32]


@njit_outer
def play_one(tables: Tables, data: Ints, action: int) -> int:
    """Make one legal move; the reward (ps)."""
    return step(tables, data, action)


@njit_outer
def play_random(tables: Tables, data: Ints, seed: int) -> int:
    """Play to the end, each legal action as likely as another; the return (ps). Equal seeds play equal games.

    Random numbers are those of L'Ecuyer, "Efficient and portable combined random number generators" (1988), figure 3.
    """
    one = 1 + seed % 2147483561
    two = 1 + (seed // 2147483561) % 2147483397
    # Seeds that are near each other begin alike.
    warming = 8
    while warming > 0 or not is_over(tables, data):
        one = one * 40014 % 2147483563
        two = two * 40692 % 2147483399
        if warming > 0:
            warming -= 1
            continue
        mask = data[LEGAL]
        count = (mask & 1) + ((mask >> 1) & 1) + (mask >> 2)
        step(tables, data, _nth(mask, (one + 2147483398 - two) % 2147483562 * count // 2147483562))
    return data[RETURN_PS]  # type: ignore[no-any-return]


@njit_inner
def _nth(mask: int, number: int) -> int:
    """The action of the ``number``-th bit that is set."""
    for action in range(3):
        if mask >> action & 1:
            if number == 0:
                return action
            number -= 1
    return -1


@njit_outer
def play_preferences(tables: Tables, data: Ints, preferences: Preferences, actions_out: Ints) -> int:
    """Play to the end, at each move the legal action of greatest preference, the first of equals; the return (ps).

    ``preferences`` (M, 3) float32, a row for each move. ``actions_out`` (M,) gets the action of every move, without
    those that Drop-backup took back: they lead to the same plan, without a reset. All are -1 in a game that is lost.
    """
    while not is_over(tables, data):
        position = data[POSITION]
        best = -1
        for action in range(3):
            if legal(tables, data, action) and (best < 0 or preferences[position, action] > preferences[position, best]):
                best = action
        step(tables, data, best)
    for position in range(len(actions_out)):
        actions_out[position] = action_of(tables, data, position)
    return data[RETURN_PS]  # type: ignore[no-any-return]


@njit_outer
def play_greedy(tables: Tables, data: Ints) -> int:
    """Play to the end, at each move the action of largest reward, resets aside, the first of equals; the return (ps)."""
    while not is_over(tables, data):
        action = COPY if legal(tables, data, COPY) else NOCOPY
        if legal(tables, data, DROP) and (data[LEGAL] == 1 << DROP or benefit(tables, data, data[POSITION]) < 0):
            action = DROP
        step(tables, data, action)
    return data[RETURN_PS]  # type: ignore[no-any-return]


@njit_outer
def play_actions(tables: Tables, data: Ints, actions: Ints) -> int:
    """Play a list of actions, as far as they are legal; how many were."""
    for number in range(len(actions)):
        action = actions[number]
        if not (COPY <= action <= DROP and legal(tables, data, action)):
            return number
        step(tables, data, action)
    return len(actions)
