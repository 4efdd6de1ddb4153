"""Small packing problems, and their least heights by trying every offset."""

from __future__ import annotations

import random
import time
from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.packing.verify import verify
from tests.patience import HANG


def random_problem(seed: int, most: int = 6, capacity: int | None = None) -> Problem:
    """Up to ``most`` buffers with small sizes; some with alignment, gaps or fixed offsets, by seed."""
    chance = random.Random(seed)
    aligned, gaps, fixed = seed % 3 == 1, seed % 4 >= 2, seed % 5 == 4
    buffers = []
    for number in range(chance.randint(1, most)):
        lower = chance.randint(-2, 8)
        upper = lower + chance.randint(1, 6)
        alignment = chance.choice([1, 2, 3]) if aligned else 1
        holes: list[tuple[int, int]] = []
        if gaps and upper - lower >= 3 and chance.random() < 0.5:
            start = chance.randint(lower, upper - 2)
            holes.append((start, chance.randint(start + 1, upper - (start == lower))))
        offset = alignment * chance.randint(0, 3) if fixed and chance.random() < 0.25 else None
        size = chance.choice([0, 1, 2, 2, 3, 4])
        buffers.append(
            Buffer(id=f"b{number}", lower=lower, upper=upper, size=size, alignment=alignment, gaps=tuple(holes), offset=offset)
        )
    return Problem(name=f"random {seed}", buffers=tuple(buffers), capacity=capacity)


def moments(buffer: Buffer) -> set[int]:
    """The times at which a buffer takes space, one by one."""
    every = set(range(buffer.lower, buffer.upper))
    for start, end in buffer.gaps:
        every -= set(range(start, end))
    return every


def fits(problem: Problem, height: int) -> bool:
    """Whether all offsets within ``height`` can be chosen without two buffers sharing a byte at a moment."""
    taken: set[tuple[int, int]] = set()

    def place(number: int) -> bool:
        if number == len(problem.buffers):
            return True
        buffer = problem.buffers[number]
        last = height - buffer.size
        choices = range(0, last + 1, buffer.alignment) if buffer.offset is None else [buffer.offset]
        for offset in choices:
            if offset > last:
                continue
            cells = {(time, byte) for time in moments(buffer) for byte in range(offset, offset + buffer.size)}
            if not cells & taken:
                taken.update(cells)
                if place(number + 1):
                    return True
                taken.difference_update(cells)
        return False

    return place(0)


def least_height(problem: Problem) -> int | None:
    """Optimum in bytes; None where fixed offsets collide."""
    highest = sum(buffer.size + 2 for buffer in problem.buffers) + 12
    if not fits(problem, highest):
        return None
    return next(height for height in range(highest + 1) if fits(problem, height))


class Recorder(Context):
    """A context that keeps what a candidate reports, after verifying it."""

    def __init__(self, problem: Problem, **options: Any):
        super().__init__(Options(**options))
        self.problem = problem
        self.best: Plan | None = None
        self.bounds: list[int] = []
        self.notes: list[str] = []
        self.infeasible = False
        self.why: dict[str, Any] = {}
        self._end = time.monotonic() + HANG

    def plan(self, plan: Plan, source: str) -> None:
        found = verify(self.problem, plan)
        assert found.ok, (source, found.violations)
        if self.best is None or plan.objective < self.best.objective:
            self.best = plan

    def bound(self, bound: int, source: str) -> None:
        self.bounds.append(bound)

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        self.infeasible = True
        self.why = why or {}

    def note(self, text: str) -> None:
        self.notes.append(text)

    def incumbent(self) -> tuple[Plan | None, int | None]:
        return self.best, max(self.bounds, default=None)

    def closed(self) -> bool:
        return time.monotonic() >= self._end

    def remaining(self) -> float:
        return max(0.0, self._end - time.monotonic())
