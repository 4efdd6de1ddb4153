"""Traces: plans as files for viewers of timelines, such as https://ui.perfetto.dev.

A trace consists of groups: one for each memory, one for the operators and one for the copies. A group has counters of bytes,
and rows of *slices*, which are events with a beginning and an end. The format is that of Chrome's trace viewer in JSON ("Trace
Event Format", Google 2016), in which a group is called a process and a row a thread. Perfetto reads it as well. Viewers
understand all times as microseconds, but the times of a plan have other units, such as steps. :attr:`Trace.microseconds` is the
number of microseconds that represent one unit.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stowplan import files
from stowplan.document import PlanDocument, ProblemDocument


class Slice(NamedTuple):
    """An event that lasts from ``begin`` to ``end``, in the unit of the trace's time, such as an operator or a copy."""

    name: str
    begin: float
    end: float
    facts: Mapping[str, Any] = {}
    """Facts that the viewer shows when the slice is selected."""


@dataclass(frozen=True)
class Group:
    """Rows and counters under one heading."""

    name: str
    rows: Mapping[str, Sequence[Slice]] = field(default_factory=dict)
    """The slices of each row, which do not overlap in time."""
    counters: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    """For each counter ``n + 1`` moments and ``n`` numbers of bytes, each of which holds from its moment to the next."""


@dataclass(frozen=True)
class Trace:
    """A plan as a trace."""

    unit: str
    """The unit of time, in words: ``step``."""
    groups: Sequence[Group]
    """The groups from top to bottom."""
    microseconds: float = 1.0
    """The number of microseconds that represent one unit of time in a viewer."""


def memory(name: str, residencies: Iterable[Slice], edges: Sequence[float], used: Sequence[float]) -> Group:
    """The group of a memory: the bytes in use as a counter, and the residencies in rows.

    Parameters
    ----------
    name
        Name of the memory.
    residencies
        The stays of tensors in the memory. There are as many rows as residencies that are live at the same time.
    edges, used
        ``n + 1`` moments, and the bytes in use from each to the next.
    """
    return Group(name, in_rows(residencies, "buffers"), {"in use": (edges, used)})


def in_rows(slices: Iterable[Slice], name: str) -> dict[str, list[Slice]]:
    """Distributes slices over rows in which they do not overlap. Each slice gets the first row that is free."""
    rows: list[list[Slice]] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for part in sorted(slices, key=lambda part: (part.begin, part.end)):
        while busy and busy[0][0] <= part.begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, len(rows))
            rows.append([])
        row = heapq.heappop(free)
        rows[row].append(part)
        heapq.heappush(busy, (part.end, row))
    return {f"{name} {number}": row for number, row in enumerate(rows)}


def encode(problem: ProblemDocument[PlanDocument], plan: PlanDocument, trace: Trace) -> bytes:
    """The content of a trace file in JSON. Equal plans give equal bytes.

    Raises
    ------
    ValueError
        A counter does not have exactly one moment more than numbers of bytes.
    """
    begins = (part.begin for group in trace.groups for row in group.rows.values() for part in row)
    edges = (edge for group in trace.groups for moments, _ in group.counters.values() for edge in moments[:1])
    # Packing problems may begin at a negative moment, which viewers do not show.
    origin = min([0.0, *begins, *edges])

    def moment(time: float) -> float:
        # Viewers count nanoseconds. Both ends of a slice are rounded in the same way, so that neighbours do not overlap.
        return round((time - origin) * trace.microseconds, 3)

    events: list[dict[str, Any]] = []
    # Perfetto ignores the process of an event that names a thread, so all threads of the file have different numbers. It also
    # assigns the counters of a process to the thread with the number of the process, so no row has the number of a process.
    threads = itertools.count(len(trace.groups) + 1)
    for process, group in enumerate(trace.groups, 1):
        events += _named("process", group.name, {"pid": process}, process)
        for name, slices in group.rows.items():
            row = {"pid": process, "tid": next(threads)}
            events += _named("thread", name, row, row["tid"])
            for part in slices:
                begin = moment(part.begin)
                event = {"ph": "X", **row, "name": part.name, "ts": begin, "dur": round(moment(part.end) - begin, 3)}
                events.append(event | ({"args": dict(part.facts)} if part.facts else {}))
        for name, (moments, values) in group.counters.items():
            # The last moment ends the last value.
            for edge, value in zip(moments, [*values, 0], strict=True):
                events.append({"ph": "C", "pid": process, "name": name, "ts": moment(edge), "args": {"bytes": value}})
    facts = {"problem": problem.digest, "objective": plan.objective, "time": f"1 {trace.unit} = {trace.microseconds:g} us"}
    return files.encode({"otherData": facts, "traceEvents": events})


def _named(what: str, name: str, numbers: dict[str, int], place: int) -> list[dict[str, Any]]:
    """The events that name a group or a row, and say at which place it is shown."""
    facts = {"name": {"name": name}, "sort_index": {"sort_index": place}}
    return [{"ph": "M", **numbers, "name": f"{what}_{fact}", "args": value} for fact, value in facts.items()]
