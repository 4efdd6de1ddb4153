"""What a picture of a plan shows, as numbers: boxes, occupancy, copies and stalls; drawing them is left to others.

The horizontal axis is logical time (boundaries 0 to T) or simulated time (picoseconds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError, UsageError
from stowplan.hardware.simulator import Timeline, Transfer, simulate
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.report.boxes import Box

TimeAxis = Literal["steps", "seconds"]

#: Plans that use less than one part in so many of fast memory would be nothing but a line at the bottom of it.
_LITTLE = 8


@dataclass(frozen=True)
class Bar:
    """A copy as it ran, on one lane of its direction's row; ``left`` and ``right`` on the time axis."""

    transfer: Transfer
    left: float
    right: float
    lane: int
    in_stall: bool
    """Whether its window is empty: it begins and ends at one boundary, while the program waits."""


@dataclass(frozen=True)
class Stall:
    """The program waits ``wait_ps`` before step ``boundary``; on the axis of steps a stall has no width."""

    boundary: int
    wait_ps: int
    left: float
    right: float


@dataclass(frozen=True)
class Layout:
    """One plan, ready to be drawn."""

    problem: Problem
    plan: Plan
    timeline: Timeline
    axis: TimeAxis
    left: NDArray[np.float64]
    """Where each residency begins on the time axis, in the order of ``plan.residencies``."""
    right: NDArray[np.float64]
    boundaries: NDArray[np.float64]
    """Place of each boundary 0 to T on the time axis."""
    occupancy: NDArray[np.int64]
    """Bytes in use during each step, ``[T]``."""
    bars: tuple[Bar, ...]
    lanes: int
    """Copies that run at once in one direction, at most."""
    stalls: tuple[Stall, ...]
    top: int
    """Where the axis of offsets ends, bytes; see :func:`share_top`."""

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The residencies as boxes, in the order of the plan."""
        return tuple(
            Box(stay.tensor, float(left), float(right), stay.offset, self.problem.tensors[stay.tensor].size)
            for stay, left, right in zip(self.plan.residencies, self.left, self.right, strict=True)
        )

    @property
    def end(self) -> float:
        """Where the program ends on the time axis; 1 for an empty one, so that it can be a scale."""
        last = float(self.timeline.total_ps) if self.axis == "seconds" else float(self.problem.horizon)
        return last or 1.0


def build_layout(problem: Problem, plan: Plan, axis: TimeAxis = "steps", timeline: Timeline | None = None) -> Layout:
    """Lay out ``plan``; simulates it unless ``timeline`` is given.

    The plan need not be valid: a picture may show what is wrong with it.

    Raises
    ------
    InputError
        If the plan is for another problem, or names tensors or steps that do not exist.
    UsageError
        If ``axis`` is neither ``steps`` nor ``seconds``.
    """
    if axis not in ("steps", "seconds"):
        raise UsageError(f"found time axis {axis!r}, expected 'steps' or 'seconds'")
    check_fits(problem, plan)
    timeline = simulate(problem, plan) if timeline is None else timeline
    begins = np.asarray(timeline.step_start_ps, dtype=np.float64)
    arrivals = begins - np.asarray(timeline.step_wait_ps, dtype=np.float64)
    # A wait belongs to the boundary it happens at, so boxes change hands when the program arrives there.
    boundaries = arrivals if axis == "seconds" else np.arange(problem.horizon + 1, dtype=np.float64)
    starts = np.array([residency.start for residency in plan.residencies], dtype=np.int64)
    ends = np.array([residency.end for residency in plan.residencies], dtype=np.int64)
    bars = _bars(problem, plan, timeline, axis, arrivals, begins)
    return Layout(
        problem=problem,
        plan=plan,
        timeline=timeline,
        axis=axis,
        left=boundaries[starts],
        right=boundaries[ends],
        boundaries=boundaries,
        occupancy=_occupancy(problem, plan, starts, ends),
        bars=bars,
        lanes=max((bar.lane + 1 for bar in bars), default=1),
        stalls=tuple(
            Stall(t, wait, float(boundaries[t]), float(begins[t] if axis == "seconds" else t))
            for t, wait in enumerate(timeline.step_wait_ps)
            if wait > 0
        ),
        top=problem.capacity,
    )


def share_top(layouts: Sequence[Layout]) -> list[Layout]:
    """Layouts of one problem with one axis of offsets: to the capacity, or less far where all plans use little of it."""
    used = max((box.bottom + box.size for layout in layouts for box in layout.boxes), default=0)
    # Boxes of an invalid plan may overlap, and take more together than the highest of them.
    used = max([used, *(int(layout.occupancy.max(initial=0)) for layout in layouts)])
    return [
        replace(layout, top=1 << (used - 1).bit_length()) if 0 < _LITTLE * used <= layout.problem.capacity else layout
        for layout in layouts
    ]


def check_fits(problem: Problem, plan: Plan) -> None:
    """Raise :class:`~stowplan.errors.InputError` unless ``plan`` is for ``problem`` and its numbers exist."""
    if plan.problem != problem.digest:
        raise InputError(f"found a plan for problem {plan.problem[:12]}…, expected {problem.digest[:12]}…", place="plan")
    tensors, horizon = len(problem.tensors), problem.horizon
    spans = [(f"residencies[{i}]", part.tensor, part.start, part.end) for i, part in enumerate(plan.residencies)]
    spans += [(f"copies[{i}]", part.tensor, part.start, part.end) for i, part in enumerate(plan.copies)]
    for place, tensor, start, end in spans:
        if not (0 <= tensor < tensors and 0 <= start <= end <= horizon):
            raise InputError(
                f"found tensor {tensor} during [{start}, {end}), expected a tensor below {tensors} "
                f"and steps within 0 to {horizon}",
                place=f"plan.{place}",
            )
    for use in plan.fast_uses:
        if not 0 <= use < problem.use_count:
            raise InputError(f"found use {use}, expected one below {problem.use_count}", place="plan.fast_uses")


def _occupancy(problem: Problem, plan: Plan, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    sizes = np.array([problem.tensors[residency.tensor].size for residency in plan.residencies], dtype=np.int64)
    change = np.zeros(problem.horizon + 1, dtype=np.int64)
    np.add.at(change, starts, sizes)
    np.subtract.at(change, ends, sizes)
    return np.cumsum(change)[:-1]


def _bars(
    problem: Problem,
    plan: Plan,
    timeline: Timeline,
    axis: TimeAxis,
    arrivals: NDArray[np.float64],
    begins: NDArray[np.float64],
) -> tuple[Bar, ...]:
    durations = np.append(arrivals[1:] - begins[:-1], 1.0)

    def place(moment: int, first: int, last: int, side: Literal["left", "right"]) -> float:
        """Moment on the time axis; a copy never leaves its window ``[first, last]`` of steps."""
        if axis == "seconds":
            return float(moment)
        # Steps that take no time share a moment: what begins there belongs to the last of them, what ends to the first.
        step = max(0, int(np.searchsorted(begins, moment, side=side)) - 1)
        part = (moment - begins[step]) / durations[step] if durations[step] > 0 else 0.0
        return float(min(max(step + min(max(part, 0.0), 1.0), first), last))

    free: dict[str, list[int]] = {"in": [], "out": []}
    bars: list[Bar] = []
    for transfer in sorted(timeline.transfers, key=lambda item: (item.begin_ps, item.end_ps, item.copy)):
        lanes = free[transfer.direction]
        lane = next((index for index, until in enumerate(lanes) if until <= transfer.begin_ps), len(lanes))
        if lane == len(lanes):
            lanes.append(0)
        lanes[lane] = transfer.end_ps
        copy = plan.copies[transfer.copy]
        left = place(transfer.begin_ps, copy.start, copy.end, "right")
        right = max(left, place(transfer.end_ps, copy.start, copy.end, "left"))
        bars.append(Bar(transfer, left, right, lane, copy.start == copy.end))
    return tuple(bars)
