"""What the exact models are made of: tensors, their lives, how each layer's latency depends on where they stand; plans.

A layer's latency is its floor, which no plan goes below, plus an *excess* of at least 0. Let ``a[j][k]`` be the time to move
tensor ``j`` in tier ``k``, and ``x[j][k]`` be 1 where it stands there (``k`` from 1; all 0 means tier 0). For every choice of a
*base* tier ``b`` for each of the layer's tensors::

    excess >= E - sum of min(E, a[j][b_j] - a[j][k]) * x[j][k]  over k > b_j,      E = fixed + sum of a[j][b_j] - floor

holds in every plan: a tensor in its base tier or a slower one costs ``a[j][b_j]`` at least, and no saving is worth more than
``E``. With all bases 0 and savings uncut this defines the excess; the others cut off fractions. With bases 0 and the fastest,
the linear relaxation is as good as with the convex hull of each layer's choices on real networks.

Without branching there are a floor, and the reason why nothing fits. Where tiers are address spaces, every tier is a packing
problem of its own once the tiers are final (:class:`Offsets`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from stowplan.models.first_fit import FirstFit
from stowplan.models.packing import problem as packing
from stowplan.models.placement.items import Item, Memory, Placement
from stowplan.models.tier_placement.plan import Plan, placed
from stowplan.models.tier_placement.problem import Problem

#: Layers that touch more tensors than this get rows for few choices of bases, not for all.
MAX_TENSORS = 4


#: Weights count that have this part of the largest tier that is fast and does not hold everything; and so many sizes do.
COUNTED, MOST_SIZES = 1 / 1024, 6


@dataclass(frozen=True)
class Tensor:
    """The weights or the output of a layer. Weights of 0 bytes are left out."""

    layer: int
    is_output: bool
    size: int
    """Bytes."""
    first: int
    """Step from which it takes room."""
    last: int
    """Last step in which it does."""
    tiers: tuple[int, ...]
    """Tiers it fits into, ascending; the one it is pinned to alone."""


@dataclass(frozen=True)
class ExcessRow:
    """``excess + sum of saving * x >= least``, all in ps."""

    least: int
    savings: tuple[tuple[int, int, int], ...]
    """(tensor, tier, saving)."""


@dataclass(frozen=True)
class Excess:
    """How far a layer's latency lies above its floor."""

    layer: int
    most: int
    """With all its tensors where they are slowest, ps."""
    uses: tuple[tuple[int, tuple[int, ...]], ...]
    """(tensor, ps to move it in each tier)."""
    fixed_ps: int
    """Time to move what is always moved, less the floor: negative where the layer computes longer."""

    def at(self, tier_of: list[int]) -> int:
        """Excess in ps with every tensor in its tier."""
        return max(0, self.fixed_ps + sum(moves[tier_of[tensor]] for tensor, moves in self.uses))


