"""A mapper in the manner of a native compiler: simple rules, one pass over the layers, nothing is taken back.

The paper says of the chip's compiler that it is "a collection of heuristic rules specific to the compute and memory capacity of
the hardware"; these are of that kind, not the product's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stowplan.errors import InputError
from stowplan.hardware.nnp_i.room import Room
from stowplan.hardware.nnp_i.timing import Timing
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

#: Weights go to a tier only where they are at most this part of it, for they block it for the whole inference ...
WEIGHT_PART = 1 / 8
#: ... and all weights together fill no more than this part, but for the slowest tier: the rest is for activations.
WEIGHTS_PART = 0.75
#: Activations that are read more than once may fill a tier; others at most this part of it.
SINGLE_USE_PART = 0.25


class MemoryMap(NamedTuple):
    """Tiers of all tensors, and their offsets; entries of weights of 0 bytes are 0."""

    weight_tiers: tuple[int, ...]
    output_tiers: tuple[int, ...]
    weight_offsets: tuple[int, ...] = ()
    output_offsets: tuple[int, ...] = ()


def compiler_map(problem: Problem) -> MemoryMap:
    """The compiler's own map.

    Returns
    -------
    MemoryMap
        Numbers of tiers ``[layers]``, of weights and of outputs; valid for the problem.

    Raises
    ------
    InputError
        A tensor finds no room in any tier.
    """
    room = Room(problem)
    placer = Placer(problem, room)
    for number, layer in enumerate(problem.layers):
        if layer.weight_bytes:
            preferred = _preferred_for_weights(problem, room, layer.weight_bytes)
            placer.weights(number, spill_order(preferred, len(problem.tiers)))
        reads = sum(number in other.inputs for other in problem.layers[number + 1 : problem.last_use[number] + 1])
        part = 1.0 if reads > 1 else SINGLE_USE_PART
        preferred = _preferred(problem, [layer.output_bytes <= part * tier.capacity for tier in problem.tiers])
        placer.output(number, spill_order(preferred, len(problem.tiers)))
    return placer.map()


def compiler_plan(problem: Problem) -> Plan | None:
    """The compiler's map as a plan.

    Returns
    -------
    Plan or None
        With its latency in ps, without offsets; None where the compiler finds no room for a tensor.
    """
    try:
        found = compiler_map(problem)
    except InputError:
        return None
    return Plan(
        problem=problem.digest,
        objective_ps=Timing(problem).latency_ps(found.weight_tiers, found.output_tiers),
        **found._asdict(),
    )


def spill_order(preferred: int, tiers: int) -> list[int]:
    """The tier that was meant, then ever slower ones, then faster ones."""
    return [*range(preferred, -1, -1), *range(preferred + 1, tiers)]


def _preferred_for_weights(problem: Problem, room: Room, size: int) -> int:
    return _preferred(
        problem,
        [
            size <= WEIGHT_PART * tier.capacity and filled + size <= WEIGHTS_PART * tier.capacity
            for tier, filled in zip(problem.tiers, room.weights, strict=True)
        ],
    )


def _preferred(problem: Problem, suits: list[bool]) -> int:
    """The fastest tier that suits; the slowest, where none does."""
    return max((tier for tier in range(len(problem.tiers)) if suits[tier]), default=0)


class Placer:
    """Places tensors one after the other, and remembers where."""

    def __init__(self, problem: Problem, room: Room):
        self._problem, self._room = problem, room
        count = len(problem.layers)
        self._tiers = ([0] * count, [0] * count)
        self._offsets = ([0] * count, [0] * count)

    def weights(self, number: int, order: Iterable[int]) -> int:
        """Place a layer's weights in the first tier of ``order`` with room for them; its number. InputError where none has."""
        size = self._problem.layers[number].weight_bytes
        tier = self._place(0, number, size, (0, len(self._problem.layers) - 1), order)
        self._room.weights[tier] += size
        return tier

    def output(self, number: int, order: Iterable[int]) -> int:
        """The same for its output."""
        size = self._problem.layers[number].output_bytes
        return self._place(1, number, size, (number, self._problem.last_use[number]), order)

    def _place(self, what: int, number: int, size: int, span: tuple[int, int], order: Iterable[int]) -> int:
        for tier in order:
            offset = self._room.take(tier, size, *span)
            if offset is not None:
                self._tiers[what][number], self._offsets[what][number] = tier, offset
                return tier
        layer = self._problem.layers[number].name
        free = ", ".join(f"{self._room.free(at, *span)} in {each.name}" for at, each in enumerate(self._problem.tiers))
        kind = "output" if what else "weights"
        raise InputError(f"no tier has room for the {size} bytes of its {kind}: free are {free}", place=f"layer {layer}")

    def map(self) -> MemoryMap:
        """Where everything stands."""
        tiers = tuple(self._tiers[0]), tuple(self._tiers[1])
        if not self._problem.address_spaces:
            return MemoryMap(*tiers)
        return MemoryMap(*tiers, tuple(self._offsets[0]), tuple(self._offsets[1]))
