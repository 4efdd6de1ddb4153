"""What a plan says of a memory snapshot: how much of what was reserved is fragmentation, and where it lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from stowplan.errors import brief
from stowplan.frontends.snapshot.replay import ALIGNMENT, Replay
from stowplan.frontends.snapshot.trace import Allocation, Trace
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Problem

#: Holes and allocations that are named, lines of their stacks, and letters of a line.
MOST, DEEPEST, WIDEST = 10, 12, 160

#: Frames of a stack that are looked at for a line of the user's.
MOST_FRAMES = 256

#: What stands in paths of files that are not the user's own; those of C++ have no name.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "/lib/python", "/<", "/??")


class Findings:
    """A snapshot's packing problem, torch's own layout, and what a result says of the two.

    Sizes are what was asked for, rounded up to :data:`~stowplan.frontends.snapshot.replay.ALIGNMENT`: no allocator whose
    addresses are aligned so needs less. Times are numbers of events; what was there before them begins at -1.
    """

    def __init__(self, trace: Trace, name: str, capacity: int | None = None):
        self._trace, self._replay = trace, Replay(trace)
        self._names: dict[int, str] = {}
        buffers = tuple(
            Buffer(
                id=self._name(number),
                lower=allocation.lower - 1,
                upper=allocation.upper - 1,
                size=-(-allocation.size // ALIGNMENT) * ALIGNMENT,
                alignment=ALIGNMENT,
            )
            for number, allocation in enumerate(trace.allocations)
        )
        self.problem = Problem(name=name, buffers=buffers, capacity=capacity)

    def plans(self) -> dict[str, Plan]:
        """Where torch had everything, its segments one beside the other; nothing where the snapshot does not say."""
        offsets = self._replay.offsets
        if offsets is None:
            return {}
        height = max(
            (offset + buffer.size for offset, buffer in zip(offsets, self.problem.buffers, strict=True)),
            default=0,
        )
        return {"torch": Plan(problem=self.problem.digest, objective=height, offsets=tuple(offsets))}

    def details(self, objective: int | None, bound: int | None) -> dict[str, Any]:
        """Plain values; bytes, and events by their place in the trace.

        Parameters
        ----------
        objective, bound
            Bytes of the best arena that was found, and what none can be below.
        """
        trace, replay, moment = self._trace, self._replay, self._replay.moment
        peaks, then = replay.peaks, replay.at(moment)
        holes, living = replay.holes(moment), replay.living(moment)
        facts = {
            "device": trace.device,
            "events": trace.events,
            "allocations": len(trace.allocations),
            "unrecorded": trace.unrecorded,
            "peaks": peaks._asdict(),
            "event": moment - 1,
            "grown_for": None if replay.grown_for is None else self._described(replay.grown_for),
            "then": then._asdict(),
            "arena": objective,
            "arena_bound": bound,
            "fragmentation": None if objective is None else peaks.reserved - objective,
            "fragmentation_at_most": None if bound is None else peaks.reserved - bound,
            "rounding": then.active - then.requested,
            "streams": len({allocation.stream for allocation in trace.allocations}),
            "streams_apart_bound": self._apart(),
            "out_of_memory": [
                {"event": at - 1, "asked": size, **replay.at(at)._asdict()} for at, size in trace.shortages[-MOST:]
            ],
            "free": {"bytes": sum(hole.size for hole in holes), "holes": len(holes)},
            "holes": [
                {
                    "bytes": hole.size,
                    "segment": hole.segment.size,
                    "stream": hole.segment.stream,
                    "below": None if hole.below is None else self._described(hole.below),
                    "above": None if hole.above is None else self._described(hole.above),
                    "last": None if (last := replay.last_in(hole, moment)) is None else self._described(last),
                }
                for hole in holes[:MOST]
            ],
            "largest": [self._described(number) for number in living[:MOST]],
        }
        return {"snapshot": facts}

    def _apart(self) -> int:
        """Bytes that are needed at least where no stream uses what another has: each has its own peak."""
        changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for allocation, buffer in zip(self._trace.allocations, self.problem.buffers, strict=True):
            changes[allocation.stream] += [(buffer.upper, -buffer.size), (buffer.lower, buffer.size)]
        # What ends at a moment is gone before anything begins: the negative sizes come first.
        return sum(int(np.cumsum([size for _, size in sorted(own)]).max(initial=0)) for own in changes.values())

    def _described(self, number: int) -> dict[str, Any]:
        allocation = self._trace.allocations[number]
        stack = [_line(frame) for frame in islice(_frames(allocation), DEEPEST)]
        return {"buffer": self._name(number), "bytes": allocation.size, "stack": stack}

    def _name(self, number: int) -> str:
        """The user's line that asked for it, where it is known, and the event; its number where that was not recorded."""
        allocation = self._trace.allocations[number]
        at = f"#{allocation.lower - 1}" if allocation.lower else f"before #{number}"
        for frame in _frames(allocation):
            # Frames of one place are one object, which lives as long as the trace does.
            line = self._names.get(id(frame))
            if line is None:
                line = self._names[id(frame)] = "" if _is_library(frame) else _line(frame)
            if line:
                return f"{line} {at}"
        return at if allocation.frames else f"no stack {at}"


def _frames(allocation: Allocation) -> Iterator[dict[str, Any]]:
    frames = allocation.frames if isinstance(allocation.frames, list) else ()
    return (frame for frame in islice(frames, MOST_FRAMES) if isinstance(frame, dict))


def _is_library(frame: dict[str, Any]) -> bool:
    path = f"/{frame.get('filename', '??')}"
    return any(part in path for part in _LIBRARIES)


def _line(frame: dict[str, Any]) -> str:
    """``train.py:31 step``."""
    name = str(frame.get("filename", "?")).rpartition("/")[2]
    return brief(f"{name}:{frame.get('line', '?')} {frame.get('name', '?')}", WIDEST)
