"""The placement of llama.cpp's ``--fit``, on by default there: what a request would take without a plan.

Rewritten as rules from what ``common/fit.cpp`` does (llama.cpp of November 2026). It looks at memory alone:

1. If the default split, by free memory, leaves every device its margin, nothing is changed.
2. Else, from the last device to the first, each takes as many of the layers that are left, back to front, as fit; a mixture of
   experts leaves all experts on the host here. What is left after the first device stays on the host.
3. If all of a mixture but the experts fits, devices take whole layers, front to back, as many as fit; the last device then also
   takes a part of one more layer. On the others that part would overflow to the next device, which plans here cannot say: it is
   left out, at most one layer a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.models.llm_placement.plan import Plan, fits, plan_of, used_bytes
from stowplan.models.llm_placement.problem import HOST, Problem, layer_bytes

#: Micro-batch that the runtime has by default: the first one of a problem.
DEFAULT_BATCH = 0


def fit_plan(problem: Problem) -> Plan | None:
    """The plan; None where there is no device, or where the runtime would start without room for it."""
    if not problem.devices:
        return _plan(problem, [HOST] * len(problem.layers), [0] * len(problem.layers))
    memories = default_split(problem)
    if fits(problem, memories, [0] * len(memories), DEFAULT_BATCH):
        return _plan(problem, memories, [0] * len(memories))
    counts = _back_to_front(problem)
    parts = [0] * len(counts)
    if problem.experts:
        parts = [max(0, count - (device == len(counts) - 1)) for device, count in enumerate(counts)]
        if sum(counts) == len(problem.layers):
            counts, parts, partial = _front_to_back(problem, counts, parts)
            return _plan(problem, *_layout(problem, counts, parts, partial))
    return _plan(problem, *_layout(problem, counts, parts, None))


def default_split(problem: Problem) -> list[int]:
    """Memory of each layer by llama.cpp's default: all on devices, in shares of their free memory."""
    free = np.array([device.capacity for device in problem.devices], np.float32)
    return split(len(problem.layers), free, len(problem.layers))


def split(count: int, shares: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float32]], offloaded: int) -> list[int]:
    """Memory of each layer for shares of devices (``-ts``) and a number of layers on devices (``-ngl``).

    Computed with 32-bit floats, as llama.cpp does.

    Parameters
    ----------
    count
        Layers, the output layer among them.
    shares
        Of the devices; the sum is not 0.
    offloaded
        How many of the last layers are on devices.
    """
    ends = np.cumsum(np.asarray(shares, np.float32), dtype=np.float32)
    # Without any memory all layers go to the first device, where they do not fit.
    ends = ends / ends[-1] if ends[-1] else ends + np.float32(1)
    offloaded = min(offloaded, count)
    memories = [HOST] * (count - offloaded)
    for number in range(offloaded):
        place = int(np.searchsorted(ends, np.float32(number) / np.float32(offloaded), side="right"))
        memories.append(1 + min(place, len(ends) - 1))
    return memories


def _plan(problem: Problem, memories: Sequence[int], spilled: Sequence[int]) -> Plan | None:
    return plan_of(problem, memories, spilled, DEFAULT_BATCH) if fits(problem, memories, spilled, DEFAULT_BATCH) else None


def _layout(problem: Problem, counts: Sequence[int], parts: Sequence[int], partial: int | None) -> tuple[list[int], list[int]]:
    """Memories and spilled parts, of layers by device: whole ones first, then those whose experts are spilled.

    ``partial`` is how many parts the first of the last device's partial layers spills; None for all, as the others.
    """
    memories = [HOST] * (len(problem.layers) - sum(counts))
    spilled = [0] * len(memories)
    for device, (count, some) in enumerate(zip(counts, parts, strict=True)):
        for number in range(count):
            layer = problem.layers[len(memories)]
            memories.append(1 + device)
            is_partial = number >= count - some
            parts_here = len(layer.spillable) if is_partial else 0
            if is_partial and partial is not None and number == count - some and device == len(counts) - 1:
                parts_here = min(partial, parts_here)
            spilled.append(parts_here)
    return memories, spilled


def _back_to_front(problem: Problem) -> list[int]:
    """Layers of each device, filled from the last device and the last layer."""
    counts, left = [0] * len(problem.devices), len(problem.layers)
    for device in reversed(range(len(counts))):
        room = problem.room(1 + device, DEFAULT_BATCH)
        while left:
            layer = problem.layers[left - 1]
            is_output = left == len(problem.layers)
            size = layer_bytes(layer, len(layer.spillable) if problem.experts and not is_output else 0)
            if size > room:
                break
            room, left, counts[device] = room - size, left - 1, counts[device] + 1
    return counts


def _front_to_back(problem: Problem, counts: Sequence[int], parts: Sequence[int]) -> tuple[list[int], list[int], int | None]:
    """Layers whose experts are spilled become whole ones, from the first device on, as many as fit."""
    counts, parts = [*counts], [*parts]
    start = next(device for device, count in enumerate(counts) if count)
    last = len(counts) - 1
    for device in range(start + 1):
        while True:
            while start <= last and not parts[start]:
                start += 1
            if start > last or device > start:
                break
            tried, some = [*counts], [*parts]
            tried[start], some[start] = tried[start] - 1, some[start] - 1
            tried[device] += 1
            if not _device_fits(problem, tried, some, device):
                break
            counts, parts = tried, some
        if start > last:
            break
    if start <= last and parts[last] and start == last:
        for spilled in (1, 2, 3):
            memories, amounts = _layout(problem, counts, parts, spilled)
            if fits(problem, memories, amounts, DEFAULT_BATCH):
                return counts, parts, spilled
    return counts, parts, None


def _device_fits(problem: Problem, counts: Sequence[int], parts: Sequence[int], device: int) -> bool:
    memories, spilled = _layout(problem, counts, parts, None)
    return used_bytes(problem, memories, spilled)[1 + device] <= problem.room(1 + device, DEFAULT_BATCH)
