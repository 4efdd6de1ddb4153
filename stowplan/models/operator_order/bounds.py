"""What can be proven about the peak at once: tensors that are live at an operator in every order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import Structure, build, stable_order

#: Beyond so many operators only what an operator itself touches is added up: the tables grow with the square.
MANY_OPS = 20_000


def load_bound(problem: Problem) -> int:
    """Least peak in bytes that any order can have, by what is live at each operator whatever the order."""
    return int(forced_loads(build(problem)).max(initial=0))


def forced_loads(structure: Structure) -> NDArray[np.int64]:
    """[ops] bytes that are live while each operator runs, in every order.

    That is what it touches, and each storage of which some that touch it must run before and some after it. What may die in
    its place is taken off. The start and the end of the program are operators, too: the last two entries, [ops + 2] in all.
    """
    n = structure.ops
    size = structure.size
    loads = np.zeros(n + 2, np.int64)
    loads[n] = structure.start_bytes
    loads[n + 1] = int(size[(structure.kept > 0) & structure.is_there].sum())
    touched = np.zeros(n, np.int64)
    owner = np.repeat(np.arange(n), np.diff(structure.touch_start))
    np.add.at(touched, owner, size[structure.touch])
    saved = np.zeros(n, np.int64)
    # Not what stays: nothing may take its place.
    np.add.at(saved, np.repeat(np.arange(n), np.diff(structure.pair_start)), (size * (structure.kept == 0))[structure.pair])
    if n <= MANY_OPS:
        touched += _forced_others(structure)
    else:
        stays = (structure.kept > 0) & (structure.given > 0)
        loads[:n] += int(size[stays].sum())
        np.subtract.at(touched, owner, (size * stays)[structure.touch])
    loads[:n] += touched - saved
    return loads


def _forced_others(structure: Structure) -> NDArray[np.int64]:
    """[ops] bytes of storages that an operator does not touch, but that are live while it runs in every order."""
    n = structure.ops
    bits = ancestors(structure)
    after = [0] * n
    succ, succ_start = structure.succ.tolist(), structure.succ_start.tolist()
    for op in reversed(stable_order(structure)):
        for each in succ[succ_start[op] : succ_start[op + 1]]:
            after[op] |= after[each] | (1 << each)
    found = np.zeros(n, np.int64)
    everyone = (1 << n) - 1
    user, start = structure.user.tolist(), structure.user_start.tolist()
    for storage in np.flatnonzero((structure.size > 0) & structure.is_there).tolist():
        users = user[start[storage] : start[storage + 1]]
        creator = int(structure.creator[storage])
        before = everyone if creator < 0 else after[creator]
        until = everyone if structure.kept[storage] else 0
        own = 0
        for each in users:
            until |= bits[each]
            own |= 1 << each
        live = before & until & ~own
        if live:
            raw = np.frombuffer(live.to_bytes((n + 7) // 8, "little"), np.uint8)
            found += np.unpackbits(raw, count=n, bitorder="little") * structure.size[storage]
    return found


def ancestors(structure: Structure) -> list[int]:
    """[ops] the operators that must run before each, as bits."""
    found = [0] * structure.ops
    pred, start = structure.pred.tolist(), structure.pred_start.tolist()
    for op in stable_order(structure):
        for each in pred[start[op] : start[op + 1]]:
            found[op] |= found[each] | (1 << each)
    return found
