"""Many memory maps at once: what the compiler makes of them, and how long they take; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stowplan.compiled import Ints2D, njit
from stowplan.models.tier_placement.problem import Problem

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Arrays(NamedTuple):
    """A problem as compiled code reads it: n layers, T tiers; bytes and picoseconds."""

    weights: Ints
    """[n] Bytes stored."""
    outputs: Ints
    """[n]"""
    last: Ints
    """[n] Step of the last reader of each output."""
    capacity: Ints
    """[T]"""
    weight_moves: Ints2D
    """[n, T] Picoseconds to read the weights from each tier."""
    output_moves: Ints2D
    """[n, T] Picoseconds to move the output once."""
    first_input: Ints
    """[n + 1] Layer i reads the outputs ``inputs[first_input[i] : first_input[i + 1]]``."""
    inputs: Ints
    external: Ints
    """[n] Picoseconds to read network inputs."""
    compute: Ints
    """[n]"""
    overhead: int
    """Sum of all."""


def arrays_of(problem: Problem) -> Arrays:
    """Arrays of a problem."""
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


class Room(NamedTuple):
    """Room to work in."""

    used: Ints2D
    """[T, n]"""
    stored: Ints
    """[T]"""
    peak: Ints
    """[T]"""


def room_for(data: Arrays) -> Room:
    """Room for a problem."""
    tiers = len(data.capacity)
    return Room(np.empty((tiers, len(data.weights)), np.int64), np.empty(tiers, np.int64), np.empty(tiers, np.int64))


def latencies(data: Arrays, weight_tiers: Ints, output_tiers: Ints) -> Ints:
    """[K] Latencies of maps ``[K, n]``, ps."""
    latency = np.empty(len(weight_tiers), np.int64)
    _latencies(data, np.ascontiguousarray(weight_tiers), np.ascontiguousarray(output_tiers), latency)
    return latency


@njit
def _latencies(data: Arrays, weight_tiers: Ints2D, output_tiers: Ints2D, latency: Ints) -> None:
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
    """Make maps ``[K, n]`` executable, in place, by the compiler's rules; tiers are no address spaces.

    Layer by layer, weights before the output: the tier that is meant, then ever slower ones, then faster ones. Returns bytes
    re-assigned ``[K]``; -1 where a tensor found no room at all.
    """
    moved = np.zeros(len(weight_tiers), np.int64)
    _rectify(data, weight_tiers, output_tiers, moved, room_for(data))
    return moved


@njit
def _rectify(data: Arrays, weight_tiers: Ints2D, output_tiers: Ints2D, moved: Ints, work: Room) -> None:
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
                wanted = weight_tiers[k, i]
                tier = -1
                for turn in range(tiers):
                    t = wanted - turn if turn <= wanted else turn
                    if stored[t] + peak[t] + size <= data.capacity[t]:
                        tier = t
                        break
                if tier < 0:
                    moved[k] = -1
                    break
                stored[tier] += size
                weight_tiers[k, i] = tier
                if tier != wanted:
                    moved[k] += size
            size = data.outputs[i]
            wanted = output_tiers[k, i]
            tier = -1
            for turn in range(tiers):
                t = wanted - turn if turn <= wanted else turn
                room = data.capacity[t] - stored[t] - size
                fits = room >= 0
                if fits:
                    for step in range(i, data.last[i] + 1):
                        if used[t, step] > room:
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
            if tier != wanted:
                moved[k] += size
