"""The part that the exact models of tier placement have in common: tensors, live ranges, linear constraints for the latency of
each layer, and the construction of plans. A tier-placement plan puts the weights and the output of each layer of a network into
one *tier* each, that is, one memory of the hierarchy.

*Latency as linear constraints.* Tiers are numbered from the slowest to the fastest. The latency of a layer is its fixed
overhead, plus its *floor*, plus an *excess* of at least 0. The floor is the longer of two times: that of its computation, and
that of its memory traffic if each of its tensors is in the fastest tier that it fits into. Let ``a[j][k]`` be the time to read
or write tensor ``j`` if it is in tier ``k``, and let the variable ``x[j][k]`` be 1 if it is there (``k`` from 1; if all are 0,
it is in tier 0). ``fixed`` is the time to read the network's inputs. Choose a *base* tier ``b_j`` for each of the layer's
tensors. Then every plan satisfies the row::

    excess >= E - sum of min(E, a[j][b_j] - a[j][k]) * x[j][k]  over k > b_j,      E = fixed + sum of a[j][b_j] - floor

because a tensor in its base tier or a slower one costs at least ``a[j][b_j]``, and no saving is worth more than ``E``. In the
first row of a layer, each base is the slowest tier that the tensor fits into. Together with ``excess >= 0``, this row defines
the excess of every integral solution. The other rows cut off fractional solutions. The rows of the models are those in which
each base is the slowest or the fastest tier that the tensor fits into. On the networks that were measured, they make the linear
relaxation as tight as one that has, for each layer, the convex hull of all combinations of tiers of its tensors, each with its
excess.

*Without a search*, :func:`floor_bound` gives a lower bound on the latency, and :func:`find_overload` finds simple reasons why a
problem is infeasible. *Offsets*: a problem can require that every tensor has an offset in its tier
(``Problem.address_spaces``). Every tier is then a packing problem of its own once all tensors have tiers (:class:`Offsets`).
Nothing here raises an error for a valid problem.
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

#: Layers with more tensors than this get rows for only a few choices of base tiers.
MAX_TENSORS = 4


#: Branch and bound can branch on a count: how many weights of a certain size are in a given tier or a faster one. A weight that
#: is ``n`` times as large counts as ``n``. Let C be the capacity of the largest tier, other than tier 0, that cannot hold all
#: tensors. Counts are used only for sizes from ``COUNTED * C`` to C, and only if there are at most ``MOST_SIZES`` such sizes.
COUNTED, MOST_SIZES = 1 / 1024, 6


@dataclass(frozen=True)
class Tensor:
    """The weights or the output of a layer. Weights of 0 bytes are left out."""

    layer: int
    """Number of the layer."""
    is_output: bool
    """Whether it is the output; otherwise it is the weights."""
    size: int
    """Size in bytes."""
    first: int
    """First step at which it is live. Layer ``i`` runs at step ``i``."""
    last: int
    """Last step at which it is live."""
    tiers: tuple[int, ...]
    """Tiers that it fits into, ascending; at most one if the tier is prescribed (``pins`` of :class:`Structure`)."""


@dataclass(frozen=True)
class ExcessRow:
    """The row ``excess + sum of saving * x >= least`` (see the docstring of this module); all numbers are in ps."""

    least: int
    """The number E of the row: the excess if each tensor is in its base tier."""
    savings: tuple[tuple[int, int, int], ...]
    """(tensor, tier, saving) for each tier that is faster than the tensor's base tier."""


@dataclass(frozen=True)
class Excess:
    """The excess of a layer: the time by which its latency exceeds its floor."""

    layer: int
    """Number of the layer."""
    most: int
    """The excess in ps if each tensor is in the slowest tier that it fits into, the largest one of any plan."""
    uses: tuple[tuple[int, tuple[int, ...]], ...]
    """For each tensor that the layer reads or writes: its number, and for each tier the time in ps to read or write the tensor
    if it is there."""
    fixed_ps: int
    """Time in ps in which the layer reads inputs of the network, minus the layer's floor; never more than 0."""

    def at(self, tier_of: list[int]) -> int:
        """The excess in ps if tensor ``j`` is in tier ``tier_of[j]``."""
        return max(0, self.fixed_ps + sum(moves[tier_of[tensor]] for tensor, moves in self.uses))