class Structure:
    """A problem taken apart.

    Parameters
    ----------
    pins
        Tier of tensors that may stand in no other: of (layer, whether it is its output).
    """

    def __init__(self, problem: Problem, pins: Mapping[tuple[int, bool], int] | None = None):
        self.problem = problem
        self._pins = pins or {}
        self.tensors: list[Tensor] = []
        self.weights: list[int | None] = []
        """Number of the tensor of each layer's weights."""
        self.outputs: list[int] = []
        """Number of the tensor of each layer's output."""
        for number, layer in enumerate(problem.layers):
            self.weights.append(len(self.tensors) if layer.weight_bytes else None)
            if layer.weight_bytes:
                self._add(number, False, layer.weight_bytes, 0, len(problem.layers) - 1)
            self.outputs.append(len(self.tensors))
            self._add(number, True, layer.output_bytes, number, problem.last_use[number])
        self.base_ps = 0
        """Sum of all floors and overheads: no plan is faster."""
        self.excesses: list[Excess] = []
        """Of the layers whose latency depends on the plan."""
        for number in range(len(problem.layers)):
            self._add_latency(number)

    def _add(self, layer: int, is_output: bool, size: int, first: int, last: int) -> None:
        tiers = tuple(number for number, tier in enumerate(self.problem.tiers) if size <= tier.capacity)
        pinned = self._pins.get((layer, is_output))
        if pinned is not None:
            tiers = tuple(number for number in tiers if number == pinned)
        self.tensors.append(Tensor(layer, is_output, size, first, last, tiers))

    def _add_latency(self, number: int) -> None:
        problem = self.problem
        layer = problem.layers[number]
        moved = [(source, problem.layers[source].output_bytes) for source in layer.inputs]
        pairs = [(self.outputs[source], size) for source, size in moved]
        weights = self.weights[number]
        if weights is not None:
            pairs.append((weights, layer.weights_read))
        pairs.append((self.outputs[number], layer.output_bytes))
        uses = tuple((tensor, tuple(tier.move_ps(size) for tier in problem.tiers)) for tensor, size in pairs)
        fixed = problem.tiers[0].move_ps(layer.external_bytes)
        # A tensor that fits nowhere makes the problem infeasible, whatever is said of it here.
        fastest = sum(moves[max(self.tensors[tensor].tiers, default=0)] for tensor, moves in uses)
        slowest = sum(moves[min(self.tensors[tensor].tiers, default=0)] for tensor, moves in uses)
        floor = max(layer.compute_ps, fixed + fastest)
        self.base_ps += layer.overhead_ps + floor
        if fixed + slowest > floor:
            self.excesses.append(Excess(number, fixed + slowest - floor, uses, fixed - floor))

    @cached_property
    def limited(self) -> tuple[int, ...]:
        """Tiers that do not hold everything at once."""
        total = sum(tensor.size for tensor in self.tensors)
        return tuple(number for number, tier in enumerate(self.problem.tiers) if tier.capacity < total)

    @cached_property
    def crowded(self) -> tuple[int, ...]:
        """Tiers in which not all tensors can lie end to end, alignment included: where offsets need thought."""
        tiers = enumerate(self.problem.tiers)
        sizes = [tensor.size for tensor in self.tensors]
        return tuple(number for number, tier in tiers if tier.capacity < sum(sizes) + (tier.alignment - 1) * len(sizes))

    @cached_property
    def placement(self) -> Placement:
        """Tensors as items: weights live at every step, outputs up to their last reader."""
        tiers = self.problem.tiers
        return Placement(
            items=[Item(tensor.first, tensor.last + 1, dict.fromkeys(tensor.tiers, tensor.size)) for tensor in self.tensors],
            memories=[Memory(tier.capacity, tier.capacity) for tier in tiers],
            steps={(at, tier): tiers[tier].alignment for at, tensor in enumerate(self.tensors) for tier in tensor.tiers},
            lowest={},
            permanent=[number for number in self.weights if number is not None],
        )

    @property
    def moments(self) -> list[list[int]]:
        """Output tensors live at each of the steps that matter: what lives in any other lives together in one of these."""
        return self.placement.maximal_live_sets

    def rows(self, excess: Excess) -> list[ExcessRow]:
        """The rows of a layer: first the one that defines its excess, then those that cut off fractions."""
        fitting = [self.tensors[tensor].tiers or (0,) for tensor, _ in excess.uses]
        slow, fast = tuple(tiers[0] for tiers in fitting), tuple(tiers[-1] for tiers in fitting)
        rows: dict[ExcessRow, None] = {}
        if len(excess.uses) <= MAX_TENSORS:
            choices = list(itertools.product(*zip(slow, fast, strict=True)))
        else:
            choices = [slow]
            for at, tier in enumerate(fast):
                choices.append((*slow[:at], tier, *slow[at + 1 :]))
                choices.append((*fast[:at], slow[at], *fast[at + 1 :]))
        for bases in choices:
            least = excess.fixed_ps + sum(moves[base] for (_, moves), base in zip(excess.uses, bases, strict=True))
            if least > 0:
                savings = [
                    (tensor, tier, min(least, moves[base] - moves[tier]))
                    for (tensor, moves), base in zip(excess.uses, bases, strict=True)
                    for tier in self.tensors[tensor].tiers
                    if tier > base and moves[tier] < moves[base]
                ]
                rows[ExcessRow(least, tuple(savings))] = None
        return list(rows)

    def fits(self, tier_of: list[int]) -> bool:
        """Whether every tier holds what stands in it, at every moment."""
        tensors, tiers = self.tensors, self.problem.tiers
        weights = [0] * len(tiers)
        for number in self.weights:
            if number is not None:
                weights[tier_of[number]] += tensors[number].size
        for live in self.moments:
            load = weights.copy()
            for number in live:
                load[tier_of[number]] += tensors[number].size
            if any(used > tier.capacity for used, tier in zip(load, tiers, strict=True)):
                return False
        return True

    def latency_ps(self, tier_of: list[int]) -> int:
        """Latency of the network with every tensor in its tier."""
        return self.base_ps + sum(excess.at(tier_of) for excess in self.excesses)


def plan_of(structure: Structure, tier_of: list[int], offsets: list[int] | None = None) -> Plan:
    """Plan with every tensor in its tier, and at its offset where there are any."""

    def each_layer(numbers: list[int | None] | list[int], values: list[int]) -> tuple[int, ...]:
        return tuple(0 if number is None else values[number] for number in numbers)

    return Plan(
        problem=structure.problem.digest,
        objective=structure.latency_ps(tier_of),
        weight_tiers=each_layer(structure.weights, tier_of),
        output_tiers=each_layer(structure.outputs, tier_of),
        weight_offsets=() if offsets is None else each_layer(structure.weights, offsets),
        output_offsets=() if offsets is None else each_layer(structure.outputs, offsets),
    )


