"""How long a network takes with a memory map: all layers at once, in whole picoseconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stowplan.models.tier_placement.problem import Problem

IntArray = npt.NDArray[np.int64]


class Timing:
    """Latencies of maps. A map is the tier of each layer's weights and of each layer's output."""

    def __init__(self, problem: Problem):
        self.problem = problem
        count = len(problem.layers)
        layer_of: list[int] = []
        tensor_of: list[int] = []
        sizes: list[int] = []
        # Tensors: weights of layers 0, 1, ..., then outputs of layers 0, 1, ...
        for number, layer in enumerate(problem.layers):
            for tensor, size in (
                (number, layer.weights_read),
                *((count + source, problem.layers[source].output_bytes) for source in layer.inputs),
                (count + number, layer.output_bytes),
            ):
                layer_of.append(number)
                tensor_of.append(tensor)
                sizes.append(size)
        self._layer, self._tensor = np.array(layer_of, np.int64), np.array(tensor_of, np.int64)
        self._size = np.array(sizes, np.int64)
        self._moves = np.array([[tier.move_ps(size) for tier in problem.tiers] for size in sizes], np.int64)
        """ps of each transfer in each tier, ``[transfers, tiers]``."""
        self._first = np.searchsorted(self._layer, np.arange(count))
        self._external = np.array([problem.tiers[0].move_ps(layer.external_bytes) for layer in problem.layers], np.int64)
        self._compute = np.array([layer.compute_ps for layer in problem.layers], np.int64)
        self._overhead = np.array([layer.overhead_ps for layer in problem.layers], np.int64)

    def latency_ps(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> int:
        """Latency of the network."""
        return int(self.layers_ps(weight_tiers, output_tiers).sum())

    def layers_ps(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> IntArray:
        """Latency of every layer, ``[layers]``."""
        moves = self._moves[np.arange(len(self._size)), self._tiers(weight_tiers, output_tiers)]
        memory = np.add.reduceat(moves, self._first) + self._external
        latencies: IntArray = np.maximum(memory, self._compute) + self._overhead
        return latencies

    def _tiers(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> IntArray:
        both: IntArray = np.concatenate([np.asarray(weight_tiers, np.int64), np.asarray(output_tiers, np.int64)])
        return both[self._tensor]