class Structure:
    """The tensors, live ranges and excesses of a problem.

    Parameters
    ----------
    pins
        Prescribed tiers: maps (number of the layer, True for its output or False for its weights) to the only tier that this
        tensor may be in.
    """

    def __init__(self, problem: Problem, pins: Mapping[tuple[int, bool], int] | None = None):
        self.problem = problem
        self._pins = pins or {}
        self.tensors: list[Tensor] = []
        self.weights: list[int | None] = []
        """[layers] number of the tensor of the layer's weights; None if it has none."""
        self.outputs: list[int] = []
        """[layers] number of the tensor of the layer's output."""
        for number, layer in enumerate(problem.layers):
            self.weights.append(len(self.tensors) if layer.weight_bytes else None)
            if layer.weight_bytes:
                self._add(number, False, layer.weight_bytes, 0, len(problem.layers) - 1)
            self.outputs.append(len(self.tensors))
            self._add(number, True, layer.output_bytes, number, problem.last_use[number])
        self.base_ps = 0
        """Sum of all floors and overheads in ps, a lower bound on the latency of every plan."""
        self.excesses: list[Excess] = []
        """The excesses of the layers whose latency depends on the plan."""
        for number in range(len(problem.layers)):
            self._add_latency(number)

    def _add(self, layer: int, is_output: bool, size: int, first: int, last: int) -> None:
        """Add a tensor."""
        tiers = tuple(number for number, tier in enumerate(self.problem.tiers) if size <= tier.capacity)
        pinned = self._pins.get((layer, is_output))
        if pinned is not None:
            tiers = tuple(number for number in tiers if number == pinned)
        self.tensors.append(Tensor(layer, is_output, size, first, last, tiers))

    def _add_latency(self, number: int) -> None:
        """Add a layer's overhead and floor to ``base_ps``. If its excess depends on the plan, add that to ``excesses``."""
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
        # A tensor that fits into no tier makes the problem infeasible, so its value here does not matter.
        fastest = sum(moves[max(self.tensors[tensor].tiers, default=0)] for tensor, moves in uses)
        slowest = sum(moves[min(self.tensors[tensor].tiers, default=0)] for tensor, moves in uses)
        floor = max(layer.compute_ps, fixed + fastest)
        self.base_ps += layer.overhead_ps + floor
        if fixed + slowest > floor:
            self.excesses.append(Excess(number, fixed + slowest - floor, uses, fixed - floor))

    @cached_property
    def limited(self) -> tuple[int, ...]:
        """Tiers that are smaller than all tensors together."""
        total = sum(tensor.size for tensor in self.tensors)
        return tuple(number for number, tier in enumerate(self.problem.tiers) if tier.capacity < total)

    @cached_property
    def crowded(self) -> tuple[int, ...]:
        """Tiers that are too small to place all tensors one behind the other, so that offsets have to be found by packing."""
        tiers = enumerate(self.problem.tiers)
        sizes = [tensor.size for tensor in self.tensors]
        return tuple(number for number, tier in tiers if tier.capacity < sum(sizes) + (tier.alignment - 1) * len(sizes))

    @cached_property
    def placement(self) -> Placement:
        """The problem in the terms of :mod:`stowplan.models.placement.items`: weights are permanent, and outputs are live from
        their layer to their last reader."""
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
        """The maximal sets of outputs that are live at the same step; the live outputs of any step are part of one of them."""
        return self.placement.maximal_live_sets

    def rows(self, excess: Excess) -> list[ExcessRow]:
        """The rows of a layer: the first one defines its excess, and the further ones cut off fractional solutions."""
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
        """Whether the tensors in each tier fit into it at every step."""
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
        """Latency of the network in ps if tensor ``j`` is in tier ``tier_of[j]``."""
        return self.base_ps + sum(excess.at(tier_of) for excess in self.excesses)


