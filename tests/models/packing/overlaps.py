"""Small packing problems with overlaps, and their least heights by trying every offset, cell by cell."""

from __future__ import annotations

import random
from itertools import product

from stowplan.models.packing.problem import Buffer, Overlap, Problem
from tests.models.packing.cases import moments


def random_overlaps(seed: int, most: int = 5, capacity: int | None = None) -> Problem:
    """Buffers of a chain of operators with branches: results may overlap what their operator reads last."""
    chance = random.Random(seed)
    aligned, fixed = seed % 3 == 1, seed % 7 == 3
    buffers: list[Buffer] = []
    for number in range(chance.randint(2, most)):
        lower = chance.randint(0, 4)
        upper = lower + chance.randint(1, 4)
        size = chance.choice([0, 1, 2, 3, 4, 5])
        dying = [
            other
            for other in buffers
            if other.lower <= lower < other.upper <= upper and not other.gaps and chance.random() < 0.8
        ]
        overlaps = tuple(Overlap(operand=other.id, distance=chance.randint(0, size + other.size)) for other in dying)
        alignment = chance.choice([1, 2, 4]) if aligned else 1
        offset = alignment * chance.randint(0, 2) if fixed and chance.random() < 0.2 else None
        gaps = ((lower + 1, lower + 2),) if upper - lower > 2 and not overlaps and chance.random() < 0.3 else ()
        buffers.append(
            Buffer(id=f"b{number}", lower=lower, upper=upper, size=size, alignment=alignment, gaps=gaps, offset=offset)
            if not overlaps
            else Buffer(
                id=f"b{number}", lower=lower, upper=upper, size=size, alignment=alignment, offset=offset, overlaps=overlaps
            )
        )
    chance.shuffle(buffers)
    return Problem(name=f"overlaps {seed}", buffers=tuple(buffers), capacity=capacity)


def is_valid(problem: Problem, offsets: tuple[int, ...]) -> bool:
    """Whether no byte is under two buffers at a moment, but those that may be."""
    allowed = {
        frozenset((number, other))
        for number, result in enumerate(problem.buffers)
        for overlap in result.overlaps or ()
        for other, operand in enumerate(problem.buffers)
        if operand.id == overlap.operand and offsets[number] + overlap.distance <= offsets[other] + operand.size
    }
    cells: dict[tuple[int, int], list[int]] = {}
    for number, buffer in enumerate(problem.buffers):
        if buffer.offset not in (None, offsets[number]) or offsets[number] % buffer.alignment:
            return False
        for cell in product(moments(buffer), range(offsets[number], offsets[number] + buffer.size)):
            if any(frozenset((number, other)) not in allowed for other in cells.setdefault(cell, [])):
                return False
            cells[cell].append(number)
    return True


def least_height(problem: Problem) -> int | None:
    """Optimum in bytes; None where fixed offsets collide."""
    buffers = problem.buffers
    highest = sum(buffer.size + buffer.alignment for buffer in buffers) + 8

    def place(number: int, offsets: tuple[int, ...], height: int) -> bool:
        if number == len(buffers):
            return True
        last = height - buffers[number].size
        known = Problem(buffers=tuple(_without_unknown(each, {other.id for other in buffers[: number + 1]}) for each in buffers[: number + 1]))
        choices = range(0, last + 1, buffers[number].alignment) if buffers[number].offset is None else (buffers[number].offset,)
        return any(
            is_valid(known, (*offsets, offset)) and place(number + 1, (*offsets, offset), height)
            for offset in choices
            if offset <= last
        )

    if not place(0, (), highest):
        return None
    return next(height for height in range(highest + 1) if place(0, (), height))


def _without_unknown(buffer: Buffer, known: set[str]) -> Buffer:
    kept = tuple(overlap for overlap in buffer.overlaps or () if overlap.operand in known)
    return Buffer(**{**{name: getattr(buffer, name) for name in buffer.__struct_fields__}, "overlaps": kept})
