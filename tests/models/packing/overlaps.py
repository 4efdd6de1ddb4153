"""Small packing problems with overlaps, and their least heights by trying every offset, cell by cell."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, product

import msgspec

from stowplan.models.packing.problem import Buffer, Overlap, Problem
from tests.models.packing.cases import moments


def random_overlaps(seed: int, most: int = 5, capacity: int | None = None, *, same: bool = False) -> Problem:
    """Up to ``most`` buffers, which may take bytes of those that they are born in the life of, and end no sooner than.

    With ``same``, there are few sizes, and buffers of one size may have the same offset, whichever of them ends first.
    """
    chance, coin = random.Random(seed), random.Random(seed + 1000)
    aligned, fixed = seed % 3 == 1, seed % 7 == 3
    buffers: list[Buffer] = []
    for number in range(chance.randint(2, most)):
        lower = chance.randint(0, 4)
        upper = lower + chance.randint(1, 4)
        size = chance.choice([0, 1, 2, 3, 4, 5])
        if same:
            size = coin.choice([2, 2, 3, 3, 5])
        overlaps = tuple(
            Overlap(operand=other.id, distance=chance.randint(0, size + other.size))
            for other in buffers
            if other.lower <= lower < other.upper <= upper and not other.gaps and chance.random() < 0.8
        )
        for other in buffers if same else ():
            meets = other.lower <= lower < other.upper and not other.gaps
            if meets and other.size == size and coin.random() < 0.7:
                overlaps = (
                    *(each for each in overlaps if each.operand != other.id),
                    Overlap(operand=other.id, distance=None),
                )
        alignment = chance.choice([1, 2, 4]) if aligned else 1
        offset = alignment * chance.randint(0, 2) if fixed and chance.random() < 0.2 else None
        gaps = ((lower + 1, lower + 2),) if upper - lower > 2 and not overlaps and chance.random() < 0.3 else ()
        buffers.append(
            Buffer(
                id=f"b{number}",
                lower=lower,
                upper=upper,
                size=size,
                alignment=alignment,
                gaps=gaps,
                offset=offset,
                overlaps=overlaps or msgspec.UNSET,
            )
        )
    chance.shuffle(buffers)
    return Problem(name=f"overlaps {seed}", buffers=tuple(buffers), capacity=capacity)


def random_graph(seed: int, count: int, longest: int) -> Problem:
    """Results of operators that run one after the other; up to two operands that die at one may share bytes with its result."""
    chance = random.Random(seed)
    sizes = [16 * chance.randrange(1, 129) for _ in range(count)]
    ends = [min(count, at + 1 + chance.randrange(1, longest)) for at in range(count)]
    buffers: list[Buffer] = []
    for at, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        dying = [other for other in range(at) if ends[other] == at + 1][:2]
        overlaps = tuple(
            Overlap(operand=f"b{other}", distance=16 * chance.randrange(sizes[other] // 16 + 1)) for other in dying
        )
        told = overlaps or msgspec.UNSET
        buffers.append(Buffer(id=f"b{at}", lower=at, upper=end, size=size, alignment=16, overlaps=told))
    return Problem(name=f"graph {seed}", buffers=tuple(buffers))


def sharing(problem: Problem, offsets: Sequence[int]) -> set[tuple[int, int]]:
    """Pairs, smaller number first, that share a byte at a moment and must not, cell by cell."""
    number = {buffer.id: at for at, buffer in enumerate(problem.buffers)}
    allowed = {
        (min(at, other), max(at, other))
        for at, result in enumerate(problem.buffers)
        for overlap in result.overlaps or ()
        for other in (number[overlap.operand],)
        if (
            offsets[at] == offsets[other]
            if overlap.distance is None
            else offsets[at] + overlap.distance <= offsets[other] + problem.buffers[other].size
        )
    }
    cells = [
        {*product(moments(buffer), range(offset, offset + buffer.size))}
        for buffer, offset in zip(problem.buffers, offsets, strict=True)
    ]
    return {(i, j) for i, j in combinations(range(len(cells)), 2) if cells[i] & cells[j]} - allowed


def least_height(problem: Problem) -> int | None:
    """Optimum in bytes, by all offsets; None where fixed offsets collide."""
    buffers = problem.buffers
    highest = sum(buffer.size + buffer.alignment for buffer in buffers) + 8
    lives = [moments(buffer) for buffer in buffers]
    distance = {(at, overlap.operand): overlap.distance for at, each in enumerate(buffers) for overlap in each.overlaps or ()}

    def collide(one: int, other: int, at_one: int, at_other: int) -> bool:
        for result, operand, at, below in ((one, other, at_one, at_other), (other, one, at_other, at_one)):
            free = distance.get((result, buffers[operand].id), -1)
            if at == below if free is None else free >= 0 and at + free <= below + buffers[operand].size:
                return False
        bytes_of_one, bytes_of_other = (
            range(at_one, at_one + buffers[one].size),
            range(at_other, at_other + buffers[other].size),
        )
        return bool(lives[one] & lives[other]) and bool({*bytes_of_one} & {*bytes_of_other})

    def place(offsets: tuple[int, ...], height: int) -> bool:
        number = len(offsets)
        if number == len(buffers):
            return True
        buffer = buffers[number]
        choices = range(0, height + 1, buffer.alignment) if buffer.offset is None else (buffer.offset,)
        return any(
            not any(collide(number, other, offset, at) for other, at in enumerate(offsets))
            and place((*offsets, offset), height)
            for offset in choices
            if offset + buffer.size <= height
        )

    return next((height for height in range(highest + 1) if place((), height)), None) if place((), highest) else None
