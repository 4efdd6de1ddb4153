"""Builds the tier-placement problem of a network on a target, and computes latencies of memory maps.

A *memory map* assigns a tier to the weights and to the output of every layer. The network has numbers of elements and of
operations; the problem has sizes in bytes and computation times in picoseconds instead. The problem also has features of the
layers, which are inputs of learned policies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stowplan.hardware.network import ELEMENT_BYTES, OPS, Network, Precision
from stowplan.hardware.nnp_i.target import TierTarget
from stowplan.log import bounded
from stowplan.models.tier_placement.problem import Layer, Problem, Tier

#: Names of the features of a layer, in the order of table 1 of Khadka et al., ICLR 2021. ``ifm`` is the input feature map and
#: ``ofm`` the output feature map. :func:`node_features` says what the other abbreviations mean.
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
    """The features of all layers, without scaling: a row for each layer, in the order of :data:`FEATURES`.

    Sizes of feature maps are in elements, and sizes of weights in bytes. ``n_w_left`` is the size of the weights of the layer
    and all later ones; ``n_ops_left`` is the number of later layers. ``op_id`` is the position of the operation in
    :data:`stowplan.hardware.network.OPS`.
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
    """Builds the problem of placing a network's tensors in a target's tiers.

    Parameters
    ----------
    network
        The network.
    target
        The chip.
    precision
        Precision of weights and activations.
    address_spaces
        Whether a plan gives every tensor an offset in its tier.

    Returns
    -------
    Problem
        The problem, with sizes in bytes, times in ps, and features of the layers for learned policies.

    Raises
    ------
    InputError
        The target has no speeds for the precision, or a size is larger than problems allow.
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
            # Quantities are converted to plain integers, since files of problems have no units.
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


#: An array with an integer for each layer.
IntArray = npt.NDArray[np.int64]


def layers_ps(problem: Problem, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> IntArray:
    """The latency of every layer in ps for a memory map, which is given by the tier of each layer's weights and output.

    A layer takes the time of its computation or of its memory traffic, whichever is longer, plus its overhead. Inputs of the
    network are read from tier 0, the slowest one. Raises IndexError if a layer has no tier or a tier does not exist.
    """
    tiers, latencies = problem.tiers, []
    for number, layer in enumerate(problem.layers):
        moved = tiers[0].move_ps(layer.external_bytes)
        moved += tiers[weight_tiers[number]].move_ps(layer.weights_read)
        moved += tiers[output_tiers[number]].move_ps(layer.output_bytes)
        moved += sum(tiers[output_tiers[source]].move_ps(problem.layers[source].output_bytes) for source in layer.inputs)
        latencies.append(max(layer.compute_ps, moved) + layer.overhead_ps)
    return np.array(latencies, np.int64)


def latency_ps(problem: Problem, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> int:
    """The latency of the network in ps for a memory map: the sum of :func:`layers_ps`."""
    return int(layers_ps(problem, weight_tiers, output_tiers).sum())
