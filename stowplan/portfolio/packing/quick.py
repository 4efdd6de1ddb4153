"""A packing in a moment, without compiled code.

Buffers by size, each at the lowest offset that is free; many buffers by time, as an allocator would place them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.context import Context, Options
from stowplan.portfolio.first_fit import FirstFit

#: More buffers than this are placed by time: by size, each is compared with all others.
MANY = 1500

#: Beyond this many, verifying the plan takes longer than the first good one does.
TOO_MANY = 200_000

#: Buffers placed between two looks at the clock.
_BATCH = 1000


def quick_plan(problem: Problem, options: Options, should_stop: Callable[[], bool]) -> tuple[str, Plan] | None:
    """The plan, and its name; None where it does not fit, or there are more than :data:`TOO_MANY` buffers.

    A life counts as a whole, with its gaps. Stopped early, the buffers that are left stand above all others. The name is
    ``greedy`` where the plan is that of the baseline: by size, come to its end, and without gaps; else ``quick``.
    """
    if len(problem.buffers) > TOO_MANY:
        return None
    if len(problem.buffers) > MANY and all(buffer.offset is None for buffer in problem.buffers):
        return _by_time(problem, should_stop)
    return _by_size(problem, should_stop)


def greedy(problem: Problem, context: Context) -> None:
    """First fit by size as a candidate, the baseline and nothing more; by compiled code where :func:`quick_plan` is another."""
    if len(problem.buffers) <= MANY and not any(buffer.gaps for buffer in problem.buffers):
        found = quick_plan(problem, context.options, context.closed)
        if found is None:
            context.note("its plan does not fit")
        elif found[0] == "greedy":
            context.plan(found[1], "greedy")
        return
    from stowplan.portfolio.packing import arrays, orders
    from stowplan.portfolio.packing.search import Placements

    data = arrays.build(problem)
    placed = Placements(data, context.closed).first_fit(next(orders.greedy_keys(data)))
    if placed is None:
        return
    height, offsets = placed
    if problem.capacity is not None and height * data.unit > problem.capacity:
        context.note(f"its plan takes {height * data.unit:,} bytes of {problem.capacity:,}")
    else:
        context.plan(arrays.export_plan(problem, data, offsets), "greedy")


def _by_size(problem: Problem, should_stop: Callable[[], bool]) -> tuple[str, Plan] | None:
    room = FirstFit()
    offsets = [0] * len(problem.buffers)
    for number, buffer in enumerate(problem.buffers):
        if buffer.offset is not None:
            offsets[number] = buffer.offset
            room.put(buffer.lower, buffer.upper, buffer.size, buffer.offset)
    stopped = False
    free = [number for number, buffer in enumerate(problem.buffers) if buffer.offset is None and buffer.size]
    for number in sorted(free, key=lambda number: -problem.buffers[number].size):
        buffer = problem.buffers[number]
        stopped = stopped or should_stop()
        if stopped:
            offsets[number] = room.height + -room.height % buffer.alignment
            room.height = offsets[number] + buffer.size
        else:
            offsets[number] = room.take(buffer.lower, buffer.upper, buffer.size, buffer.alignment) or 0
    if problem.capacity is not None and room.height > problem.capacity:
        return None
    plan = Plan(problem=problem.digest, objective=room.height, offsets=tuple(offsets))
    # Fixed offsets may collide.
    has_fixed = len(free) < len(problem.buffers)
    if has_fixed and not verify(problem, plan).ok:
        return None
    return "quick" if stopped or any(buffer.gaps for buffer in problem.buffers) else "greedy", plan


def _by_time(problem: Problem, should_stop: Callable[[], bool]) -> tuple[str, Plan] | None:
    """As an allocator does it: each buffer, when its life begins, into the smallest free block that holds it."""
    events = sorted(
        (moment, begins, number)
        for number, buffer in enumerate(problem.buffers)
        if buffer.size
        for moment, begins in ((buffer.lower, True), (buffer.upper, False))
    )
    blocks = Blocks()
    offsets = [0] * len(problem.buffers)
    stopped = False
    for count, (_, begins, number) in enumerate(events):
        buffer = problem.buffers[number]
        if not begins:
            if not stopped:
                blocks.release(offsets[number], buffer.size)
            continue
        stopped = stopped or (count % _BATCH == _BATCH - 1 and should_stop())
        offsets[number] = (blocks.take_top if stopped else blocks.take)(buffer.size, buffer.alignment)
    if problem.capacity is not None and blocks.height > problem.capacity:
        return None
    return "quick", Plan(problem=problem.digest, objective=blocks.height, offsets=tuple(offsets))


class Blocks:
    """Free blocks of a memory that grows at its top."""

    def __init__(self) -> None:
        self.height = 0
        """Byte after the last one ever taken."""
        # (bytes, offset), ascending; and by offset and by end.
        self._by_size: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}

    def take(self, size: int, alignment: int) -> int:
        """Offset in the smallest block that is large enough wherever it begins; at the top where there is none."""
        at = bisect_left(self._by_size, (size + alignment - 1, -1))
        if at == len(self._by_size):
            return self.take_top(size, alignment)
        length, start = self._by_size[at]
        self._remove(start, start + length)
        offset = start + -start % alignment
        self._add(start, offset)
        self._add(offset + size, start + length)
        return offset

    def take_top(self, size: int, alignment: int) -> int:
        """Offset above everything that was ever taken, but for a free block that ends there."""
        start = self._starts.get(self.height, self.height)
        if start < self.height:
            self._remove(start, self.height)
        offset = start + -start % alignment
        self._add(start, offset)
        end = offset + size
        if end < self.height:
            # The block held it after all.
            self._add(end, self.height)
        self.height = max(self.height, end)
        return offset

    def release(self, offset: int, size: int) -> None:
        """Free what was taken; free neighbours become one block."""
        start, end = self._starts.get(offset, offset), self._ends.get(offset + size, offset + size)
        if start < offset:
            self._remove(start, offset)
        if end > offset + size:
            self._remove(offset + size, end)
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        if start < end:
            insort(self._by_size, (end - start, start))
            self._ends[start], self._starts[end] = end, start

    def _remove(self, start: int, end: int) -> None:
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        del self._ends[start], self._starts[end]
