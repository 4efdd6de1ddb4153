"""A mapper in the manner of a native compiler: simple rules, one pass over the layers, nothing is taken back.

The paper says of the chip's compiler that it is "a collection of heuristic rules specific to the compute and memory capacity of
the hardware"; these are of that kind, not the product's own. The same rules make a map that cannot be executed one that can:
Khadka et al., ICLR 2021, algorithm 1, lines 6 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from stowplan.arguments import show
from stowplan.errors import InputError, UsageError
from stowplan.hardware.nnp_i.problem import latency_ps
from stowplan.models.first_fit import FirstFit
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem


class Occupancy:
    """The tiers of a problem, filling up. Where tiers are address spaces, every tensor gets the lowest offset that is free."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._used = np.zeros((len(problem.tiers), len(problem.layers)), np.int64)
        """Bytes taken in each tier at each step."""
        self._spaces = [FirstFit(tier.capacity) for tier in problem.tiers]
        """What lies where in each tier; kept for address spaces only."""
        self.weights = [0] * len(problem.tiers)
        """Bytes of weights in each tier."""

    def free(self, tier: int, first: int, last: int) -> int:
        """Bytes that are free in a tier at all the steps from first to last."""
        return self._problem.tiers[tier].capacity - int(self._used[tier, first : last + 1].max())

    def take(self, tier: int, size: int, first: int, last: int) -> int | None:
        """Offset for a tensor that takes room from step first to step last (0 where only bytes count); None: it has none."""
        if self.free(tier, first, last) < size:
            return None
        offset: int | None = 0
        if self._problem.address_spaces and size:
            offset = self._spaces[tier].take(first, last + 1, size, self._problem.tiers[tier].alignment)
        if offset is not None:
            self._used[tier, first : last + 1] += size
        return offset


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
    occupancy = Occupancy(problem)
    placer = Placer(problem, occupancy)
    for number, layer in enumerate(problem.layers):
        if layer.weight_bytes:
            preferred = _preferred_for_weights(problem, occupancy, layer.weight_bytes)
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
        memory_map = compiler_map(problem)
    except InputError:
        return None
    return plan_of(problem, memory_map)


def plan_of(problem: Problem, memory_map: MemoryMap) -> Plan:
    """A map that can be executed, as a plan."""
    latency = latency_ps(problem, memory_map.weight_tiers, memory_map.output_tiers)
    return Plan(problem=problem.digest, objective=latency, **memory_map._asdict())


def spill_order(preferred: int, tiers: int) -> list[int]:
    """The tier that was meant, then ever slower ones, then faster ones."""
    return [*range(preferred, -1, -1), *range(preferred + 1, tiers)]


def _preferred_for_weights(problem: Problem, occupancy: Occupancy, size: int) -> int:
    return _preferred(
        problem,
        [
            size <= WEIGHT_PART * tier.capacity and filled + size <= WEIGHTS_PART * tier.capacity
            for tier, filled in zip(problem.tiers, occupancy.weights, strict=True)
        ],
    )


def _preferred(problem: Problem, suits: list[bool]) -> int:
    """The fastest tier that suits; the slowest, where none does."""
    return max((tier for tier in range(len(problem.tiers)) if suits[tier]), default=0)


