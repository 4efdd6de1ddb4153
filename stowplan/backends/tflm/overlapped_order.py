"""Orders of operators that need less where results take bytes of dying operands: what dies at an operator depends on the order.

Operators of the main subgraph are moved one by one, anywhere between those that they need and those that need them; what does
not raise the load with overlaps is kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from stowplan.backends.tflm.order import Ordered, predecessors
from stowplan.backends.tflm.overlap import Pair
from stowplan.backends.tflm.scratch import Scratch, rounded
from stowplan.errors import InputError
from stowplan.frontends.arena.tflite_file import ALIGNMENT, Scopes, TfliteModel

#: Orders that are tried, and those in a row that bring nothing.
_TRIES, _PATIENCE = 2000, 400


def improved(
    model: TfliteModel,
    start: Ordered,
    loads: Callable[[Ordered], Sequence[int]],
    floor: int,
    seed: int,
    should_stop: Callable[[], bool],
) -> Ordered:
    """An order of a lower load than ``start``; that one where none was found.

    Parameters
    ----------
    loads
        Bytes taken at each moment of an order, at least.
    floor
        Bytes that every order takes.
    """
    operators = model.subgraphs[0].operators
    try:
        before = predecessors(model, 0)
    except InputError:
        return start
    order, chance = list(start.orders.get(0, range(len(operators)))), random.Random(seed)

    def tried(moved: Sequence[int]) -> tuple[Ordered, tuple[int, int]]:
        other = Ordered({**start.orders, 0: tuple(moved)}, start.bound)
        taken = loads(other)
        return other, (max(taken, default=0), sum(size * size for size in taken))

    best, worth = tried(order)
    first, stale = worth[0], 0
    for _ in range(_TRIES):
        if stale == _PATIENCE or worth[0] <= floor or should_stop():
            break
        stale += 1
        at = chance.randrange(len(order))
        low = 1 + max((place for place in range(at) if order[place] in before[order[at]]), default=-1)
        high = next((place for place in range(at + 1, len(order)) if order[at] in before[order[place]]), len(order))
        to = chance.randrange(low, high)
        if to == at:
            continue
        moved = [*order[:at], *order[at + 1 :]]
        moved.insert(to, order[at])
        other, its_worth = tried(moved)
        if its_worth <= worth:
            stale = 0 if its_worth < worth else stale
            best, worth, order = other, its_worth, moved
    return best if worth[0] < first else start


def floor(model: TfliteModel, lives: Scopes, scratch: Scratch, pairs: Sequence[Pair]) -> int:
    """Bytes that every order takes: those of one operator's tensors and scratch memory, less what its result may share."""
    sharing: dict[tuple[int, int], list[Pair]] = {}
    for pair in pairs:
        sharing.setdefault(pair.place, []).append(pair)
    tensors, most = model.tensors, 0
    for graph, subgraph in enumerate(model.subgraphs):
        for position, operator in enumerate(subgraph.operators):
            if (graph, position) not in lives.operators:
                continue
            touched = {*operator.reads, *operator.writes}.intersection(model.planned).difference(lives.unwritten)
            taken = sum(tensors[number].size for number in touched)
            shared = 0
            for pair in sharing.get((graph, position), ()):
                # Offsets are multiples of the alignment.
                apart = -(-(pair.distance - tensors[pair.operand].content) // ALIGNMENT) * ALIGNMENT
                size = tensors[pair.result].size
                shared += max(0, min(size, tensors[pair.operand].size, size - apart))
            own = min([shared, *(tensors[number].size for number in operator.writes[:1])])
            most = max(most, taken - own + sum(map(rounded, scratch.get((graph, position), ()))))
    return most
