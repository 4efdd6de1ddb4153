"""What two memory maps of a network do differently."""

from __future__ import annotations

from stowplan.models.plan_diff import Part, Values, compare_parts
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

#: Number of a layer, and which of its tensors.
_Key = tuple[int, str]


def diff(problem: Problem, first: Plan, second: Plan) -> tuple[Part, ...]:
    """Tensors in another tier, or at another offset; both plans are valid for the problem."""

    def tensors(plan: Plan) -> dict[_Key, Values]:
        found: dict[_Key, Values] = {}
        for number, layer in enumerate(problem.layers):
            for what, size, tiers, offsets in (
                ("weights", layer.weight_bytes, plan.weight_tiers, plan.weight_offsets),
                ("output", layer.output_bytes, plan.output_tiers, plan.output_offsets),
            ):
                if size:
                    found[number, what] = {"tier": problem.tiers[tiers[number]].name}
                    if offsets:
                        found[number, what]["offset"] = offsets[number]
        return found

    return (compare_parts("tensor", tensors(first), tensors(second), lambda key: f"{problem.layers[key[0]].name} {key[1]}"),)
