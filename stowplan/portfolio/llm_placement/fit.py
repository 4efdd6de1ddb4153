"""The placement that llama.cpp chooses without a plan: that of its option ``--fit``, which is on by default.

A plan gives each layer of a language model a *memory*: number 0 is the host's (the CPU with its RAM), and number d + 1 that of
device d. A device's *margin* is the number of its free bytes that must stay free. Parts of a layer that stay on the host
although the layer is on a device are *spilled*. In a mixture-of-experts model, these parts are the experts, and a layer with
all experts spilled is *partial*. The rules were derived from ``common/fit.cpp`` (llama.cpp of November 2026). They look at
memory alone:

1. If the default split, in proportion to free memory, leaves every device its margin, it is used.
2. Otherwise the devices are filled one by one, from the last device to the first. Each takes as many of the remaining layers as
   fit, from the last layer on. In a mixture-of-experts model, all layers but the output layer are partial in this step. Layers
   that remain after the first device stay on the host.
3. If this step places all layers of a mixture-of-experts model on devices, partial layers become whole, from the first device
   on, as far as they fit. On the last device, one more layer then keeps some of its experts. On any other device, llama.cpp
   would put parts of such a layer on the next device. Plans cannot express that, so it is left out; it concerns at most one
   layer for each device.

The functions raise no errors, except as stated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.models.llm_placement.plan import Plan, fits, plan_of, used_bytes
from stowplan.models.llm_placement.problem import HOST, Problem, layer_bytes

#: Number of the micro-batch that llama.cpp uses by default: the first one of a problem.
DEFAULT_BATCH = 0


def fit_plan(problem: Problem) -> Plan | None:
    """The plan of ``--fit``; None if it does not fit into the memories of the host and of the devices in use.

    Without devices, all layers are on the host.
    """
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
    """The memory of each layer in llama.cpp's default split: all layers are on devices, in proportion to their free memory.

    Raises IndexError if the problem has no devices.
    """
    free = np.array([device.capacity for device in problem.devices], np.float32)
    return split(len(problem.layers), free, len(problem.layers))


def split(count: int, shares: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float32]], offloaded: int) -> list[int]:
    """The memory of each layer for shares of devices (``-ts``) and a number of layers on devices (``-ngl``).

    It is computed with 32-bit floats, as in llama.cpp.

    Parameters
    ----------
    count
        Number of layers, including the output layer.
    shares
        Share of each device, in any unit; at least one.
    offloaded
        How many of the last layers are on devices; a number above ``count`` stands for all layers.

    Returns
    -------
    list of int
        ``[count]`` numbers of memories, in ascending order.

    Raises
    ------
    IndexError
        There are no shares.
    """
    ends = np.cumsum(np.asarray(shares, np.float32), dtype=np.float32)
    # If all shares are 0, all offloaded layers go to the first device.
    ends = ends / ends[-1] if ends[-1] else ends + np.float32(1)
    offloaded = min(offloaded, count)
    memories = [HOST] * (count - offloaded)
    for number in range(offloaded):
        place = int(np.searchsorted(ends, np.float32(number) / np.float32(offloaded), side="right"))
        memories.append(1 + min(place, len(ends) - 1))
    return memories


def _plan(problem: Problem, memories: Sequence[int], spilled: Sequence[int]) -> Plan | None:
    """The plan with these memories and numbers of spilled parts of layers; None if it does not fit."""
    return plan_of(problem, memories, spilled, DEFAULT_BATCH) if fits(problem, memories, spilled, DEFAULT_BATCH) else None


def _layout(problem: Problem, counts: Sequence[int], parts: Sequence[int], partial: int | None) -> tuple[list[int], list[int]]:
    """The memory and the number of spilled parts of each layer.

    Device d has ``counts[d]`` layers, and the last ``parts[d]`` of them are partial. The layers before those of the first
    device are on the host. ``partial`` is the number of parts that the first partial layer of the last device spills; None for
    all parts.
    """
    memories = [HOST] * (len(problem.layers) - sum(counts))
    spilled = [0] * len(memories)
    for device, (count, partial_count) in enumerate(zip(counts, parts, strict=True)):
        for number in range(count):
            layer = problem.layers[len(memories)]
            memories.append(1 + device)
            is_partial = number >= count - partial_count
            parts_here = len(layer.spillable) if is_partial else 0
            if is_partial and partial is not None and number == count - partial_count and device == len(counts) - 1:
                parts_here = min(partial, parts_here)
            spilled.append(parts_here)
    return memories, spilled


def _back_to_front(problem: Problem) -> list[int]:
    """The number of layers of each device, filled from the last device and the last layer on (rule 2)."""
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
    """Turn partial layers into whole ones, from the first device on, as many as fit (rule 3).

    Takes the numbers of layers and of partial layers of each device, and returns the arguments ``counts``, ``parts`` and
    ``partial`` of :func:`_layout`. All layers must be on devices.
    """
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
        # The layer spills as few parts as possible. It has at most three: down, gate and up.
        for spilled in (1, 2, 3):
            memories, amounts = _layout(problem, counts, parts, spilled)
            if fits(problem, memories, amounts, DEFAULT_BATCH):
                return counts, parts, spilled
    return counts, parts, None


def _device_fits(problem: Problem, counts: Sequence[int], parts: Sequence[int], device: int) -> bool:
    """Whether the layers of one device fit, if devices have these numbers of layers and of partial layers."""
    memories, spilled = _layout(problem, counts, parts, None)
    return used_bytes(problem, memories, spilled)[1 + device] <= problem.room(1 + device, DEFAULT_BATCH)
