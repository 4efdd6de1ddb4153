"""Local search over games: change some actions of a game, replay it, and keep the result if it is not worse.

A game is represented by a *wanted* action for each move. Wanted actions may be illegal; then the nearest legal one is played,
as in ``demonstrations.py``. Any change of wanted actions is therefore a game. Small losses are accepted at the beginning, as in
record-to-record travel (Dueck 1993). States along the current game are kept, so that a change is replayed from close to where
it begins.

A *round* makes one changed game. In shapes, M is the number of moves of the game, and D is the number of cells of a state, the
flat vector that ``compiled/layout.py`` describes.
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

#: Number of states of the current game that are stored, at positions with equal distances.
KEPT = 24

#: Largest number of moves that are changed together.
MOST_CHANGES = 64

#: Changes that are made together lie within ``NEAREST`` moves, or 2, 4, ... times as many, up to ``2 ** (REACHES - 1)`` times.
NEAREST, REACHES = 8, 4

#: Largest loss that is accepted at the beginning, as a part of the return.
LOSS = 1e-3

#: Seconds between two checks of the limits.
LOOK_EVERY = 0.02

#: Modulus of the random numbers.
_MODULUS = 2147483647

# Indices of the array of numbers of a search: the latest random number, the returns of the current and the best game (ps), and
# the number of changes in the current round.
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
    """Improve a game by local search; the result is never worse.

    Parameters
    ----------
    game
        The game.
    actions
        A wanted action for each move; if one is illegal, the nearest legal action is played.
    seed
        Seed of the random numbers.
    rounds, time_limit, should_stop
        Limits of the search: a number of games, seconds, a callback. There must be a limit of rounds or of seconds. With a
        limit of rounds alone, equal seeds give equal games.

    Returns
    -------
    Best
        The best game, with one action for each move, and the number of games played.

    Raises
    ------
    ValueError
        There is neither a limit of rounds nor of time.
    """
    if rounds is None and time_limit is None:
        raise ValueError("found neither rounds nor a time limit, expected one of them")
    search = _LocalSearch(game, np.array(actions, np.int64), seed)
    best = Best()
    best.offer(search.best_ps, search.best)
    deadline = Deadline(time_limit)
    loss = LOSS * max(search.best_ps, game.unit_ps)
    # With a number of rounds, the clock decides only when to stop.
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
    """Improve the game that is closest to a plan by local search.

    Parameters
    ----------
    plan
        A valid plan of the game's problem.
    limits
        Limits and seed, as for :func:`improve`.

    Returns
    -------
    Best
        A game that is never worse than the one closest to the plan.

    Raises
    ------
    ValueError
        There is neither a limit of rounds nor of time.
    """
    return improve(game, actions_of(game.problem, plan, game).actions, **limits)


class _LocalSearch:
    """The arrays of a search, for the compiled functions."""

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
        """The best return so far in ps."""
        return int(self._numbers[_BEST])

    @property
    def best(self) -> Ints:
        """The actions of the best game so far."""
        return self._best

    def run(self, rounds: int, loss_ps: int) -> None:
        """Plays ``rounds`` changed games; see :func:`play_changed`."""
        play_changed(
            self._tables, self._wanted, self._states, self._trial, self._best, self._changed, self._numbers, rounds, loss_ps
        )


@njit
def begin(tables: Tables, wanted: Ints, states: Ints2D, trial: Ints, best: Ints, numbers: Ints) -> None:
    """Play the first game and keep it; ``wanted`` is replaced by the actions that were played.

    ``wanted`` and ``best`` have shape (M,), ``states`` has shape (KEPT, D) with the state before the first move in its first
    row, and ``trial`` has shape (D,).
    """
    _load(tables, states, 0, trial)
    play_on(tables, trial, wanted)
    # Moves that Drop-backup has undone are not part of the game.
    adopt(tables, trial, wanted)
    _store_states(tables, wanted, states, trial, 0)
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
    """Play ``rounds`` changed games; keep those that lose at most ``loss_ps`` compared with the current game.

    The arguments are those of :func:`begin`; ``changed`` (MOST_CHANGES, 2) is scratch space for the changes of a round.
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
        stored = first * KEPT // moves
        _load(tables, states, stored, trial)
        play_on(tables, trial, wanted)
        if trial[layout.RETURN_PS] >= numbers[_CURRENT] - loss_ps:
            numbers[_CURRENT] = trial[layout.RETURN_PS]
            # Drop-backup may have gone back to before the first change.
            stored = min(first, adopt(tables, trial, wanted)) * KEPT // moves
            if trial[layout.RETURN_PS] > numbers[_BEST]:
                numbers[_BEST] = trial[layout.RETURN_PS]
                for position in range(moves):
                    best[position] = wanted[position]
            _store_states(tables, wanted, states, trial, stored)
        else:
            # A move may have been changed twice.
            for number in range(numbers[_CHANGES] - 1, -1, -1):
                wanted[changed[number, 0]] = changed[number, 1]