class Placer:
    """Places tensors one after the other, and remembers where."""

    def __init__(self, problem: Problem, occupancy: Occupancy):
        self._problem, self._occupancy = problem, occupancy
        count = len(problem.layers)
        self._tiers = ([0] * count, [0] * count)
        self._offsets = ([0] * count, [0] * count)

    def weights(self, number: int, order: Iterable[int]) -> int:
        """Place a layer's weights in the first tier of ``order`` with room for them; its number. InputError where none has."""
        size = self._problem.layers[number].weight_bytes
        tier = self._place(0, number, size, (0, len(self._problem.layers) - 1), order)
        self._occupancy.weights[tier] += size
        return tier

    def output(self, number: int, order: Iterable[int]) -> int:
        """The same for its output."""
        size = self._problem.layers[number].output_bytes
        return self._place(1, number, size, (number, self._problem.last_use[number]), order)

    def _place(self, what: int, number: int, size: int, span: tuple[int, int], order: Iterable[int]) -> int:
        for tier in order:
            offset = self._occupancy.take(tier, size, *span)
            if offset is not None:
                self._tiers[what][number], self._offsets[what][number] = tier, offset
                return tier
        layer = self._problem.layers[number].name
        free = ", ".join(f"{self._occupancy.free(at, *span)} in {tier.name}" for at, tier in enumerate(self._problem.tiers))
        kind = "output" if what else "weights"
        raise InputError(f"no tier has room for the {size} bytes of its {kind}: free are {free}", place=f"layer {layer}")

    def map(self) -> MemoryMap:
        """Where everything stands."""
        tiers = tuple(self._tiers[0]), tuple(self._tiers[1])
        if not self._problem.address_spaces:
            return MemoryMap(*tiers)
        return MemoryMap(*tiers, tuple(self._offsets[0]), tuple(self._offsets[1]))


class Rectified(NamedTuple):
    """What became of a proposal."""

    map: MemoryMap
    """It can be executed."""
    epsilon: float
    """Bytes of the tensors that were re-assigned over the bytes of all: 0 where the proposal could be executed as it is."""


class Rectifier:
    """The compiler's check of proposals for one problem.

    This is the plain form, one proposal at a time, and the only one for tiers that are address spaces.
    :func:`stowplan.hardware.nnp_i.compiled.rectify` does the same for many, compiled.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._weights = np.array([layer.weight_bytes for layer in problem.layers], np.int64)
        self._outputs = np.array([layer.output_bytes for layer in problem.layers], np.int64)
        self._total = max(1, int(self._weights.sum() + self._outputs.sum()))

    def rectify(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> Rectified:
        """The nearest map by simple rules: layer by layer, what has no room goes to a slower tier, or else to a faster one.

        Where that leaves a tensor without room, it is the compiler's own map. Where tiers are address spaces, it may move
        tensors that some cleverer choice of offsets would find room for.

        Parameters
        ----------
        weight_tiers, output_tiers
            Number of a tier for each layer, ``[layers]``.

        Returns
        -------
        Rectified
            The map that can be executed, and the part of all bytes that had to move, 0 to 1.

        Raises
        ------
        UsageError
            The proposal has not a tier for each layer, or one that does not exist.
        InputError
            The compiler finds no map at all.
        """
        wanted = self.checked(weight_tiers, output_tiers)
        try:
            nearest = self._place(wanted)
        except InputError:
            nearest = compiler_map(self._problem)
        moved = sum(
            int(sizes[np.array(was) != np.array(now)].sum())
            for sizes, was, now in (
                (self._weights, wanted.weight_tiers, nearest.weight_tiers),
                (self._outputs, wanted.output_tiers, nearest.output_tiers),
            )
        )
        return Rectified(nearest, moved / self._total)

    def checked(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> MemoryMap:
        """A proposal as a map, with 0 for weights of 0 bytes; UsageError as for :meth:`rectify`."""
        count, tiers = len(self._problem.layers), len(self._problem.tiers)
        for name, proposed in (("weight_tiers", weight_tiers), ("output_tiers", output_tiers)):
            if len(proposed) != count or not all(tier in range(tiers) for tier in proposed):
                raise UsageError(f"found {name} {show(list(proposed))}, expected {count} numbers from 0 to {tiers - 1}")
        return MemoryMap(
            tuple(int(tier) if size else 0 for tier, size in zip(weight_tiers, self._weights, strict=True)),
            tuple(map(int, output_tiers)),
        )

    def _place(self, wanted: MemoryMap) -> MemoryMap:
        tiers = len(self._problem.tiers)
        placer = Placer(self._problem, Occupancy(self._problem))
        for number, layer in enumerate(self._problem.layers):
            if layer.weight_bytes:
                placer.weights(number, spill_order(wanted.weight_tiers[number], tiers))
            placer.output(number, spill_order(wanted.output_tiers[number], tiers))
        return placer.map()