def tiers_of(structure: Structure, plan: Plan) -> list[int]:
    """Tier of each tensor in a plan."""
    return [tensor.tier(plan) for tensor in placed(structure.problem)]


def offsets_of(structure: Structure, plan: Plan) -> list[int] | None:
    """Offset of each tensor in a plan; None where it has none."""
    if not plan.output_offsets:
        return None
    return [tensor.offset(plan) for tensor in placed(structure.problem)]


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


def counted_sizes(problem: Problem) -> list[int]:
    """Sizes of weights (bytes) whose numbers are branched on; none where they are too many for that to come to an end."""
    total = sum(layer.weight_bytes + layer.output_bytes for layer in problem.layers)
    room = max((tier.capacity for tier in problem.tiers[1:] if tier.capacity < total), default=0)
    sizes = {layer.weight_bytes for layer in problem.layers if COUNTED * room <= layer.weight_bytes <= room}
    return sorted(sizes - {0}) if len(sizes) <= MOST_SIZES else []


def floor_bound(problem: Problem) -> int:
    """Latency in ps were everything in the fastest tier: no plan need reach it."""
    fastest = problem.tiers[-1]
    total = 0
    for layer in problem.layers:
        moved = [layer.weights_read, layer.output_bytes, *(problem.layers[source].output_bytes for source in layer.inputs)]
        memory = sum(map(fastest.move_ps, moved)) + problem.tiers[0].move_ps(layer.external_bytes)
        total += layer.overhead_ps + max(layer.compute_ps, memory)
    return total


#: Seconds for the packing model, in which it is much faster than in the wall's: a limit on work.
PACKING_LIMIT = 1.0

#: The packing model is only asked for tiers with fewer tensors than this.
MAX_PACKED = 400


def packing_of(structure: Structure, tier: int, inside: Sequence[int]) -> packing.Problem:
    """The packing problem of these tensors in a tier; a buffer's id is its tensor's place in the list."""
    memory, tensors = structure.problem.tiers[tier], structure.tensors
    buffers = (
        packing.Buffer(
            id=str(at),
            lower=tensors[number].first,
            upper=tensors[number].last + 1,
            size=tensors[number].size,
            alignment=memory.alignment,
        )
        for at, number in enumerate(inside)
    )
    return packing.Problem(buffers=tuple(buffers), capacity=memory.capacity)


class Offsets:
    """Makes plans of tiers, with offsets where tiers are address spaces.

    ``end`` is a moment of the monotonic clock: what is packed then or later gets no time for the packing model.
    """

    def __init__(self, structure: Structure, packing_limit: float = PACKING_LIMIT, end: float = math.inf):
        self._structure = structure
        self._packing_limit = packing_limit
        self._end = end

    def place(self, tier_of: list[int]) -> Plan | None:
        """Plan with every tensor in its tier; None where a tier overflows or no offsets were found in time."""
        structure = self._structure
        if not structure.fits(tier_of):
            return None
        if not structure.problem.address_spaces:
            return plan_of(structure, tier_of)
        offsets = [0] * len(structure.tensors)
        for tier in range(len(structure.problem.tiers)):
            inside = [number for number, at in enumerate(tier_of) if at == tier]
            placed = self.pack(tier, inside)
            if placed is None:
                return None
            for number, offset in zip(inside, placed, strict=True):
                offsets[number] = offset
        return plan_of(structure, tier_of, offsets)

    def pack(self, tier: int, inside: list[int]) -> list[int] | None:
        """Offset of each of these tensors in one tier; None where none were found in time."""
        tensors = [self._structure.tensors[number] for number in inside]
        orders = (
            lambda at: (tensors[at].first - tensors[at].last, -tensors[at].size),
            lambda at: (-tensors[at].size, tensors[at].first),
            lambda at: (tensors[at].is_output, tensors[at].first),
        )
        for key in orders:
            placed = self._first_fit(tier, inside, sorted(range(len(inside)), key=key))
            if placed is not None:
                return placed
        if len(inside) > MAX_PACKED:
            return None
        problem = packing_of(self._structure, tier, inside)
        from stowplan.models.packing import cpsat as packing_model

        left = max(0.0, self._end - time.monotonic())
        outcome = packing_model.solve(
            problem, time_limit=min(10 * self._packing_limit, left), deterministic_limit=self._packing_limit
        )
        return None if outcome.plan is None else list(outcome.plan.offsets)

    def _first_fit(self, tier: int, inside: list[int], order: list[int]) -> list[int] | None:
        """Every tensor at the lowest offset that is free for its whole life, one after the other."""
        memory = self._structure.problem.tiers[tier]
        room = FirstFit(memory.capacity)
        offsets = [0] * len(inside)
        for at in order:
            tensor = self._structure.tensors[inside[at]]
            offset = room.take(tensor.first, tensor.last + 1, tensor.size, memory.alignment)
            if offset is None:
                return None
            offsets[at] = offset
        return offsets
