"""A network on a target as a tier-placement problem: elements become bytes, operations become picoseconds."""

from __future__ import annotations

from stowplan.hardware.network import ELEMENT_BYTES, Network, Precision
from stowplan.hardware.nnp_i.features import node_features
from stowplan.hardware.nnp_i.target import TierTarget
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from stowplan.notes import bounded


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
