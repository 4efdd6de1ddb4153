"""What it costs to try a decision of memory mapping: in the agents' game, and on the machine of the heuristics.

    python -m benchmarks.memory_mapping.states [INPUT ...]

For each compiled program (three examples where none is named) it prints the time of a move of the game, of copying its
state, and of copying a state of the machine, which cannot take a decision back. The last two columns are of the machine's map
of memory alone: what a game that shares only the bookkeeping of addresses would copy beside its own state.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import stowplan
from benchmarks.lib.tables import table
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, play_greedy
from stowplan.portfolio.memory_mapping import arrays, machine

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
NAMES = ("alexnet_train_b32", "resnet50_inf_b1", "gpt_decode_loop_b8")


def microseconds(action: Callable[[], Any], times: int = 200) -> float:
    """Of one call, after one that is not counted."""
    action()
    began = time.perf_counter()
    for _ in range(times):
        action()
    return 1e6 * (time.perf_counter() - began) / times


def _bytes(records: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(records).view(np.uint8)


def row(path: str | Path) -> list[str]:
    """One program."""
    problem = stowplan.read(path, target="tpu-v4")
    game = CompiledGame(problem)
    initial, state = game.tables.initial, machine.new_state(arrays.build(problem))
    # As bytes: arrays of records are copied field by field otherwise, which takes five times as long.
    parts = [_bytes(part) for part in state if isinstance(part, np.ndarray)]
    addresses = [_bytes(part) for part in (state.slots, state.order, state.window_counts, state.nearby)]
    move = microseconds(lambda: play_greedy(game.tables, initial.copy()), 5) / len(game.moves)
    return [
        Path(path).name.partition(".")[0],
        f"{move:.2f}",
        f"{microseconds(initial.copy):.1f}",
        f"{initial.nbytes:,}",
        f"{microseconds(lambda: [part.copy() for part in parts]):.1f}",
        f"{sum(part.nbytes for part in parts):,}",
        f"{microseconds(lambda: [part.copy() for part in addresses]):.1f}",
        f"{sum(part.nbytes for part in addresses):,}",
    ]


if __name__ == "__main__":
    paths: list[str | Path] = [*sys.argv[1:]] or [EXAMPLES / f"{name}.hlo.txt.gz" for name in NAMES]
    head = ["program", "move, us", "copy of the game, us", "bytes", "copy of the machine, us", "bytes"]
    head += ["copy of its map of memory, us", "bytes"]
    print(table([row(path) for path in paths], head))
