"""Games of :mod:`residual` from Python: whole ones, from a place on, and searches over the actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.lib.memory_mapping.residual import (
    ACTIONS,
    BEST,
    Game,
    Network,
    Table,
    new_game,
    new_table,
    no_network,
    play,
)
from stowplan.compiled import filled
from stowplan.portfolio.memory_mapping import arrays
from stowplan.portfolio.memory_mapping.arrays import AccessRow, Data, Ints, StepRow, TensorRow, TermRow, UseRow
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


class Position(NamedTuple):
    """A game so far."""

    state: State
    game: Game


def copied(position: Position) -> Position:
    """The same game, to be played on otherwise."""
    state, game = position
    return Position(State(*(each.copy() for each in state)), Game(*(each.copy() for each in game)))  # type: ignore[attr-defined]


def put(source: Position, target: Position) -> None:
    """Bring one position to another."""
    for ours, theirs in zip(source, target, strict=True):
        for here, there in zip(ours, theirs, strict=True):
            there[:] = here


class Program:
    """A program, and games of it."""

    def __init__(self, data: Data):
        self.data = data
        self.table: Table = new_table(data)
        self.count = len(self.table.order)
        self.none = no_network()
        self.ask = np.full(self.count, -1, np.int64)
        self._start = Position(new_state(data), new_game(self.table))
        self._room = copied(self._start)

    def begin(self, seed: int = 0) -> Position:
        """A game of which nothing is played."""
        found = copied(self._start)
        found.game.cursor[5] = 1 + (seed * 2654435761 + 88172645463325252) % ((1 << 31) - 2)
        return found

    def on(self, at: Position, actions: Ints, until: int | None = None, net: Network | None = None, heat: float = 0.0) -> int:
        """Play on, in place; the objective (ps)."""
        until = self.count if until is None else until
        play(self.data, at.state, self.table, at.game, self.none if net is None else net, actions, until, heat)
        return int(at.state.totals[0].total)

    def total(self, actions: Ints, start: Position | None = None) -> int:
        """Objective (ps) of a game of these actions, from a position on."""
        put(self._start if start is None else start, self._room)
        return self.on(self._room, actions)

    def played(self, net: Network, seed: int = 0, heat: float = 0.0) -> Position:
        """A game of a network."""
        at = self.begin(seed)
        self.on(at, self.ask, net=net, heat=heat)
        return at


class Climb:
    """(1+1) search over actions, from a string of them; ``draw`` gives positions and actions of a change."""

    #: Positions of the present game that are kept.
    KEPT = 8

    def __init__(self, program: Program, actions: Ints, rng: np.random.Generator):
        self.program, self.actions, self.rng = program, actions.copy(), rng
        self.best = 0
        self.tried = 0
        self._cuts = [program.count * part // self.KEPT for part in range(self.KEPT)]
        self._kept = [program.begin() for _ in self._cuts]
        self._replay()

    def _replay(self) -> None:
        at = self.program.begin()
        for cut, kept in zip(self._cuts, self._kept, strict=True):
            self.program.on(at, self.actions, cut)
            put(at, kept)
        self.best = self.program.on(at, self.actions)

    def try_(self, positions: Ints, actions: Ints) -> bool:
        """Change some actions; kept where that is no worse."""
        trial = self.actions.copy()
        trial[positions] = actions
        first = int(positions.min())
        number = max(at for at, cut in enumerate(self._cuts) if cut <= first)
        total = self.program.total(trial, self._kept[number])
        self.tried += 1
        if total > self.best:
            return False
        is_better = total < self.best
        self.actions = trial
        self.best = total
        at = copied(self._kept[number])
        for cut, kept in zip(self._cuts[number + 1 :], self._kept[number + 1 :], strict=True):
            self.program.on(at, self.actions, cut)
            put(at, kept)
        return is_better


def uniform(program: Program, rng: np.random.Generator, allowed: list[int], mean: float) -> Callable[[Climb], tuple[Ints, Ints]]:
    """Changes drawn evenly."""

    def draw(climb: Climb) -> tuple[Ints, Ints]:
        number = min(program.count, 1 + rng.poisson(mean - 1))
        positions = rng.choice(program.count, number, replace=False)
        actions = rng.choice(allowed, number)
        same = climb.actions[positions] == actions
        actions[same] = BEST
        return positions, actions

    return draw


def climbed(climb: Climb, draw: Callable[[Climb], tuple[Ints, Ints]], seconds: float) -> list[tuple[float, int]]:
    """Changes for so many processor seconds; when the best objective came."""
    began = time.process_time()
    history = [(0.0, climb.best)]
    while (now := time.process_time() - began) < seconds:
        if climb.try_(*draw(climb)):
            history.append((time.process_time() - began, climb.best))
    del now
    return history


__all__ = ["ACTIONS", "Climb", "Position", "Program", "arrays", "climbed", "copied", "put", "read_data", "save_data", "uniform"]
