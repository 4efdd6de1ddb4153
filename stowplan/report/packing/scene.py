"""What a picture of a packing shows, as numbers: a box for each time a buffer takes space, and the bytes in use.

The horizontal axis is the problem's own time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.report.boxes import Box


@dataclass(frozen=True)
class Scene:
    """One plan, ready to be drawn."""

    problem: Problem
    plan: Plan
    boxes: tuple[Box, ...]
    start: int
    end: int
    """Of the time axis."""
    times: NDArray[np.int64]
    """Moments at which the bytes in use change, ascending, ``[n + 1]``."""
    load: NDArray[np.int64]
    """Bytes in use from each moment to the next, ``[n]``."""
    peak: int
    """Bytes in use at most: no packing is lower."""
    height: int
    """Highest end of a buffer."""


def check_fits(problem: Problem, plan: object) -> Plan:
    """The plan, where it is one for this problem; raises :class:`~stowplan.errors.InputError` where it is not."""
    if not isinstance(plan, Plan):
        raise InputError(f"found a {type(plan).__name__} of another kind, expected a packing")
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem: expected the same buffers")
    if len(plan.offsets) != len(problem.buffers):
        raise InputError(f"found {len(plan.offsets)} offsets, expected one for each of the {len(problem.buffers)} buffers")
    return plan


def build_scene(problem: Problem, plan: Plan) -> Scene:
    """Lay out a plan, which need not be valid: a picture may show what is wrong with it."""
    check_fits(problem, plan)
    boxes = tuple(
        Box(number, start, end, offset, buffer.size, fixed=buffer.offset is not None)
        for number, (buffer, offset) in enumerate(zip(problem.buffers, plan.offsets, strict=True))
        for start, end in buffer.pieces
    )
    changes: dict[int, int] = {}
    for buffer in problem.buffers:
        for start, end in buffer.pieces:
            changes[start] = changes.get(start, 0) + buffer.size
            changes[end] = changes.get(end, 0) - buffer.size
    times = np.array(sorted(changes) or [0, 1], dtype=np.int64)
    load = np.cumsum([changes.get(int(time), 0) for time in times])[:-1].astype(np.int64)
    return Scene(
        problem=problem,
        plan=plan,
        boxes=boxes,
        start=int(times[0]),
        end=int(times[-1]),
        times=times,
        load=load,
        peak=int(load.max(initial=0)),
        height=max((box.bottom + box.size for box in boxes), default=0),
    )
