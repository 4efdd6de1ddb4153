"""A network on a target as a tier-placement problem, its node features, and how long it takes with a memory map.

Elements become bytes, operations become picoseconds; a map's latency is that of all layers at once, in whole picoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stowplan.hardware.network import ELEMENT_BYTES, OPS, Network, Precision
from stowplan.hardware.nnp_i.target import TierTarget
from stowplan.log import bounded
from stowplan.models.tier_placement.problem import Layer, Problem, Tier

#: Names of the columns, in the order of the table.
FEATURES = (
    "op_id",
    "weight_size",
    "ifm_x",
    "ifm_y",
    "ifm_z",
    "ofm_x",
    "ofm_y",
    "ofm_z",
    "ifm_size",
    "ofm_size",
    "n_ops_left",
    "n_w_left",
    "groups",
    "kernel_x",
    "kernel_y",
    "stride",
    "pad",
    "dilation",
    "batch",
)


def node_features(network: Network, precision: Precision) -> tuple[tuple[int, ...], ...]:
    """Raw features, ``[layers][19]``, unscaled.

    Sizes of feature maps are elements, the weights' size is bytes. ``n_w_left`` is the bytes of weights from the node to the
    last, its own included; ``n_ops_left`` the layers after it.
    """
    width = ELEMENT_BYTES[precision]
    rows: list[tuple[int, ...]] = []
    weights_left = network.weight_elements * width
    for number, layer in enumerate(network.layers):
        weights = layer.weight_elements * width
        x, y, z = layer.input_shape
        rows.append(
            (
                OPS.index(layer.op),
                weights,
                *layer.input_shape,
                *layer.output_shape,
                x * y * z,
                layer.output_shape[0] * layer.output_shape[1] * layer.output_shape[2],
                len(network.layers) - 1 - number,
                weights_left,
                layer.groups,
                layer.kernel_x,
                layer.kernel_y,
                layer.stride,
                layer.pad,
                layer.dilation,
                layer.batch,
            )
        )
        weights_left -= weights
    return tuple(rows)


def build_problem(
    network: Network, target: TierTarget, precision: Precision = "int8", *, address_spaces: bool = False
) -> Problem:
    """The problem of placing a network's tensors in a target's tiers.

    Parameters
    ----------
    precision
        Of weights and activations alike.
    address_spaces
        Whether a plan gives every tensor an offset in its tier.

    Returns
    -------
    Problem
        Sizes in bytes, times in ps; with the features of the network's layers for agents.

    Raises
    ------
    InputError
        The target has no speeds for the precision, or sizes are beyond all bounds.
    """
    width = ELEMENT_BYTES[precision]
    layers = tuple(
        Layer(
            name=layer.name,
            op=layer.op,
            inputs=layer.inputs,
            output_bytes=layer.output_elements * width,
            weight_bytes=layer.weight_elements * width,
            weight_read_bytes=None if layer.weight_read_elements is None else layer.weight_read_elements * width,
            external_bytes=external * width,
            compute_ps=target.compute_ps(layer, precision),
            overhead_ps=int(target.overhead.layer),
        )
        for layer, external in zip(network.layers, network.external_elements, strict=True)
    )
    return Problem(
        tiers=tuple(
            # Plain integers: the target's have the units they were written with, which no file of ours does.
            Tier(
                name=memory.name,
                capacity=int(memory.capacity),
                bandwidth=int(memory.bandwidth),
                alignment=int(memory.alignment),
            )
            for memory in target.tiers
        ),
        layers=layers,
        address_spaces=address_spaces,
        features=node_features(network, precision),
        name=network.name,
        target=target.name,
        cost_model=f"roofline {precision}",
        notes=bounded(network.notes),
    )


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
