"""Creates memory maps by simple rules, in the manner of a native compiler, in one pass over the layers.

A *memory map* assigns a tier to the weights and to the output of every layer. The output of a layer is also called an
activation.

Khadka et al. (ICLR 2021) call the chip's compiler "a collection of heuristic rules specific to the compute and memory capacity
of the hardware". The rules of the product are not public; those in this module are of the same sort. A proposed memory map that
cannot be executed, because it exceeds the capacity of a tier, is *rectified*: similar rules change it to one that can be
executed (algorithm 1 of the paper, lines 6 and 7).

If tiers are *address spaces*, every tensor also gets an offset in its tier; otherwise only the bytes in a tier are counted.
Tiers are numbers from 0, the slowest one. Step ``i`` is the execution of layer ``i``.
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
    """Occupied bytes of a problem's tiers at every step, while tensors are placed one after the other.

    If tiers are address spaces, every tensor gets the lowest free offset.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._used = np.zeros((len(problem.tiers), len(problem.layers)), np.int64)
        """Occupied bytes, in an array with a row for each tier and a column for each step."""
        self._spaces = [FirstFit(tier.capacity) for tier in problem.tiers]
        """The occupied ranges of addresses of each tier, which are used only if tiers are address spaces."""
        self.weights = [0] * len(problem.tiers)
        """Bytes of weights in each tier so far."""

    def free(self, tier: int, first: int, last: int) -> int:
        """Bytes that are free in a tier at every step from ``first`` to ``last`` (inclusive)."""
        return self._problem.tiers[tier].capacity - int(self._used[tier, first : last + 1].max())

    def take(self, tier: int, size: int, first: int, last: int) -> int | None:
        """Places a tensor that occupies memory from step ``first`` to step ``last`` in a tier.

        Returns its offset, which is 0 if tiers are no address spaces; None if the tensor does not fit.
        """
        if self.free(tier, first, last) < size:
            return None
        offset: int | None = 0
        if self._problem.address_spaces and size:
            offset = self._spaces[tier].take(first, last + 1, size, self._problem.tiers[tier].alignment)
        if offset is not None:
            self._used[tier, first : last + 1] += size
        return offset


#: The next three fractions are chosen by hand, as the rules of a compiler are.
#:
#: The weights of a layer prefer a tier only if they need at most this fraction of it, since they occupy it during the whole
#: inference.
WEIGHT_PART = 1 / 8
#: Weights prefer a tier only if all weights in the tier together need at most this fraction of it; the rest is for activations.
WEIGHTS_PART = 0.75
#: An activation that is read only once prefers a tier only if it needs at most this fraction of it.
SINGLE_USE_PART = 0.25


class MemoryMap(NamedTuple):
    """The tiers of the weights and the output of each layer, and offsets in them if tiers are address spaces.

    All fields have an entry for each layer, which is 0 for weights of 0 bytes. Offsets are empty if tiers are no address
    spaces.
    """

    weight_tiers: tuple[int, ...]
    """Tier of the weights of each layer."""
    output_tiers: tuple[int, ...]
    """Tier of the output of each layer."""
    weight_offsets: tuple[int, ...] = ()
    """Offset of the weights of each layer in bytes."""
    output_offsets: tuple[int, ...] = ()
    """Offset of the output of each layer in bytes."""


def compiler_map(problem: Problem) -> MemoryMap:
    """Creates the compiler's memory map of a problem.

    Every tensor goes to the fastest tier that it prefers. If it does not fit there, the other tiers are tried in the order of
    :func:`spill_order`.

    Returns
    -------
    MemoryMap
        A valid memory map.

    Raises
    ------
    InputError
        A tensor does not fit in any tier.
    """
    occupancy = Occupancy(problem)
    placer = Placer(problem, occupancy)
    for number, layer in enumerate(problem.layers):
        if layer.weight_bytes:
            preferred = _preferred_for_weights(problem, occupancy, layer.weight_bytes)
            placer.weights(number, spill_order(preferred, len(problem.tiers)))
        reads = sum(number in other.inputs for other in problem.layers[number + 1 : problem.last_use[number] + 1])
        fraction = 1.0 if reads > 1 else SINGLE_USE_PART
        preferred = _preferred(problem, [layer.output_bytes <= fraction * tier.capacity for tier in problem.tiers])
        placer.output(number, spill_order(preferred, len(problem.tiers)))
    return placer.map()


def compiler_plan(problem: Problem) -> Plan | None:
    """The compiler's memory map as a plan, whose objective is the latency in ps; None if a tensor does not fit in any tier."""
    try:
        memory_map = compiler_map(problem)
    except InputError:
        return None
    return plan_of(problem, memory_map)


def plan_of(problem: Problem, memory_map: MemoryMap) -> Plan:
    """The plan of a memory map that can be executed; its objective is the latency in ps."""
    latency = latency_ps(problem, memory_map.weight_tiers, memory_map.output_tiers)
    return Plan(problem=problem.digest, objective=latency, **memory_map._asdict())


def spill_order(preferred: int, tiers: int) -> list[int]:
    """The order in which tiers are tried: the preferred tier, then slower tiers in descending speed, and then faster tiers in
    ascending speed. ``tiers`` is the number of tiers."""
    return [*range(preferred, -1, -1), *range(preferred + 1, tiers)]


def _preferred_for_weights(problem: Problem, occupancy: Occupancy, size: int) -> int:
    """The tier that weights of this size prefer."""
    return _preferred(
        problem,
        [
            size <= WEIGHT_PART * tier.capacity and filled + size <= WEIGHTS_PART * tier.capacity
            for tier, filled in zip(problem.tiers, occupancy.weights, strict=True)
        ],
    )


