"""What each action at some decisions of a game comes to, by true completions; and programs to play, as saved tables."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.memory_mapping.residual import ACTIONS, BEST, FEATURES, HIDDEN, SECOND, STATIC, Network
from benchmarks.lib.memory_mapping.residual_play import Program, read_data
from stowplan.portfolio.memory_mapping.arrays import Data, Floats

#: Column of the features that says whether there is a second way.
HAS_SECOND = STATIC + 8

#: Differences are over what the tensor saves at most, and cut off here.
MOST = 3.0

#: Orders in which tensors are offered, as for ``densities``; that of insertion's first plan is the first.
ORDERS = (1, 1, 3, 0, 2)

#: Shapes of what is learned, in the order in which they lie in one vector.
SHAPES = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, ACTIONS), (ACTIONS,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)


class Labels(NamedTuple):
    """Decisions and what is known of them. D decisions."""

    rows: Floats
    """[D, FEATURES]"""
    values: Floats
    """[D, ACTIONS]: what each action saves more than the best way, over what the tensor saves at most."""
    known: NDArray[np.bool_]
    """[D, ACTIONS]"""
    weight: Floats
    """[D]"""


def network(vector: Floats, mean: Floats, scale: Floats, threshold: float) -> Network:
    """A network of all its weights in one vector; an action must be better than the best way by a threshold."""
    parts, at = [], 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        parts.append(np.ascontiguousarray(vector[at : at + size].reshape(shape), np.float64))
        at += size
    bias = np.full(ACTIONS, -threshold)
    bias[BEST] = 0.0
    return Network._make([*(np.array(each, np.float64) for each in (mean, scale)), *parts, bias])


def labelled(
    program: Program, visited: Network, after: Network, decisions: int, rng: np.random.Generator, heat: float = 0.0
) -> Labels | None:
    """Some decisions of a game of the network ``visited``, each action followed by what ``after`` does."""
    program.played(visited, seed=int(rng.integers(1 << 30)), heat=heat)
    game = program.here.game
    asked = np.flatnonzero(~np.isnan(game.rows[:, 0]))
    if not len(asked):
        return None
    own = program.table.gains
    odds = np.sqrt(own[asked])
    count = min(decisions, len(asked))
    at = np.sort(rng.choice(asked, count, replace=False, p=odds / odds.sum()))
    rows, chosen = game.rows[at].copy(), game.chosen.copy()
    values, known = np.zeros((count, ACTIONS)), np.zeros((count, ACTIONS), np.bool_)
    program.begin()
    flats = []
    for position in at:
        program.on(chosen, int(position))
        flats.append(program.here.flat.copy())
    wanted = np.full(program.count, -1, np.int64)
    for number, position in enumerate(at):
        totals = np.zeros(ACTIONS)
        for action in range(ACTIONS):
            if action == SECOND and not rows[number, HAS_SECOND]:
                continue
            program.here.flat[:] = flats[number]
            wanted[position] = action
            totals[action] = program.on(wanted, net=after)
            known[number, action] = True
        wanted[position] = -1
        values[number] = np.clip((totals[BEST] - totals) / max(1.0, own[position]), -MOST, MOST)
    return Labels(rows, np.where(known, values, 0.0), known, np.ones(count))


def varied(data: Data, capacity: float, copies: float) -> Data:
    """A program with another capacity and other times of copies."""
    tensors = data.tensors.copy()  # type: ignore[attr-defined]
    tensors["copy_in"] = np.round(tensors["copy_in"] * copies)
    tensors["copy_out"] = np.round(tensors["copy_out"] * copies)
    return data._replace(capacity=max(1024, int(capacity * data.capacity) // 1024 * 1024), tensors=tensors)


@cache
def _read(path: Path) -> Data:
    return read_data(path)[0]


def drawn(files: list[Path], rng: np.random.Generator) -> tuple[str, Program]:
    """A saved program at a random scarcity."""
    path = files[int(rng.integers(len(files)))]
    data = _read(path)
    capacity = float(np.exp(rng.uniform(np.log(0.2), np.log(0.8))))
    copies = float(rng.choice([0.5, 1.0, 1.0, 2.0]))
    return f"{path.stem} {capacity:.3f} {copies:g}", Program(varied(data, capacity, copies), int(rng.choice(ORDERS)))
