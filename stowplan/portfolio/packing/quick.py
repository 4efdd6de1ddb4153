"""A packing in a moment, without compiled code: buffers by size, each at the lowest offset that is free."""

from __future__ import annotations

from collections.abc import Callable

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.context import Options
from stowplan.portfolio.first_fit import FirstFit


def quick_plan(problem: Problem, options: Options, should_stop: Callable[[], bool]) -> tuple[str, Plan] | None:
    """The plan, under the name ``quick``; None where it does not fit.

    A life counts as a whole, with its gaps. Stopped early, the buffers that are left stand above all others.
    """
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
    return None if has_fixed and not verify(problem, plan).ok else ("quick", plan)