def _preferred(problem: Problem, suits: list[bool]) -> int:
    """The fastest of the tiers for which ``suits`` is true; the slowest tier if there is none."""
    return max((tier for tier in range(len(problem.tiers)) if suits[tier]), default=0)


class Placer:
    """Places tensors one after the other, and collects their tiers and offsets in a memory map."""

    def __init__(self, problem: Problem, occupancy: Occupancy):
        self._problem, self._occupancy = problem, occupancy
        count = len(problem.layers)
        self._tiers = ([0] * count, [0] * count)
        self._offsets = ([0] * count, [0] * count)

    def weights(self, number: int, order: Iterable[int]) -> int:
        """Places the weights of a layer in the first tier of ``order`` in which they fit; returns the number of the tier.

        Raises
        ------
        InputError
            The weights fit in none of these tiers.
        """
        size = self._problem.layers[number].weight_bytes
        tier = self._place(0, number, size, (0, len(self._problem.layers) - 1), order)
        self._occupancy.weights[tier] += size
        return tier

    def output(self, number: int, order: Iterable[int]) -> int:
        """Places the output of a layer in the same way as :meth:`weights`, for the steps from its layer to its last reader."""
        size = self._problem.layers[number].output_bytes
        return self._place(1, number, size, (number, self._problem.last_use[number]), order)

    def _place(self, which: int, number: int, size: int, span: tuple[int, int], order: Iterable[int]) -> int:
        """Places a tensor that is live in the steps ``span`` (inclusive); ``which`` is 0 for weights and 1 for outputs."""
        for tier in order:
            offset = self._occupancy.take(tier, size, *span)
            if offset is not None:
                self._tiers[which][number], self._offsets[which][number] = tier, offset
                return tier
        layer = self._problem.layers[number].name
        free = ", ".join(f"{self._occupancy.free(at, *span)} in {tier.name}" for at, tier in enumerate(self._problem.tiers))
        kind = "output" if which else "weights"
        raise InputError(f"no tier has room for the {size} bytes of its {kind}: free are {free}", place=f"layer {layer}")

    def map(self) -> MemoryMap:
        """The memory map of the tensors that have been placed."""
        tiers = tuple(self._tiers[0]), tuple(self._tiers[1])
        if not self._problem.address_spaces:
            return MemoryMap(*tiers)
        return MemoryMap(*tiers, tuple(self._offsets[0]), tuple(self._offsets[1]))


class Rectified(NamedTuple):
    """Result of the rectification of a proposed memory map."""

    map: MemoryMap
    """A memory map that can be executed."""
    epsilon: float
    """Fraction of all bytes whose tier was changed; 0 if the proposal can be executed unchanged."""


class Rectifier:
    """Rectifies proposed memory maps of one problem, one at a time.

    :func:`stowplan.hardware.nnp_i.compiled.rectify` does the same for many proposals and is compiled, but does not support
    tiers that are address spaces.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._weights = np.array([layer.weight_bytes for layer in problem.layers], np.int64)
        self._outputs = np.array([layer.output_bytes for layer in problem.layers], np.int64)
        self._total = max(1, int(self._weights.sum() + self._outputs.sum()))

    def rectify(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> Rectified:
        """Changes a proposed memory map to one that can be executed.

        Tensors are placed layer by layer. A tensor that does not fit in its tier goes to a slower tier, or else to a faster
        one. If a tensor does not fit in any tier, the result is the compiler's own memory map. If tiers are address spaces, a
        tensor may be moved although it would fit with other offsets of the tensors before it.

        Parameters
        ----------
        weight_tiers, output_tiers
            The proposed tier of each layer's weights, and of its output.

        Returns
        -------
        Rectified
            The memory map, and the fraction (0 to 1) of all bytes whose tier changed.

        Raises
        ------
        UsageError
            The proposal does not have a tier for each layer, or has one that does not exist.
        InputError
            The compiler finds no memory map either.
        """
        proposed = self.checked(weight_tiers, output_tiers)
        try:
            nearest = self._place(proposed)
        except InputError:
            nearest = compiler_map(self._problem)
        moved = sum(
            int(sizes[np.array(before) != np.array(after)].sum())
            for sizes, before, after in (
                (self._weights, proposed.weight_tiers, nearest.weight_tiers),
                (self._outputs, proposed.output_tiers, nearest.output_tiers),
            )
        )
        return Rectified(nearest, moved / self._total)

    def checked(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> MemoryMap:
        """A proposal as a memory map, with 0 for weights of 0 bytes; raises UsageError as :meth:`rectify` does."""
        count, tiers = len(self._problem.layers), len(self._problem.tiers)
        for name, proposed in (("weight_tiers", weight_tiers), ("output_tiers", output_tiers)):
            if len(proposed) != count or not all(tier in range(tiers) for tier in proposed):
                raise UsageError(f"found {name} {show(list(proposed))}, expected {count} numbers from 0 to {tiers - 1}")
        return MemoryMap(
            tuple(int(tier) if size else 0 for tier, size in zip(weight_tiers, self._weights, strict=True)),
            tuple(map(int, output_tiers)),
        )

    def _place(self, proposed: MemoryMap) -> MemoryMap:
        """Places all tensors by simple rules; raises InputError if one fits in no tier."""
        tiers = len(self._problem.tiers)
        placer = Placer(self._problem, Occupancy(self._problem))
        for number, layer in enumerate(self._problem.layers):
            if layer.weight_bytes:
                placer.weights(number, spill_order(proposed.weight_tiers[number], tiers))
            placer.output(number, spill_order(proposed.output_tiers[number], tiers))
        return placer.map()
