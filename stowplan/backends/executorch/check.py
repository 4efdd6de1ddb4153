"""Says what is wrong with offsets for ExecuTorch, looking at all pairs of tensors; shares no code with what plans them.

The framework itself looks for tensors that share bytes only after planners of the name ``greedy``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def faults(
    specs: Iterable[Any], placed: Mapping[int, tuple[int, int]], sizes: Sequence[int], reserved: Sequence[int], padding: int
) -> list[str]:
    """What is wrong, one line each; empty where nothing is.

    Parameters
    ----------
    specs
        All tensors, those inside others as well; their ``alignment`` is what holds.
    placed
        Arena and offset, by ``id`` of the specification.
    sizes
        Bytes of each arena.
    reserved, padding
        Bytes at the bottom of each arena, and on top of each, that stay free.
    """
    every = list(specs)
    lost = sum(id(spec) not in placed for spec in every)
    if lost:
        return [f"{lost} tensors have no place"]
    found = []
    for number, spec in enumerate(every):
        mem_id, at = placed[id(spec)]
        end = at + spec.allocated_memory
        if not 1 <= mem_id < len(sizes):
            found.append(f"tensor {number} is in arena {mem_id}, and there are {len(sizes)}")
            continue
        if spec.mem_id is not None and spec.storage_base is None and mem_id != spec.mem_id:
            found.append(f"tensor {number} is in arena {mem_id}, bound for {spec.mem_id}")
        if at < (reserved[mem_id] if mem_id < len(reserved) else 0) or end > sizes[mem_id] - padding:
            found.append(f"tensor {number} is at bytes {at} to {end}, outside what arena {mem_id} has for it")
        if at % spec.alignment:
            found.append(f"tensor {number} is at {at}, not a multiple of {spec.alignment}")
        base = spec.storage_base
        if base is not None and placed.get(id(base)) != (mem_id, at - spec.storage_base_offset):
            found.append(f"tensor {number} is not where it should be inside another")
    return found or _overlaps(every, placed)


def _overlaps(specs: list[Any], placed: Mapping[int, tuple[int, int]]) -> list[str]:
    rows = [(*placed[id(spec)], spec.allocated_memory, *spec.lifetime) for spec in specs]
    arena, low, size, first, last = np.array(rows, np.int64).reshape(-1, 5).T
    found = []
    for number in range(len(specs)):
        rest = slice(number + 1, None)
        meet = (
            (arena[rest] == arena[number])
            & (low[rest] < low[number] + size[number])
            & (low[number] < low[rest] + size[rest])
            & (first[rest] <= last[number])
            & (first[number] <= last[rest])
            & (np.minimum(size[rest], size[number]) > 0)
        )
        found += [
            f"tensors {number} and {other} share bytes while both live"
            for other in (np.flatnonzero(meet) + number + 1).tolist()
            if not (_inside(specs[number], specs[other]) or _inside(specs[other], specs[number]))
        ]
    return found


def _inside(spec: Any, base: Any) -> bool:
    """Whether a tensor is meant to lie inside the bytes of another."""
    while spec.storage_base is not None:
        spec = spec.storage_base
        if spec is base:
            return True
    return False
