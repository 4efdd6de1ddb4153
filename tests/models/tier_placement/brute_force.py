"""Every map of a small problem, judged from scratch with fractions: slow, short, and without code of the package's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from math import floor

from stowplan.models.tier_placement.problem import Problem

Map = tuple[tuple[int, ...], tuple[int, ...]]


def latency(problem: Problem, tiers: Map) -> int:
    """Of the network, ps."""
    weight_tiers, output_tiers = tiers
    total = 0
    for number, layer in enumerate(problem.layers):
        read = layer.weight_bytes if layer.weight_read_bytes is None else layer.weight_read_bytes
        moves = [(read, weight_tiers[number]), (layer.output_bytes, output_tiers[number]), (layer.external_bytes, 0)]
        moves += [(problem.layers[source].output_bytes, output_tiers[source]) for source in layer.inputs]
        exact = [Fraction(size * 10**12, problem.tiers[tier].bandwidth) for size, tier in moves]
        total += layer.overhead_ps + max(layer.compute_ps, sum(floor(each + Fraction(1, 2)) for each in exact))
    return total


def stays(problem: Problem, tiers: Map) -> list[tuple[int, int, set[int]]]:
    """(tier, bytes, steps at which it takes room) of every tensor: weights and output of each layer in turn."""
    found = []
    steps = range(len(problem.layers))
    for number, layer in enumerate(problem.layers):
        readers = [step for step in steps if number in problem.layers[step].inputs]
        found.append((tiers[0][number], layer.weight_bytes, set(steps)))
        found.append((tiers[1][number], layer.output_bytes, set(range(number, max([number, *readers]) + 1))))
    return found


def fits(problem: Problem, tiers: Map) -> bool:
    """Whether no tier overflows, and there are offsets where they are wanted."""
    everything = stays(problem, tiers)
    for number, tier in enumerate(problem.tiers):
        for step in range(len(problem.layers)):
            if sum(size for at, size, steps in everything if at == number and step in steps) > tier.capacity:
                return False
    if not problem.address_spaces:
        return True
    inside = [[each for each in everything if each[0] == number and each[1]] for number in range(len(problem.tiers))]
    return all(_packs(those, [], tier.capacity, tier.alignment) for those, tier in zip(inside, problem.tiers, strict=True))


def _packs(
    waiting: list[tuple[int, int, set[int]]], placed: list[tuple[int, int, set[int]]], capacity: int, alignment: int
) -> bool:
    if not waiting:
        return True
    # In some order, everything at its lowest free offset: that reaches a packing wherever there is one.
    for at, (_, size, steps) in enumerate(waiting):
        offset = 0
        while any(start < offset + size and offset < end and steps & those for start, end, those in placed):
            offset += alignment
        rest = waiting[:at] + waiting[at + 1 :]
        if offset + size <= capacity and _packs(rest, [*placed, (offset, offset + size, steps)], capacity, alignment):
            return True
    return False


def maps(problem: Problem) -> Iterator[Map]:
    """Every map; weights of 0 bytes stand in tier 0."""
    tiers = range(len(problem.tiers))
    weights = itertools.product(*[tiers if layer.weight_bytes else (0,) for layer in problem.layers])
    outputs = list(itertools.product(tiers, repeat=len(problem.layers)))
    return itertools.product(weights, outputs)


def optimum(problem: Problem) -> int | None:
    """Least latency of all maps that fit; None where none does."""
    ranked = sorted((latency(problem, each), each) for each in maps(problem))
    return next((value for value, each in ranked if fits(problem, each)), None)
