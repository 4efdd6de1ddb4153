"""A structure as the compiled code has it, forwards or backwards in time.

Backwards the same holds: operators run last to first, a storage comes with the last that touches it and goes with the first. So
one kernel does for both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.models.operator_order.structure import Structure

Ints = NDArray[np.int64]


class Graph(NamedTuple):
    """Lists of lists as in :class:`~stowplan.models.operator_order.structure.Structure`; all arrays are int64."""

    succ_start: Ints
    succ: Ints
    waits: Ints
    """[ops] operators before each that are not lazy."""
    is_lazy: Ints
    """[ops] 1 for operators that need nothing and write one storage that all that wait for them touch."""
    touch_start: Ints
    touch: Ints
    size: Ints
    total: Ints
    """[storages] operators that touch it, and the start and the end where it is there."""
    rem: Ints
    """[storages] how many of ``total`` are left before the first operator."""
    maker: Ints
    """[storages] lazy operator that writes it; -1 elsewhere."""
    pair_start: Ints
    pair: Ints
    backward: int


def make(structure: Structure, backward: bool = False) -> Graph:
    """The graph of a structure."""
    there = structure.is_there.astype(np.int64)
    total = structure.users + structure.given + structure.kept
    gone = structure.kept if backward else structure.given
    # What is never live must never come or go.
    total = np.where(there > 0, total, 1)
    lazy = np.zeros(structure.ops, np.int64)
    maker = np.full(structure.storages, -1, np.int64)
    if not backward:
        for op in np.flatnonzero(np.diff(structure.pred_start) == 0).tolist():
            touched = structure.touch[structure.touch_start[op] : structure.touch_start[op + 1]]
            after = structure.succ[structure.succ_start[op] : structure.succ_start[op + 1]]
            if len(touched) == 1 and structure.creator[touched[0]] == op and len(after) > 0:
                storage = int(touched[0])
                users = structure.user[structure.user_start[storage] : structure.user_start[storage + 1]]
                if set(after.tolist()) <= set(users.tolist()):
                    lazy[op], maker[storage] = 1, op
    starts, items = (structure.pred_start, structure.pred) if backward else (structure.succ_start, structure.succ)
    waits = np.zeros(structure.ops, np.int64)
    owner = np.repeat(np.arange(structure.ops), np.diff(starts))
    np.add.at(waits, items[lazy[owner] == 0], 1)
    return Graph(
        succ_start=starts,
        succ=items,
        waits=waits,
        is_lazy=lazy,
        touch_start=structure.touch_start,
        touch=structure.touch,
        size=np.where(there > 0, structure.size, 0),
        total=total,
        rem=np.where(there > 0, total - gone, 0),
        maker=maker,
        pair_start=structure.pair_start,
        pair=structure.pair,
        backward=int(backward),
    )