# ---------------------------------------------------------------------------------------------------------------- games


@njit_inner
def play_on(tables: Tables, data: Ints, wanted: Ints) -> None:
    """Play to the end, at each move the wanted action or the nearest legal one: another fast action before the slow one."""
    while not is_over(tables, data):
        step(tables, data, _nearest(data[layout.LEGAL], wanted[data[layout.POSITION]]))


@njit_inner
def _nearest(legal: int, action: int) -> int:
    """The wanted action if it is legal, otherwise the nearest legal one; ``legal`` has a bit for each action."""
    if legal >> action & 1:
        return action
    if action != layout.NOCOPY and legal >> layout.NOCOPY & 1:
        return layout.NOCOPY
    if action != layout.COPY and legal >> layout.COPY & 1:
        return layout.COPY
    return layout.DROP


@njit_inner
def adopt(tables: Tables, data: Ints, wanted: Ints) -> int:
    """Replace wanted actions by those that were played; returns the first move at which they differed."""
    rows = tables.program[0].at_rows
    first = len(wanted)
    for position in range(len(wanted) - 1, -1, -1):
        action = data[rows + layout.ROW * position + layout.ACTION]
        if wanted[position] != action:
            wanted[position] = action
            first = position
    return first


@njit_inner
def _load(tables: Tables, states: Ints, stored: int, data: Ints) -> None:
    """Copy a stored state to ``data``."""
    # The number of cells in use depends on the position alone.
    data[layout.POSITION] = states[stored, layout.POSITION]
    for cell in range(used(tables, data)):
        data[cell] = states[stored, cell]


@njit_inner
def _store_states(tables: Tables, wanted: Ints, states: Ints, trial: Ints, stored: int) -> None:
    """Replay the game from a stored state, and store its later states anew; ``trial`` ends as the finished game."""
    _load(tables, states, stored, trial)
    moves = len(wanted)
    for number in range(stored + 1, KEPT):
        # The first position from which changes are replayed from this state.
        while trial[layout.POSITION] < (number * moves + KEPT - 1) // KEPT:
            step(tables, trial, wanted[trial[layout.POSITION]])
        for cell in range(used(tables, trial)):
            states[number, cell] = trial[cell]
    while not is_over(tables, trial):
        step(tables, trial, wanted[trial[layout.POSITION]])


# -------------------------------------------------------------------------------------------------------------- changes


@njit_inner
def _draw(numbers: Ints, count: int) -> int:
    """A random number below ``count`` (Park and Miller, "Random number generators: good ones are hard to find", 1988)."""
    numbers[_RANDOM] = numbers[_RANDOM] * 48271 % _MODULUS
    return numbers[_RANDOM] * count // _MODULUS  # type: ignore[no-any-return]


@njit_inner
def _near(numbers: Ints, position: int, reach: int, moves: int) -> int:
    """A random move at most ``reach`` moves before or after another."""
    return max(0, min(moves - 1, position + _draw(numbers, 2 * reach + 1) - reach))


@njit_inner
def _want(wanted: Ints, changed: Ints, numbers: Ints, position: int, action: int) -> None:
    """Change the wanted action of a move, and record the old one, unless the round has the maximum number of changes."""
    count = numbers[_CHANGES]
    if count < MOST_CHANGES and wanted[position] != action:
        changed[count, 0] = position
        changed[count, 1] = wanted[position]
        numbers[_CHANGES] = count + 1
        wanted[position] = action


@njit_inner
def _change_some(tables: Tables, wanted: Ints, changed: Ints, numbers: Ints) -> None:
    """Make one of four random changes.

    They are: another action for one move; other actions for some moves close to each other; consecutive moves of a tensor all
    fast or all slow; and consecutive moves of a tensor fast while others become slow.
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
    """Make a tensor's moves fast or slow from one move on: some of them, or all."""
    left = 1 + _draw(numbers, 4)
    if _draw(numbers, 3) == 0:
        left = MOST_CHANGES
    is_first = True
    while position >= 0 and left > 0 and (wanted[position] == layout.DROP) == is_fast:
        action = layout.DROP
        if is_fast:
            action = layout.NOCOPY
            # The tensor is copied in once; writes may be copied out or not.
            if (is_first and not tables.moves[position].is_output) or (
                tables.moves[position].is_output and _draw(numbers, 2) == 0
            ):
                action = layout.COPY
        _want(wanted, changed, numbers, position, action)
        is_first = False
        left -= 1
        position = tables.moves[position].later
