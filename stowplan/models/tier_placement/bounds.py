"""What can be proven about a tier-placement problem without branching: why nothing fits, floors, and the linear bound."""

from __future__ import annotations

from dataclasses import dataclass

from stowplan.models.tier_placement.problem import Problem


@dataclass(frozen=True)
class Overload:
    """Tensors that cannot all stand somewhere."""

    step: int
    """A step at which they all take room."""
    size: int
    """Bytes they need together."""
    room: int
    """Bytes there are for them."""
    reason: str
    """One sentence for people."""


def find_overload(problem: Problem) -> Overload | None:
    """Why no plan fits, where that shows at once: a tensor larger than every tier, or too many bytes at a step."""
    largest = max(tier.capacity for tier in problem.tiers)
    room = sum(tier.capacity for tier in problem.tiers)
    weights = sum(layer.weight_bytes for layer in problem.layers)
    for number, layer in enumerate(problem.layers):
        for what, size in (("weights of layer {} have", layer.weight_bytes), ("output of layer {} has", layer.output_bytes)):
            if size > largest:
                reason = f"the {what.format(layer.name)} {size} bytes, the largest tier has {largest}"
                return Overload(number, size, largest, reason)
    ends: dict[int, int] = {}
    live = 0
    for number, layer in enumerate(problem.layers):
        live += layer.output_bytes
        ends[problem.last_use[number]] = ends.get(problem.last_use[number], 0) + layer.output_bytes
        if weights + live > room:
            reason = f"{weights} bytes of weights and {live} of activations live at layer {layer.name}, all tiers hold {room}"
            return Overload(number, weights + live, room, reason)
        live -= ends.pop(number, 0)
    return None


def floor_bound(problem: Problem) -> int:
    """Latency in ps were everything in the fastest tier: no plan need reach it."""
    fastest = problem.tiers[-1]
    total = 0
    for layer in problem.layers:
        moved = [layer.weights_read, layer.output_bytes, *(problem.layers[source].output_bytes for source in layer.inputs)]
        memory = sum(map(fastest.move_ps, moved)) + problem.tiers[0].move_ps(layer.external_bytes)
        total += layer.overhead_ps + max(layer.compute_ps, memory)
    return total
