"""Games of :mod:`residual` from Python: whole ones, from a place on, and searches over the actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.lib.memory_mapping.residual import (
    ACTIONS,
    RANDOM,
    Game,
    Network,
    Table,
    climb,
    keep_all,
    new_game,
    new_table,
    no_network,
    play,
)
from stowplan.compiled import filled
from stowplan.portfolio.memory_mapping.arrays import AccessRow, Data, Floats, Ints, StepRow, TensorRow, TermRow, UseRow
from stowplan.portfolio.memory_mapping.machine import new_state
from stowplan.portfolio.memory_mapping.state import State

_ROWS = {"steps": StepRow, "terms": TermRow, "tensors": TensorRow, "accesses": AccessRow, "access_uses": UseRow}


def save_data(path: Path, data: Data, **facts: Any) -> None:
    """Keep the tables of a program."""
    found: dict[str, Any] = {}
    for name, value in data._asdict().items():
        kind = _ROWS.get(name)
        if kind is None:
            found[name] = np.asarray(value)
        else:
            found[name] = np.array([[getattr(row, each) for each in kind.__annotations__] for row in value], np.int64)
    with path.open("wb") as file:
        np.savez_compressed(file, **found, **{f"fact_{name}": value for name, value in facts.items()})


def read_data(path: Path) -> tuple[Data, dict[str, Any]]:
    """The tables of a program, and what else was kept."""
    with np.load(path) as given:
        found = {name: given[name] for name in given.files}
    values: dict[str, Any] = {}
    for name in Data._fields:
        kind = _ROWS.get(name)
        if kind is None:
            values[name] = found[name] if found[name].shape else int(found[name])
        else:
            rows = found[name]
            values[name] = filled(kind, len(rows), {each: rows[:, at] for at, each in enumerate(kind.__annotations__)})
    return Data(**values), {name[5:]: found[name] for name in found if name.startswith("fact_")}


#: What is room for work in a state and in a game, not part of what they are. What is remembered of the map of memory is part:
#: insertions are counted anew from each position.
_ROOM = {"kept", "rows", "scores", "hidden"}


class Position(NamedTuple):
    """A game so far; what changes lies in one piece, so that it is copied at once."""

    state: State
    game: Game
    flat: Ints


def pooled(state: State, game: Game) -> Position:
    """State and game in one piece of memory."""
    arrays = [(name, each) for part in (state, game) for name, each in part._asdict().items() if name not in _ROOM]
    flat = np.zeros(sum(each.nbytes for _, each in arrays) // 8, np.int64)
    found, at = {}, 0
    for _name, each in arrays:
        size = each.nbytes // 8
        view = flat[at : at + size].view(each.dtype)
        view[:] = each.reshape(-1)
        found[id(each)] = view.view(np.recarray) if each.dtype.names else view
        at += size
    return Position(
        State(*(found.get(id(each), each) for each in state)), Game(*(found.get(id(each), each) for each in game)), flat
    )


class Program:
    """A program, and games of it."""

    def __init__(self, data: Data, by: int = 1):
        self.data = data
        self.table: Table = new_table(data, by)
        self.count = len(self.table.order)
        self.none = no_network()
        self.ask = np.full(self.count, -1, np.int64)
        self.here = pooled(new_state(data), new_game(self.table))
        self.start = self.here.flat.copy()

    def begin(self, seed: int = 0) -> None:
        """Nothing is played."""
        self.here.flat[:] = self.start
        self.here.game.cursor[RANDOM] = seeded(seed)

    def on(self, actions: Ints, until: int | None = None, net: Network | None = None, heat: float = 0.0) -> int:
        """Play on; the objective (ps)."""
        state, game, _ = self.here
        until = self.count if until is None else until
        play(self.data, state, self.table, game, self.none if net is None else net, actions, until, heat)
        return int(state.totals[0].total)

    def total(self, actions: Ints) -> int:
        """Objective (ps) of a game of these actions."""
        self.begin()
        return self.on(actions)

    def played(self, net: Network, seed: int = 0, heat: float = 0.0) -> int:
        """Objective (ps) of a game of a network; what it did is in ``here.game.chosen``."""
        self.begin(seed)
        return self.on(self.ask, net=net, heat=heat)


def seeded(seed: int) -> int:
    """State of Lehmer's generator."""
    return 1 + (seed * 2654435761 + 88172645463325252) % ((1 << 31) - 2)


class Climb:
    """(1+1) search over actions from a string of them; ``where`` [N] and ``what`` [N, ACTIONS] are odds."""

    def __init__(self, program: Program, actions: Ints, where: Floats, what: Floats, mean: float, seed: int):
        self.program, self.actions = program, np.array(actions, np.int64)
        cuts = max(1, min(8, program.count // 50))
        self._kept = np.zeros((cuts, len(program.start)), np.int64)
        self._trial = np.zeros_like(self._kept)
        self._kept[0] = program.start
        self._where, self._what, self._mean = np.cumsum(where), np.cumsum(what, axis=1), mean
        self._random = np.array([seeded(seed)], np.int64)
        self._best = np.zeros(1, np.int64)
        self._room = self.actions.copy()
        self.tried = 0
        state, game, flat = program.here
        keep_all(program.data, state, program.table, game, program.none, flat, self._kept, self.actions, self._best)

    @property
    def best(self) -> int:
        """Objective (ps)."""
        return int(self._best[0])

    def tries(self, count: int) -> None:
        """Some changes."""
        of = self.program
        state, game, flat = of.here
        self.tried += count
        climb(
            of.data, state, of.table, game, of.none, flat, self._kept, self._trial, self.actions, self._room,
            self._where, self._what, self._mean, self._random, self._best, count,
        )  # fmt: skip

    def run(self, seconds: float, clock: Callable[[], float] = time.process_time) -> list[tuple[float, int]]:
        """Changes for so many seconds; when each best objective came."""
        began = clock()
        history = [(0.0, self.best)]
        count = 1
        while clock() - began < seconds:
            at, before = clock(), self.best
            self.tries(count)
            if self.best < before:
                history.append((clock() - began, self.best))
            count = max(1, count // 2) if clock() - at > 0.01 else count + 1
        return history


def evenly(program: Program, allowed: list[int]) -> tuple[Floats, Floats]:
    """Odds of changes drawn evenly."""
    what = np.zeros((program.count, ACTIONS))
    what[:, allowed] = 1.0
    return np.ones(program.count), what
