"""Better games by local search: change some actions of a game, play the rest by what it wants, keep what is no worse.

A game is held as the action wanted at each move. Wanted actions need not be legal: then the nearest one is played, as in
``demonstrations.py``, so that any change of them is a game. Small losses are accepted early on, as in record-to-record travel
(Dueck 1993). States along the present game are kept, so that a change is played from near where it begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Ints2D, njit, njit_inner
from stowplan.deadline import Deadline
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.readers import is_over, used
from stowplan.learned_guidance.memory_mapping.game.compiled.rules import step
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.game.game import Best
from stowplan.models.memory_mapping.plan import Plan

#: States kept along a game.
KEPT = 24

#: Moves changed together at most.
MOST_CHANGES = 64

#: Several changes lie within so many moves, or twice as many, and so on: powers of two up to ``REACHES - 1``.
NEAREST, REACHES = 8, 4

#: Largest loss that is accepted at the beginning, of the return.
LOSS = 1e-3

#: Seconds between two looks at the clock.
LOOK_EVERY = 0.02

#: Of the random numbers.
_MODULUS = 2147483647

# Cells of a search's own numbers: the latest random number, returns of the present and the best game (ps), and how many changes
# a round has made.
_RANDOM, _CURRENT, _BEST, _CHANGES = 0, 1, 2, 3
_SCALARS = 4


def improve(
    game: CompiledGame,
    actions: Sequence[int] | NDArray[np.integer],
    *,
    seed: int = 0,
    rounds: int | None = None,
    time_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Best:
    """The best game found from one to begin with, never worse than that; its actions are one for each move.

    Parameters
    ----------
    actions
        One wanted action for each move; where one is not legal the nearest is played.
    rounds, time_limit, should_stop
        What ends the search: games played, seconds, a callback. Of rounds and seconds at least one. With rounds alone, equal
        seeds give equal games.

    Returns
    -------
    Best
        The best game, the one to begin with included, and how many were played.

    Raises
    ------
    ValueError
        If there are neither rounds nor a time limit.
    """
    if rounds is None and time_limit is None:
        raise ValueError("found neither rounds nor a time limit, expected one of them")
    search = _LocalSearch(game, np.array(actions, np.int64), seed)
    best = Best()
    best.offer(search.best_ps, search.best)
    deadline = Deadline(time_limit)
    loss = LOSS * max(search.best_ps, game.unit_ps)
    # The clock decides nothing where there is a number of rounds, except when to stop.
    done, piece = 0, 1 if rounds is None else math.ceil(rounds / 100)
    while game.moves and (rounds is None or done < rounds):
        if deadline.expired or (should_stop is not None and should_stop()):
            break
        part = done / rounds if rounds is not None else deadline.elapsed / (time_limit or math.inf)
        piece = piece if rounds is None else min(piece, rounds - done)
        before = deadline.elapsed
        search.run(piece, round(loss * (1.0 - min(1.0, part)) ** 2))
        done += piece
        best.offer(search.best_ps, search.best, games=piece)
        if rounds is None:
            piece = max(1, piece // 2) if deadline.elapsed - before > LOOK_EVERY else piece + 1
    return best


def improve_plan(game: CompiledGame, plan: Plan, **limits: Any) -> Best:
    """The best game found from the one that comes nearest to a plan.

    Parameters
    ----------
    plan
        A valid plan of the game's problem.
    limits
        Limits and seed, as :func:`improve` takes them.

    Returns
    -------
    Best
        Never worse than the game that it begins with.
    """
    return improve(game, actions_of(game.problem, plan, game).actions, **limits)


class _LocalSearch:
    """Arrays of a search, for the compiled functions."""

    def __init__(self, game: CompiledGame, wanted: Ints, seed: int):
        self._tables = game.tables
        self._wanted = wanted
        self._best = wanted.copy()
        self._states = np.empty((KEPT, len(game.tables.initial)), np.int64)
        self._states[0] = game.tables.initial
        self._trial = np.empty_like(game.tables.initial)
        self._changed = np.empty((MOST_CHANGES, 2), np.int64)
        self._numbers = np.zeros(_SCALARS, np.int64)
        self._numbers[_RANDOM] = 1 + seed % (_MODULUS - 1)
        begin(self._tables, wanted, self._states, self._trial, self._best, self._numbers)

    @property
    def best_ps(self) -> int:
        return int(self._numbers[_BEST])

    @property
    def best(self) -> Ints:
        return self._best

    def run(self, rounds: int, loss_ps: int) -> None:
        play_changed(
            self._tables, self._wanted, self._states, self._trial, self._best, self._changed, self._numbers, rounds, loss_ps
        )


@njit
def begin(tables: Tables, wanted: Ints, states: Ints2D, trial: Ints, best: Ints, numbers: Ints) -> None:
    """Play the game to begin with, and keep it: ``wanted`` becomes what was played.

    ``wanted`` and ``best`` are (M,); ``states`` is (KEPT, D) with the state before the first move in its first row, ``trial``
    (D,).
    """
    _load(tables, states, 0, trial)
    play_on(tables, trial, wanted)
    # What a reset took back is not part of the game.
    adopt(tables, trial, wanted)
    _keep_states(tables, wanted, states, trial, 0)
    for position in range(len(wanted)):
        best[position] = wanted[position]
    numbers[_CURRENT] = trial[layout.RETURN_PS]
    numbers[_BEST] = trial[layout.RETURN_PS]


@njit
def play_changed(
    tables: Tables,
    wanted: Ints,
    states: Ints2D,
    trial: Ints,
    best: Ints,
    changed: Ints2D,
    numbers: Ints,
    rounds: int,
    loss_ps: int,
) -> None:
    """Play so many changed games; keep those that lose no more than ``loss_ps`` against the present one.

    Arguments are those of :func:`begin`, and ``changed`` (MOST_CHANGES, 2), room for what a round changes.
    """
    moves = len(wanted)
    for _ in range(rounds):
        numbers[_CHANGES] = 0
        _change_some(tables, wanted, changed, numbers)
        first = moves
        for number in range(numbers[_CHANGES]):
            first = min(first, changed[number, 0])
        if first == moves:
            continue
        kept = first * KEPT // moves
        _load(tables, states, kept, trial)
        play_on(tables, trial, wanted)
        if trial[layout.RETURN_PS] >= numbers[_CURRENT] - loss_ps:
            numbers[_CURRENT] = trial[layout.RETURN_PS]
            # A reset may have gone back to before the first change.
            kept = min(first, adopt(tables, trial, wanted)) * KEPT // moves
            if trial[layout.RETURN_PS] > numbers[_BEST]:
                numbers[_BEST] = trial[layout.RETURN_PS]
                for position in range(moves):
                    best[position] = wanted[position]
            _keep_states(tables, wanted, states, trial, kept)
        else:
            # A move may have been changed twice.
            for number in range(numbers[_CHANGES] - 1, -1, -1):
                wanted[changed[number, 0]] = changed[number, 1]


# ---------------------------------------------------------------------------------------------------------------- games


@njit_inner
def play_on(tables: Tables, data: Ints, wanted: Ints) -> None:
    """Play to the end, at each move what is wanted or else what is nearest to it: fast some other way before slow."""
    while not is_over(tables, data):
        step(tables, data, _nearest(data[layout.LEGAL], wanted[data[layout.POSITION]]))


@njit_inner
def _nearest(legal: int, action: int) -> int:
    if legal >> action & 1:
        return action
    if action != layout.NOCOPY and legal >> layout.NOCOPY & 1:
        return layout.NOCOPY
    if action != layout.COPY and legal >> layout.COPY & 1:
        return layout.COPY
    return layout.DROP


@njit_inner
def adopt(tables: Tables, data: Ints, wanted: Ints) -> int:
    """Want what was played; the first move where that was something else."""
    rows = tables.program[0].at_rows
    first = len(wanted)
    for position in range(len(wanted) - 1, -1, -1):
        action = data[rows + layout.ROW * position + layout.ACTION]
        if wanted[position] != action:
            wanted[position] = action
            first = position
    return first


@njit_inner
def _load(tables: Tables, states: Ints, kept: int, data: Ints) -> None:
    # How much of a state is used depends on this alone.
    data[layout.POSITION] = states[kept, layout.POSITION]
    for cell in range(used(tables, data)):
        data[cell] = states[kept, cell]


@njit_inner
def _keep_states(tables: Tables, wanted: Ints, states: Ints, trial: Ints, kept: int) -> None:
    """Keep the states of the game from the ``kept``-th on; ``trial`` ends as the finished game."""
    _load(tables, states, kept, trial)
    moves = len(wanted)
    for number in range(kept + 1, KEPT):
        # The first position whose changes are played from this state.
        while trial[layout.POSITION] < (number * moves + KEPT - 1) // KEPT:
            step(tables, trial, wanted[trial[layout.POSITION]])
        for cell in range(used(tables, trial)):
            states[number, cell] = trial[cell]
    while not is_over(tables, trial):
        step(tables, trial, wanted[trial[layout.POSITION]])


# -------------------------------------------------------------------------------------------------------------- changes


@njit_inner
def _draw(numbers: Ints, count: int) -> int:
    """A random number below ``count``: Park and Miller, "Random number generators: good ones are hard to find" (1988)."""
    numbers[_RANDOM] = numbers[_RANDOM] * 48271 % _MODULUS
    return numbers[_RANDOM] * count // _MODULUS  # type: ignore[no-any-return]


@njit_inner
def _near(numbers: Ints, position: int, reach: int, moves: int) -> int:
    """A random move at most ``reach`` before or after one."""
    return max(0, min(moves - 1, position + _draw(numbers, 2 * reach + 1) - reach))


@njit_inner
def _want(wanted: Ints, changed: Ints, numbers: Ints, position: int, action: int) -> None:
    count = numbers[_CHANGES]
    if count < MOST_CHANGES and wanted[position] != action:
        changed[count, 0] = position
        changed[count, 1] = wanted[position]
        numbers[_CHANGES] = count + 1
        wanted[position] = action


@njit_inner
def _change_some(tables: Tables, wanted: Ints, changed: Ints, numbers: Ints) -> None:
    """One of four: another action for a move; for some moves near each other; a run of a tensor's moves fast or slow; a fast
    run in place of others.
    """
    moves = len(wanted)
    way = _draw(numbers, 4)
    position = _draw(numbers, moves)
    reach = NEAREST << _draw(numbers, REACHES)
    if way == 0:
        _want(wanted, changed, numbers, position, (wanted[position] + 1 + _draw(numbers, 2)) % 3)
    elif way == 1:
        for _ in range(2 + _draw(numbers, 3)):
            near = _near(numbers, position, reach, moves)
            _want(wanted, changed, numbers, near, (wanted[near] + 1 + _draw(numbers, 2)) % 3)
    elif way == 2:
        _change_run(tables, wanted, changed, numbers, position, wanted[position] == layout.DROP)
    else:
        for _ in range(8):
            if wanted[position] == layout.DROP:
                break
            position = _draw(numbers, moves)
        for _ in range(1 + _draw(numbers, 3)):
            near = _near(numbers, position, reach, moves)
            if wanted[near] != layout.DROP and tables.moves[near].tensor != tables.moves[position].tensor:
                _change_run(tables, wanted, changed, numbers, near, False)
        _change_run(tables, wanted, changed, numbers, position, True)
        for _ in range(_draw(numbers, 3)):
            near = _near(numbers, position, reach, moves)
            if wanted[near] == layout.DROP:
                _change_run(tables, wanted, changed, numbers, near, True)


@njit_inner
def _change_run(tables: Tables, wanted: Ints, changed: Ints, numbers: Ints, position: int, is_fast: bool) -> None:
    """Let a tensor's moves be fast or slow from one on: some of those that are the other, or all."""
    left = 1 + _draw(numbers, 4)
    if _draw(numbers, 3) == 0:
        left = MOST_CHANGES
    is_first = True
    while position >= 0 and left > 0 and (wanted[position] == layout.DROP) == is_fast:
        action = layout.DROP
        if is_fast:
            action = layout.NOCOPY
            # It comes in once; what is written is copied out or not.
            if (is_first and not tables.moves[position].is_output) or (
                tables.moves[position].is_output and _draw(numbers, 2) == 0
            ):
                action = layout.COPY
        _want(wanted, changed, numbers, position, action)
        is_first = False
        left -= 1
        position = tables.moves[position].later