def plan_of(structure: Structure, tier_of: list[int], offsets: list[int] | None = None) -> Plan:
    """The plan that puts tensor ``j`` into tier ``tier_of[j]``, at ``offsets[j]`` unless ``offsets`` is None."""

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
    """The tier of each tensor in a plan."""
    return [tensor.tier(plan) for tensor in placed(structure.problem)]


def offsets_of(structure: Structure, plan: Plan) -> list[int] | None:
    """The offset of each tensor in a plan, in bytes; None if the plan has no offsets."""
    if not plan.output_offsets:
        return None
    return [tensor.offset(plan) for tensor in placed(structure.problem)]


@dataclass(frozen=True)
class Overload:
    """A reason why a problem is infeasible: tensors that do not all fit."""

    step: int
    """A step at which the tensors are all live."""
    size: int
    """Number of bytes that the tensors need together."""
    room: int
    """Number of bytes that are available for the tensors."""
    reason: str
    """The reason as one sentence for people."""


def find_overload(problem: Problem) -> Overload | None:
    """A reason why no plan exists, if one can be found without a search; otherwise None, which does not prove that a plan
    exists.

    Reasons are a tensor that is larger than every tier, and a step at which more bytes are live than all tiers have.
    """
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
    """The weight sizes in bytes on whose counts branch and bound branches (see :data:`COUNTED`), ascending. Empty if there are
    more than :data:`MOST_SIZES`, since branch and bound would then not finish."""
    total = sum(layer.weight_bytes + layer.output_bytes for layer in problem.layers)
    room = max((tier.capacity for tier in problem.tiers[1:] if tier.capacity < total), default=0)
    sizes = {layer.weight_bytes for layer in problem.layers if COUNTED * room <= layer.weight_bytes <= room}
    return sorted(sizes - {0}) if len(sizes) <= MOST_SIZES else []


def floor_bound(problem: Problem) -> int:
    """Lower bound on the latency in ps: the latency if every tensor were in the fastest tier, whether it fits there or not."""
    fastest = problem.tiers[-1]
    total = 0
    for layer in problem.layers:
        moved = [layer.weights_read, layer.output_bytes, *(problem.layers[source].output_bytes for source in layer.inputs)]
        memory = sum(map(fastest.move_ps, moved)) + problem.tiers[0].move_ps(layer.external_bytes)
        total += layer.overhead_ps + max(layer.compute_ps, memory)
    return total


#: Limit of the packing model in CP-SAT's deterministic seconds, a measure of work that does not depend on the machine. Its
#: limit in seconds of wall time is ten times as large.
PACKING_LIMIT = 1.0

#: The packing model is used only for tiers with at most this number of tensors.
MAX_PACKED = 400


def packing_of(structure: Structure, tier: int, inside: Sequence[int]) -> packing.Problem:
    """The packing problem of these tensors in a tier. The id of a buffer is the index of its tensor in ``inside``."""
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
    """Builds the plan for given tiers of all tensors, and finds offsets if the problem requires them.

    Parameters
    ----------
    packing_limit
        Limit of the packing model in CP-SAT's deterministic seconds, for each tier.
    end
        Time of ``time.monotonic()`` after which the packing model gets no more time.
    """

    def __init__(self, structure: Structure, packing_limit: float = PACKING_LIMIT, end: float = math.inf):
        self._structure = structure
        self._packing_limit = packing_limit
        self._end = end

    def place(self, tier_of: list[int]) -> Plan | None:
        """The plan that puts tensor ``j`` into tier ``tier_of[j]``; None if a tier overflows or :meth:`pack` finds no
        offsets."""
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
        """Offset in bytes of each of these tensors in one tier; None if no offsets are found in time, or if first fit fails and
        the tier has more than :data:`MAX_PACKED` tensors."""
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
        """Place the tensors in this order, each at the lowest offset that is free during its live range; None if one
        overflows."""
        memory = self._structure.problem.tiers[tier]
        addresses = FirstFit(memory.capacity)
        offsets = [0] * len(inside)
        for at in order:
            tensor = self._structure.tensors[inside[at]]
            offset = addresses.take(tensor.first, tensor.last + 1, tensor.size, memory.alignment)
            if offset is None:
                return None
            offsets[at] = offset
        return offsets
