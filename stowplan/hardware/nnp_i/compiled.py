"""Rectification and latencies of many memory maps at once, compiled with numba.

A *memory map* assigns a tier to the weights and to the output of every layer of a network. To *rectify* one that exceeds the
capacity of a tier means to change it by simple rules to one that can be executed. Tiers are numbers from 0, the slowest one.
Shapes of arrays are in brackets: ``[n, T]`` has a row for each of n layers, and a column for each of T tiers. In *step* i the
chip runs layer i.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stowplan.compiled import Ints2D, njit
from stowplan.models.tier_placement.problem import Problem

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Arrays(NamedTuple):
    """A problem with n layers and T tiers as arrays for compiled functions; sizes are in bytes, and times in ps."""

    weights: Ints
    """[n] size of the weights as stored."""
    outputs: Ints
    """[n] size of the output."""
    last: Ints
    """[n] step of the last reader of each output."""
    capacity: Ints
    """[T] capacity of each tier."""
    weight_moves: Ints2D
    """[n, T] time to read a layer's weights from each tier."""
    output_moves: Ints2D
    """[n, T] time to read or write a layer's output once in each tier."""
    first_input: Ints
    """[n + 1] layer ``i`` reads the outputs of the layers ``inputs[first_input[i] : first_input[i + 1]]``."""
    inputs: Ints
    """Numbers of the layers whose outputs each layer reads, for all layers one after the other."""
    external: Ints
    """[n] time to read network inputs."""
    compute: Ints
    """[n] computation time."""
    overhead: int
    """Sum of the overheads of all layers."""


def arrays_of(problem: Problem) -> Arrays:
    """The arrays of a problem."""
    layers, tiers = problem.layers, problem.tiers

    def ints(values: object) -> Ints:
        return np.array(values, np.int64)

    return Arrays(
        weights=ints([layer.weight_bytes for layer in layers]),
        outputs=ints([layer.output_bytes for layer in layers]),
        last=ints(problem.last_use),
        capacity=ints([tier.capacity for tier in tiers]),
        weight_moves=ints([[tier.move_ps(layer.weights_read) for tier in tiers] for layer in layers]),
        output_moves=ints([[tier.move_ps(layer.output_bytes) for tier in tiers] for layer in layers]),
        first_input=np.cumsum([0, *(len(layer.inputs) for layer in layers)], dtype=np.int64),
        inputs=ints([source for layer in layers for source in layer.inputs]),
        external=ints([tiers[0].move_ps(layer.external_bytes) for layer in layers]),
        compute=ints([layer.compute_ps for layer in layers]),
        overhead=sum(layer.overhead_ps for layer in layers),
    )


class Workspace(NamedTuple):
    """Arrays with which the rectification of one memory map works."""

    used: Ints2D
    """[T, n] bytes of outputs in each tier at each step."""
    stored: Ints
    """[T] bytes of weights in each tier."""
    peak: Ints
    """[T] largest number of bytes of outputs in each tier at one step."""


def workspace_for(data: Arrays) -> Workspace:
    """Arrays of the right shapes for a problem, whose values are arbitrary."""
    tiers = len(data.capacity)
    return Workspace(np.empty((tiers, len(data.weights)), np.int64), np.empty(tiers, np.int64), np.empty(tiers, np.int64))


def latencies(data: Arrays, weight_tiers: Ints, output_tiers: Ints) -> Ints:
    """[K] the latencies in ps of memory maps, whose tiers of weights and outputs have shape ``[K, n]``."""
    latency = np.empty(len(weight_tiers), np.int64)
    _latencies(data, np.ascontiguousarray(weight_tiers), np.ascontiguousarray(output_tiers), latency)
    return latency


@njit
def _latencies(data: Arrays, weight_tiers: Ints2D, output_tiers: Ints2D, latency: Ints) -> None:
    """Computes ``latency``, of shape ``[K]``; see :func:`latencies`."""
    count, layers = weight_tiers.shape
    for k in range(count):
        latency[k] = data.overhead
        for i in range(layers):
            moved = data.external[i] + data.weight_moves[i, weight_tiers[k, i]] + data.output_moves[i, output_tiers[k, i]]
            for at in range(data.first_input[i], data.first_input[i + 1]):
                source = data.inputs[at]
                moved += data.output_moves[source, output_tiers[k, source]]
            latency[k] += max(moved, data.compute[i])


def rectify(data: Arrays, weight_tiers: Ints, output_tiers: Ints) -> Ints:
    """Rectifies memory maps in place, for problems that only count the bytes in each tier.

    Problems in which tensors also need offsets (``Problem.address_spaces``) are not supported.

    Tensors are placed layer by layer, the weights before the output. A tensor that does not fit in its tier goes to the next
    slower tier in which it fits, or else to the next faster one.

    Parameters
    ----------
    data
        The problem.
    weight_tiers, output_tiers
        ``[K, n]`` the proposed tiers, as contiguous arrays, which are changed in place.

    Returns
    -------
    array
        ``[K]`` number of bytes whose tier changed; -1 if a tensor does not fit in any tier, in which case the memory map is
        changed only in part.
    """
    moved = np.zeros(len(weight_tiers), np.int64)
    _rectify(data, weight_tiers, output_tiers, moved, workspace_for(data))
    return moved


@njit
def _rectify(data: Arrays, weight_tiers: Ints2D, output_tiers: Ints2D, moved: Ints, work: Workspace) -> None:
    """Rectifies memory maps in place; ``moved``, which must be zero, becomes the result of :func:`rectify`."""
    count, layers = weight_tiers.shape
    tiers = len(data.capacity)
    used, stored, peak = work
    for k in range(count):
        used[:] = 0
        stored[:] = 0
        peak[:] = 0
        for i in range(layers):
            size = data.weights[i]
            if size == 0:
                weight_tiers[k, i] = 0
            else:
                proposed = weight_tiers[k, i]
                tier = -1
                for attempt in range(tiers):
                    t = proposed - attempt if attempt <= proposed else attempt
                    if stored[t] + peak[t] + size <= data.capacity[t]:
                        tier = t
                        break
                if tier < 0:
                    moved[k] = -1
                    break
                stored[tier] += size
                weight_tiers[k, i] = tier
                if tier != proposed:
                    moved[k] += size
            size = data.outputs[i]
            proposed = output_tiers[k, i]
            tier = -1
            for attempt in range(tiers):
                t = proposed - attempt if attempt <= proposed else attempt
                free = data.capacity[t] - stored[t] - size
                fits = free >= 0
                if fits:
                    for step in range(i, data.last[i] + 1):
                        if used[t, step] > free:
                            fits = False
                            break
                if fits:
                    tier = t
                    break
            if tier < 0:
                moved[k] = -1
                break
            for step in range(i, data.last[i] + 1):
                used[tier, step] += size
                peak[tier] = max(peak[tier], used[tier, step])
            output_tiers[k, i] = tier
            if tier != proposed:
                moved[k] += size
