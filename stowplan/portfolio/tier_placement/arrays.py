"""A tier-placement problem as flat arrays for compiled code, and the conversion of results into plans.

A *tier* is one memory of a chip's memory hierarchy. Tiers are numbered from the slowest, 0, to the fastest. A *map* assigns a
tier to every tensor, that is, to the weights and the output of every layer of a network. It is *valid* if no capacity is ever
exceeded. Tensors are numbered: first the weights of all layers that have weights, then the outputs of all layers. Layers run
one after the other, each in one *step*, which has the number of the layer. If tiers are address spaces, a plan also has an
offset for every tensor. The functions raise no errors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Ints2D
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import Offsets, Structure, plan_of
from stowplan.parameters import Parameters, parameters

Ints = NDArray[np.int64]


class Data(NamedTuple):
    """The arrays of a problem with m tensors, n layers and T tiers. All of them are int64."""

    size: Ints
    """[m] size of each tensor in bytes."""
    layer: Ints
    """[m] layer to which each tensor belongs."""
    is_weight: Ints
    """[m] 1 for weights, which stay in memory for the whole inference; 0 for outputs."""
    last: Ints
    """[m] last step of an output's life, which begins with its layer; 0 for weights."""
    touch: Ints
    """[m + 1] index of each tensor's first entry in ``touched``. Tensor i is read or written by the layers
    ``touched[touch[i] : touch[i + 1]]``."""
    touched: Ints
    """Layers that read or write each tensor, tensor by tensor."""
    cost: Ints2D
    """[len(touched), T] picoseconds of each of these reads or writes, by tier."""
    use: Ints
    """[n + 1] index of each layer's first entry in ``used``. Layer s reads or writes the tensors
    ``used[use[s] : use[s + 1]]``."""
    used: Ints
    """Tensors that each layer reads or writes, layer by layer."""
    live: Ints
    """[n + 1] index of each step's first entry in ``alive``. The outputs ``alive[live[s] : live[s + 1]]`` are live at step
    s."""
    alive: Ints
    """Outputs that are live at each step, step by step."""
    compute: Ints
    """[n] picoseconds of computation of each layer."""
    external: Ints
    """[n] picoseconds in which each layer reads inputs of the network, which are in tier 0."""
    capacity: Ints
    """[T] capacity of each tier in bytes."""
    fixed: int
    """Sum of the overheads of all layers, in picoseconds."""


def build(problem: Problem) -> Data:
    """Build the arrays of a problem."""
    layers, tiers = problem.layers, problem.tiers
    weighted = [number for number, layer in enumerate(layers) if layer.weight_bytes]
    readers: list[list[int]] = [[] for _ in layers]
    for number, layer in enumerate(layers):
        for source in layer.inputs:
            readers[source].append(number)
    touch, touched, cost = [0], [], []

    def add(numbers: list[int], size: int) -> None:
        row = [tier.move_ps(size) for tier in tiers]
        touched.extend(numbers)
        cost.extend([row] * len(numbers))
        touch.append(len(touched))

    for number in weighted:
        add([number], layers[number].weights_read)
    for number, layer in enumerate(layers):
        add([number, *readers[number]], layer.output_bytes)
    alive: list[list[int]] = [[] for _ in layers]
    for number, end in enumerate(problem.last_use):
        for step in range(number, end + 1):
            alive[step].append(len(weighted) + number)
    live = np.cumsum([0, *map(len, alive)])
    used: list[list[int]] = [[] for _ in layers]
    for tensor in range(len(touch) - 1):
        for number in touched[touch[tensor] : touch[tensor + 1]]:
            used[number].append(tensor)
    return Data(
        size=_ints([layers[number].weight_bytes for number in weighted] + [layer.output_bytes for layer in layers]),
        layer=_ints([*weighted, *range(len(layers))]),
        is_weight=_ints([1] * len(weighted) + [0] * len(layers)),
        last=_ints([0] * len(weighted) + list(problem.last_use)),
        touch=_ints(touch),
        touched=_ints(touched),
        cost=_ints(cost).reshape(-1, len(tiers)),
        use=_ints(np.cumsum([0, *map(len, used)])),
        used=_ints([tensor for layer in used for tensor in layer]),
        live=_ints(live),
        alive=_ints([tensor for step in alive for tensor in step]),
        compute=_ints([layer.compute_ps for layer in layers]),
        external=_ints([tiers[0].move_ps(layer.external_bytes) if layer.external_bytes else 0 for layer in layers]),
        capacity=_ints([tier.capacity for tier in tiers]),
        fixed=sum(layer.overhead_ps for layer in layers),
    )


def _ints(values: object) -> Ints:
    return np.array(values, np.int64)


def import_plan(data: Data, plan: Plan) -> Ints:
    """[m] the tier of each tensor in a plan."""
    return _ints(
        [
            plan.weight_tiers[layer] if weight else plan.output_tiers[layer]
            for layer, weight in zip(data.layer.tolist(), data.is_weight.tolist(), strict=True)
        ]
    )


class RoomParameters(Parameters, frozen=True):
    """Parameters of the search for offsets."""

    shrink: float = 0.98
    """Factor by which the capacity of each tier that a map uses shrinks for the search if no offsets were found for the map."""


PARAMS = parameters(RoomParameters, __name__)


class Exporter:
    """Turns maps of one problem into plans, with offsets if tiers are address spaces. ``data`` has the problem's arrays."""

    def __init__(self, problem: Problem, data: Data):
        self._data = data
        self._structure = Structure(problem)
        self._offsets = Offsets(self._structure)

    def plan(self, tier: Ints) -> Plan | None:
        """The plan of a valid map ``tier`` [m]; None if tiers are address spaces and no offsets were found for the map."""
        owners = zip(self._data.layer.tolist(), self._data.is_weight.tolist(), strict=True)
        tier_of = dict(zip(owners, tier.tolist(), strict=True))
        tiers = [tier_of[tensor.layer, not tensor.is_output] for tensor in self._structure.tensors]
        return self._offsets.place(tiers) if self._structure.problem.address_spaces else plan_of(self._structure, tiers)

    def shrink(self, tier: Ints) -> Data:
        """Reduce the capacity of every tier that the map ``tier`` [m] uses by a little; returns the new arrays.

        The arrays are for the search alone, and each call reduces the capacities again. Plans are made with the capacities of
        the problem.
        """
        capacity = self._data.capacity.copy()
        used = np.unique(tier)
        capacity[used] = (capacity[used] * PARAMS.shrink).astype(np.int64)
        self._data = self._data._replace(capacity=capacity)
        return self._data
