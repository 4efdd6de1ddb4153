"""Reports how much of the memory that PyTorch reserved is fragmentation, and where, by comparing its layout with a plan.

Fragmentation is the difference between the most bytes that PyTorch had reserved and the bytes of the smallest arena that is
known for the same allocations. A *hole* is a range of free bytes in reserved memory. The trace of a snapshot
(:mod:`.trace`) is *replayed* event by event (:mod:`.replay`) to find the layout and the holes at any moment.
"""

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

#: A report names at most MOST holes and MOST allocations, with at most DEEPEST lines of their stacks and WIDEST characters of
#: each line.
MOST, DEEPEST, WIDEST = 10, 12, 160

#: At most so many frames of a stack are searched for a line of the user's code.
MOST_FRAMES = 256

#: Parts of paths by which files of libraries are recognized; the last two are for frames without a file, such as those of C++.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "/lib/python", "/<", "/??")


class Findings:
    """The packing problem of a snapshot, PyTorch's own layout, and a comparison of a result with this layout.

    Sizes of buffers are the requested bytes, rounded up to multiples of
    :data:`~stowplan.frontends.snapshot.replay.ALIGNMENT`; an allocator whose addresses are multiples of this cannot need less.
    Times are numbers of events; allocations from before the recording begin at -1.

    Parameters
    ----------
    trace
        The allocations and segments of one device.
    name
        Name of the problem.
    capacity
        Bytes into which all buffers must fit; None asks for the smallest arena.

    Raises
    ------
    InputError
        The capacity is out of range.
    TimeLimitError
        The time limit for reading inputs is over.
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
        """PyTorch's own layout as a plan named ``torch``, with segments next to each other.

        The dictionary is empty if the snapshot does not say in which segments its allocations are, or has too many segments.
        """
        offsets = self._replay.offsets
        if offsets is None:
            return {}
        height = max(
            (offset + buffer.size for offset, buffer in zip(offsets, self.problem.buffers, strict=True)),
            default=0,
        )
        return {"torch": Plan(problem=self.problem.digest, objective=height, offsets=tuple(offsets))}

    def details(self, objective: int | None, bound: int | None) -> dict[str, Any]:
        """Entries for ``details`` of a result, as plain values that can be written to JSON. Sizes are in bytes, and events are
        given by their numbers in the trace.

        Parameters
        ----------
        objective, bound
            Bytes of the best arena that was found, and a lower bound on the bytes of every arena. If there is no plan or no
            bound, the value is None, and so are the entries that are computed from it.
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
        """A lower bound on the bytes of memory if streams share none: the sum of the peaks of all streams."""
        changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for allocation, buffer in zip(self._trace.allocations, self.problem.buffers, strict=True):
            changes[allocation.stream] += [(buffer.upper, -buffer.size), (buffer.lower, buffer.size)]
        # At a moment, allocations end before others begin, because sorting puts the negative sizes of ends first.
        return sum(int(np.cumsum([size for _, size in sorted(own_changes)]).max(initial=0)) for own_changes in changes.values())

    def _described(self, number: int) -> dict[str, Any]:
        """Name, size in bytes and stack of an allocation."""
        allocation = self._trace.allocations[number]
        stack = [_line(frame) for frame in islice(_frames(allocation), DEEPEST)]
        return {"buffer": self._name(number), "bytes": allocation.size, "stack": stack}

    def _name(self, number: int) -> str:
        """The name of an allocation: the line of the user's code that requested it, if that is known, and the event.

        For an allocation from before the recording, the name has its number instead of the event.
        """
        allocation = self._trace.allocations[number]
        at = f"#{allocation.lower - 1}" if allocation.lower else f"before #{number}"
        for frame in _frames(allocation):
            # Frames of a snapshot are shared objects that live as long as the trace, so that their ``id`` can be a key.
            line = self._names.get(id(frame))
            if line is None:
                line = self._names[id(frame)] = "" if _is_library(frame) else _line(frame)
            if line:
                return f"{line} {at}"
        return at if allocation.frames else f"no stack {at}"


def _frames(allocation: Allocation) -> Iterator[dict[str, Any]]:
    """The frames of an allocation's stack, the innermost first; entries of another form are skipped."""
    frames = allocation.frames if isinstance(allocation.frames, list) else ()
    return (frame for frame in islice(frames, MOST_FRAMES) if isinstance(frame, dict))


def _is_library(frame: dict[str, Any]) -> bool:
    """Whether a frame is not in the user's code."""
    path = f"/{frame.get('filename', '??')}"
    return any(part in path for part in _LIBRARIES)


def _line(frame: dict[str, Any]) -> str:
    """A frame as text, such as ``train.py:31 step``."""
    name = str(frame.get("filename", "?")).rpartition("/")[2]
    return brief(f"{name}:{frame.get('line', '?')} {frame.get('name', '?')}", WIDEST)
