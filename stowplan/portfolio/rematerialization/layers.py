"""Layers that repeat: a problem with fewer of them, and its plans carried over to all.

In the order given the operators of a layer are a stretch that repeats, once forwards and, the last layer first, once backwards.
Operators are alike whose kind, cost, bytes written and number of reads are. Without layers in the middle, whoever read one that
is gone reads the same of the nearest that is left. A plan of that problem says what runs again, and before which operator; each
of its layers stands for several neighbours of the whole. What comes of it is a sequence that can run, and need not fit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.models.rematerialization.problem import Op, Problem, Tensor
from stowplan.models.rematerialization.structure import Structure, build

Ints = NDArray[np.int64]

#: Layers that are left, and so many times as many are worth the while.
LEFT, WORTH = 4, 2

#: A layer has so many operators of a pass, at least.
SHORTEST = 4


class Slot(NamedTuple):
    """Where an operator is in its layer: which pass, and its place there."""

    stretch: int
    place: int


def layers_of(structure: Structure) -> dict[int, tuple[int, Slot]]:
    """Number of its layer, and slot, of each operator that is of one; empty where no two passes through layers are found."""
    order, writer = structure.order, structure.writer
    stretches = _stretches(_kinds(structure))
    if len(stretches) < 2:
        return {}
    (first, length, count), (second, width, times) = stretches
    layers = {order[first + at]: (at // length, Slot(0, at % length)) for at in range(length * count)}
    # A layer of the backward pass is that of the forward pass whose values it reads.
    back = {order[second + at]: (at // width, Slot(1, at % width)) for at in range(width * times)}
    read: Counter[int] = Counter()
    for op, (at, _) in back.items():
        read.update(layers[writer[value]][0] + at for value in structure.needs[op] if writer[value] in layers)
    if not read:
        return {}
    ((last, _),) = read.most_common(1)
    return layers | {op: (last - at, slot) for op, (at, slot) in back.items()}


def _kinds(structure: Structure) -> Ints:
    """[places of the order] a number that alike operators share."""
    numbers: dict[tuple[object, ...], int] = {}
    kinds = []
    for number in structure.order:
        op = structure.problem.ops[number]
        written = tuple(structure.problem.tensors[write].size for write in op.writes)
        kinds.append(numbers.setdefault((op.kind, op.cost, op.once, written, len(op.reads)), len(numbers)))
    return np.array(kinds, np.int64)


def _stretches(kinds: Ints) -> list[tuple[int, int, int]]:
    """Begin, length and number of repeats of the two longest stretches of the order that repeat, in its order."""
    free = np.ones(len(kinds), bool)
    stretches = []
    for _ in range(2):
        longest, best = 0, (0, 0, 0)
        for length in range(SHORTEST, len(kinds) // 3 + 1):
            same = (kinds[:-length] == kinds[length:]) & free[:-length] & free[length:]
            edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0))
            runs = edges[1::2] - edges[::2]
            # Twice as long a stretch of half as many repeats is as long together.
            if len(runs) and (run := int(runs.max())) >= 2 * length and run + length > longest:
                longest, best = run + length, (int(edges[2 * int(runs.argmax())]), length, run // length + 1)
        begin, length, count = best
        if count:
            stretches.append(best)
            free[begin : begin + length * count] = False
    return sorted(stretches)


class Fewer:
    """A problem with few of a structure's layers.

    Attributes
    ----------
    structure
        Of that problem, without a limit.
    ops
        [operators of that problem] the operator of the whole.
    """

    def __init__(self, whole: Structure, layers: dict[int, tuple[int, Slot]]):
        self.whole, self.layers = whole, layers
        self.at: dict[Slot, dict[int, int]] = defaultdict(dict)
        """Operator at each slot of each layer."""
        for op, (layer, slot) in layers.items():
            self.at[slot][layer] = op
        every = sorted(set.intersection(*(set(by_layer) for by_layer in self.at.values())))
        self.every = every
        """Layers that are whole."""
        self.gone = len(every) - LEFT
        self.middle = every[LEFT // 2]
        self.left = every[: LEFT // 2] + every[LEFT // 2 + self.gone :]
        is_gone = {op for op, (layer, _) in layers.items() if self.middle <= layer < self.middle + self.gone}
        self.ops = [op for op in range(whole.ops) if op not in is_gone]
        self.structure = build(self._problem(is_gone))

    def limit(self, limit: int) -> int:
        """The limit that leaves as large a part of what values take, beside what stays at the end."""
        (base, peak), (own_base, own_peak) = _extent(self.whole), _extent(self.structure)
        return own_base + (limit - base) * (own_peak - own_base) // max(1, peak - base)

    def _problem(self, is_gone: set[int]) -> Problem:
        problem, structure = self.whole.problem, self.whole
        writer = {tensor: structure.writer[value] for value, tensor in enumerate(structure.tensor)}
        numbers: dict[int, int] = {}
        tensors: list[Tensor] = []

        def add(tensor: int) -> int:
            if tensor not in numbers:
                base = problem.tensors[tensor].alias_of
                base = None if base is None else add(base)
                numbers[tensor] = len(tensors)
                tensors.append(msgspec.structs.replace(problem.tensors[tensor], alias_of=base))
            return numbers[tensor]

        def moved(tensor: int, reader: int) -> int:
            """The same tensor of a layer that is left, on the reader's side of those that are gone."""
            while writer.get(tensor, -1) < 0 and (base := problem.tensors[tensor].alias_of) is not None:
                tensor = base
            op = writer.get(tensor, -1)
            if op not in is_gone:
                return tensor
            layer, slot = self.layers[op]
            is_low = self.layers.get(reader, (self.middle + self.gone, slot))[0] < self.middle
            other = self.at[slot][layer + (self.gone if is_low else -self.gone)]
            return problem.ops[other].writes[problem.ops[op].writes.index(tensor)]

        inputs = tuple(map(add, problem.inputs))
        ops: list[Op] = []
        for number in self.ops:
            op = problem.ops[number]
            reads = tuple(dict.fromkeys(add(moved(read, number)) for read in op.reads))
            pairs = tuple((add(moved(operand, number)), add(result)) for operand, result in op.in_place)
            ops.append(msgspec.structs.replace(op, reads=reads, writes=tuple(map(add, op.writes)), in_place=pairs))
        new = {number: at for at, number in enumerate(self.ops)}
        return msgspec.structs.replace(
            problem,
            limit=None,
            tensors=tuple(tensors),
            ops=tuple(ops),
            inputs=inputs,
            outputs=tuple(numbers[output] for output in problem.outputs if output in numbers),
            precedences=tuple((new[one], new[other]) for one, other in problem.precedences if one in new and other in new),
        )

    def carried_over(self, sequence: Sequence[int]) -> list[int]:
        """The whole's order given, with what a sequence of the problem runs again in all layers for which each stands."""
        place = {layer: at for at, layer in enumerate(self.left)}
        stands: dict[int, list[int]] = defaultdict(list)
        for at, layer in enumerate(self.every):
            stands[self.left[at * LEFT // len(self.every)]].append(layer)
        before: dict[int, list[int]] = defaultdict(list)
        seen: set[int] = set()
        again: list[int] = []
        for op in (self.ops[number] for number in sequence):
            if op in seen:
                again.append(op)
                continue
            seen.add(op)
            for earlier in again:
                layer, slot = self.layers.get(earlier, (-1, Slot(0, 0)))
                if layer not in place:
                    before[op].append(earlier)
                    continue
                for other in stands[layer]:
                    anchor = op
                    if (own := self.layers.get(op)) is not None and own[0] in place:
                        anchor = self.at[own[1]].get(other + place[own[0]] - place[layer], -1)
                    before[anchor].append(self.at[slot][other])
            again = []
        carried: list[int] = []
        done: set[int] = set()
        for op in self.whole.order:
            carried += [earlier for earlier in before[op] if earlier in done]
            carried.append(op)
            done.add(op)
        return carried


def _extent(structure: Structure) -> tuple[int, int]:
    """Bytes that stay at the end, and the peak of the order given."""
    kept = {structure.root[value] for value, stays in enumerate(structure.kept) if stays}
    return sum(structure.size[value] for value in kept), structure.ordering.peak(structure.order)


def fewer(structure: Structure) -> Fewer | None:
    """A problem with few of the layers; None where there are none that repeat often."""
    layers = layers_of(structure)
    if len({layer for layer, _ in layers.values()}) < WORTH * LEFT:
        return None
    try:
        return Fewer(structure, layers)
    except (KeyError, IndexError, InputError):
        # What is alike one by one is not so together.
        return None
