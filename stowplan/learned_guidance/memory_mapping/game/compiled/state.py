"""Compiled games and their states for Python code; and functions that play whole games."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.readers import benefit, is_over, legal, present_benefit
from stowplan.learned_guidance.memory_mapping.game.compiled.rules import find_legal_actions, step
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables, build_tables
from stowplan.learned_guidance.memory_mapping.game.game import Action, Game, plan_of
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem


class CompiledGame(Game):
    """A game with its tables; the options are those of :class:`~stowplan.learned_guidance.memory_mapping.game.game.Game`."""

    def __init__(self, problem: Problem, **options: Any):
        super().__init__(problem, **options)
        self.tables = build_tables(self)
        find_legal_actions(self.tables, self.tables.initial)

    def reset(self) -> CompiledState:
        """The state before the first move."""
        return CompiledState(self, self.tables.initial.copy())

    @cached_property
    def unit_ps(self) -> int:
        """The unit of returns for learning, which makes programs comparable: the return in ps of the *greedy* game, in which
        each move takes the action with the largest reward.

        It is at least an eighth of the time that fast memory could save at most, so that returns stay below about eight units
        if the greedy game is bad; and at least 1.
        """
        greedy = play_greedy(self.tables, self.tables.initial.copy())
        return max(int(greedy), (self.problem.all_slow_ps - self.problem.floor_ps) // 8, 1)


class CompiledState:
    """A state of the game: everything that has been decided so far. Actions are 0 (Copy), 1 (NoCopy) and 2 (Drop)."""

    __slots__ = ("data", "game")

    def __init__(self, game: CompiledGame, data: Ints):
        self.game = game
        self.data = data
        """The state as one vector (``layout.py``); a copy of it is a copy of the state."""

    @property
    def position(self) -> int:
        """Number of the current move, which is to be made next; the number of all moves at the end."""
        return int(self.data[layout.POSITION])

    @property
    def return_ps(self) -> int:
        """Sum of all rewards so far."""
        return int(self.data[layout.RETURN_PS])

    @property
    def is_lost(self) -> bool:
        """Whether the game is lost: no action was legal, and Drop-backup is off."""
        return bool(self.data[layout.IS_LOST])

    @property
    def is_over(self) -> bool:
        """Whether all moves have been made, or the game is lost."""
        return self.is_lost or self.position == len(self.game.moves)

    @property
    def resets(self) -> int:
        """How often the game went back from an infeasible state."""
        return int(self.data[layout.RESETS])

    @property
    def legal(self) -> NDArray[np.bool_]:
        """Which actions are legal, shape (3,); none once the game is over, at least one before."""
        return np.array([bool(self.data[layout.LEGAL] >> action & 1) for action in range(3)])

    @property
    def placements(self) -> Ints:
        """The memory that each action would newly occupy: rows (first step, boundary at the end, offset), shape (3, 3). A row
        is -1 for Drop and for illegal actions."""
        placements = np.full((3, 3), -1, np.int64)
        placements[:2] = self.data[layout.PLACEMENTS : layout.HEAD].reshape(2, layout.PLACEMENT)[:, :3]
        return placements

    @property
    def benefit_ps(self) -> int:
        """The reward of Copy or NoCopy in the current move (ps), if the action is legal and Drop-backup does not undo it; 0
        once the game is over."""
        return int(present_benefit(self.game.tables, self.data))

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions that led here, without those that Drop-backup has undone."""
        return tuple(Action(action) for action in self._rows()[: self.position, layout.ACTION].tolist())

    def step(self, action: int) -> int:
        """Make the current move; returns the reward (ps). Raises ValueError if the action is illegal."""
        if action not in (0, 1, 2) or not self.data[layout.LEGAL] >> action & 1:
            name = Action(action).name if action in (0, 1, 2) else f"action {action}"
            raise ValueError(f"{name} is not legal in move {self.position}")
        return int(play_one(self.game.tables, self.data, int(action)))

    def play(self, actions: Sequence[int] | NDArray[np.integer[Any]]) -> int:
        """Make several moves; returns the sum of their rewards (ps). Raises ValueError at the first illegal one."""
        before = self.return_ps
        array = np.asarray(actions, dtype=np.int64)
        count = int(play_actions(self.game.tables, self.data, array))
        if count < len(array):
            raise ValueError(f"action {array[count]}, number {count} of the list, is not legal in move {self.position}")
        return self.return_ps - before

    def copy(self) -> CompiledState:
        """An independent state that is equal."""
        return CompiledState(self.game, self.data.copy())

    @property
    def residencies(self) -> list[Residency]:
        """The residencies in fast memory, in the order of the moves that placed them."""
        count = int(self.data[layout.RESIDENCIES])
        columns = [layout.RESIDENT, layout.START, layout.END, layout.OFFSET]
        return [Residency(*row) for row in self._rows()[:count, columns].tolist()]

    @property
    def copies(self) -> list[Copy]:
        """The copies so far, in the order of the moves that booked them."""
        bounds = self.game.slots.boundaries
        windows = self._rows()[: self.position, [layout.WINDOW_FIRST, layout.WINDOW_LAST]].tolist()
        return [
            Copy(move.tensor, "out" if move.is_output else "in", bounds[first], bounds[last])
            for move, (first, last) in zip(self.game.moves, windows, strict=False)
            if first >= 0
        ]

    @property
    def fast_uses(self) -> list[int]:
        """Numbers of the uses that are fast, ascending."""
        decisions = zip(self.game.moves, self.actions, strict=False)
        return sorted(use for move, action in decisions if action != Action.DROP for use in move.uses)

    def plan(self) -> Plan:
        """The plan of a finished game, all slow if it was lost; raises ValueError before the end."""
        if not self.is_over:
            raise ValueError(f"{len(self.game.moves) - self.position} moves are not made yet")
        return plan_of(self.game.problem, self.return_ps, self.residencies, self.copies, self.fast_uses)

    def _rows(self) -> Ints:
        """The rows of the state as an array of shape (moves, ``layout.ROW``)."""
        return self.data[self.game.tables.program[0].at_rows :].reshape(-1, layout.ROW)


@njit
def play_one(tables: Tables, data: Ints, action: int) -> int:
    """Make one legal move; returns the reward (ps)."""
    return step(tables, data, action)


@njit
def play_greedy(tables: Tables, data: Ints) -> int:
    """Play to the end, always the action of largest immediate reward, the first of equals; returns the return (ps)."""
    while not is_over(tables, data):
        action = layout.COPY if legal(tables, data, layout.COPY) else layout.NOCOPY
        if legal(tables, data, layout.DROP) and (
            data[layout.LEGAL] == 1 << layout.DROP or benefit(tables, data, data[layout.POSITION]) < 0
        ):
            action = layout.DROP
        step(tables, data, action)
    return data[layout.RETURN_PS]  # type: ignore[no-any-return]


@njit
def play_actions(tables: Tables, data: Ints, actions: Ints) -> int:
    """Play a list of actions as far as they are legal; returns how many were."""
    for number in range(len(actions)):
        action = actions[number]
        if not (layout.COPY <= action <= layout.DROP and legal(tables, data, action)):
            return number
        step(tables, data, action)
    return len(actions)
