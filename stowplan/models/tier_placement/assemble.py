"""Between plans and what models decide: the tier of each tensor."""

from __future__ import annotations

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.structure import Structure


def plan_of(structure: Structure, tier_of: list[int], offsets: list[int] | None = None) -> Plan:
    """Plan with every tensor in its tier, and at its offset where there are any."""

    def each_layer(numbers: list[int | None] | list[int], values: list[int]) -> tuple[int, ...]:
        return tuple(0 if number is None else values[number] for number in numbers)

    return Plan(
        problem=structure.problem.digest,
        objective_ps=structure.latency_ps(tier_of),
        weight_tiers=each_layer(structure.weights, tier_of),
        output_tiers=each_layer(structure.outputs, tier_of),
        weight_offsets=() if offsets is None else each_layer(structure.weights, offsets),
        output_offsets=() if offsets is None else each_layer(structure.outputs, offsets),
    )


def tiers_of(structure: Structure, plan: Plan) -> list[int]:
    """Tier of each tensor in a plan."""
    return [(plan.output_tiers if tensor.is_output else plan.weight_tiers)[tensor.layer] for tensor in structure.tensors]


def offsets_of(structure: Structure, plan: Plan) -> list[int] | None:
    """Offset of each tensor in a plan; None where it has none."""
    if not plan.output_offsets:
        return None
    return [(plan.output_offsets if tensor.is_output else plan.weight_offsets)[tensor.layer] for tensor in structure.tensors]
