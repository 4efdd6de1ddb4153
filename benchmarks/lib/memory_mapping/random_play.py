"""Random legal play: the weakest baseline of MMap-MuZero (Wang et al. 2023, table 2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.lib.memory_mapping.budget import Budget, games_at_once
from stowplan.compiled import njit, njit_inner
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.readers import is_over
from stowplan.learned_guidance.memory_mapping.game.compiled.rules import step
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.game.game import Best

#: Moves played between two looks at the clock: some milliseconds.
MOVES_AT_ONCE = 10_000


def play_at_random(
    game: CompiledGame,
    *,
    games: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> Best:
    """Play games in which every legal action is as likely as another, and keep the best.

    Parameters
    ----------
    games, time_limit, should_stop
        What ends it: a number of games, seconds, a callback; at least one game is played.
    seed
        Decides all games, so that with ``games`` alone the result is the same every time.

    Returns
    -------
    Best
        The best game, and how many were played.

    Raises
    ------
    UsageError
        If nothing would end it.
    """
    budget = Budget("random play", games, time_limit, should_stop)
    best = Best()
    seeds = np.random.default_rng(seed)
    data = game.reset().data
    at_once = games_at_once(game, MOVES_AT_ONCE)
    while best.games < budget.most and not budget.is_over(best):
        drawn = seeds.integers(1 << 62, size=int(min(at_once, budget.most - best.games)))
        number = _play_all(game.tables, data, drawn)
        return_ps = int(play_random(game.tables, _restart(game, data), drawn[number]))
        best.offer(return_ps, CompiledState(game, data).actions, games=len(drawn))
    return best


def _restart(game: CompiledGame, data: Ints) -> Ints:
    data[:] = game.tables.initial
    return data


@njit
def _play_all(tables: Tables, data: Ints, seeds: Ints) -> int:
    """Play a game for each seed; the number of the best."""
    best, highest = 0, -(1 << 62)
    for number in range(len(seeds)):
        for cell in range(len(data)):
            data[cell] = tables.initial[cell]
        found = play_random(tables, data, seeds[number])
        if found > highest:
            best, highest = number, found
    return best


@njit
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
        mask = data[layout.LEGAL]
        count = (mask & 1) + ((mask >> 1) & 1) + (mask >> 2)
        step(tables, data, _nth(mask, (one + 2147483398 - two) % 2147483562 * count // 2147483562))
    return data[layout.RETURN_PS]  # type: ignore[no-any-return]


@njit_inner
def _nth(mask: int, number: int) -> int:
    """The action of the ``number``-th bit that is set."""
    for action in range(3):
        if mask >> action & 1:
            if number == 0:
                return action
            number -= 1
    return -1
