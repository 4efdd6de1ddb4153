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


def layers_ps(problem: Problem, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> IntArray:
    """Latency of every layer, ps, ``[layers]``, where the weights and the output of each stand in these tiers."""
    tiers, latencies = problem.tiers, []
    for number, layer in enumerate(problem.layers):
        moved = tiers[0].move_ps(layer.external_bytes)
        moved += tiers[weight_tiers[number]].move_ps(layer.weights_read)
        moved += tiers[output_tiers[number]].move_ps(layer.output_bytes)
        moved += sum(tiers[output_tiers[source]].move_ps(problem.layers[source].output_bytes) for source in layer.inputs)
        latencies.append(max(layer.compute_ps, moved) + layer.overhead_ps)
    return np.array(latencies, np.int64)


def latency_ps(problem: Problem, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> int:
    """Latency of the network, ps: the sum of :func:`layers_ps`."""
    return int(layers_ps(problem, weight_tiers, output_tiers).sum())
