"""Compiled depth-first search over canonical packings.

Buffers, sections and units are those of :class:`stowplan.portfolio.packing.arrays.Data`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.compiled import filled, njit, records
from stowplan.portfolio.packing.arrays import Data, Ints, neighbours

_FAR = 1 << 62

FOUND, EXHAUSTED, LIMIT = 1, 0, -1

#: What to do next, in :func:`canonical_search`.
_ENTER, _SUCCEED, _NEXT_CANDIDATE, _NEXT_PART = 0, 1, 2, 3


class Buffer:
    """What the search knows of a buffer: a row of a table of :func:`stowplan.compiled.records`."""

    units: int
    """Size."""
    alignment: int
    fixed: int
    """Offset, -1 where free."""
    begin: int
    end: int
    first_piece: int
    end_piece: int
    first_other: int
    end_other: int
    rank: int
    """Of two buffers at equal offsets the one of lower rank is placed first."""
    place: int
    """Lowest offset above the placed neighbours."""
    done: int
    """1 where placed, at ``offset``."""
    offset: int


class Section:
    """What the search knows of a section."""

    first_member: int
    end_member: int
    room: int
    """How high the lowest of the open buffers may start."""
    open: int
    """Open buffers."""
    spanning: int
    """Open buffers that cross over from the section before."""
    watched: int
    """Member that could start low enough when last looked at."""


class Frame:
    """A part of time under search, below a placement."""

    since: int
    until: int
    """Its sections."""
    level: int
    previous: int
    """Offset and rank of the placement above."""
    open_base: int
    open_end: int
    """Its open buffers, by rank."""
    candidate_base: int
    beyond: int
    upcoming: int
    """Its candidates, and which of them is the next."""
    raises: int
    placed: int
    """What to undo down to: places that were raised, and buffers that were placed."""
    scan: int
    """Section at which to look for the next part below the placement in hand."""
    lonely: int
    """1 where that placement is in nobody's way."""


class Shape:
    """A part of a problem, ready to be searched again and again."""

    def __init__(self, data: Data):
        self.data = data
        start, others = neighbours(data)
        owner = np.repeat(np.arange(len(data.size)), np.diff(data.piece))
        lengths = data.last - data.first
        # For every piece, all its sections.
        sections = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + np.repeat(data.first, lengths)
        by_section = np.argsort(sections, kind="stable")
        member = np.searchsorted(sections[by_section], np.arange(data.sections + 1))
        crossing = np.zeros(data.sections + 2, np.int64)
        np.add.at(crossing, data.begin + 1, 1)
        np.add.at(crossing, data.end, -1)
        self._others, self._members = others, np.repeat(owner, lengths)[by_section]
        self._buffers = {
            "units": data.size,
            "alignment": data.align,
            "fixed": data.fixed,
            "begin": data.begin,
            "end": data.end,
            "first_piece": data.piece[:-1],
            "end_piece": data.piece[1:],
            "first_other": start[:-1],
            "end_other": start[1:],
            "place": np.maximum(data.fixed, 0),
        }
        self._load = data.load()
        self._sections = {
            "first_member": member[:-1],
            "end_member": member[1:],
            "open": np.diff(member),
            "spanning": np.cumsum(crossing)[: data.sections],
            "watched": self._members[member[:-1]],
        }

    def search(self, capacity: int, order: Ints, limit: int) -> tuple[int, int, Ints]:
        """:func:`canonical_search` with buffers of equal offset placed in ``order`` [n]: (outcome, nodes, offsets [n])."""
        n = len(order)
        rank = np.empty(n, np.int64)
        rank[order] = np.arange(n)
        buffers = filled(Buffer, n, {**_lists(self._buffers), "rank": rank.tolist()})
        sections = filled(Section, self.data.sections, _lists({**self._sections, "room": capacity - self._load}))
        outcome, nodes = canonical_search(
            capacity,
            order,
            buffers,
            sections,
            records(Frame, n + 2),
            self.data.first,
            self.data.last,
            self._others,
            self._members,
            limit,
            np.empty(_room(n, len(self._others)), np.int64),
        )
        return outcome, nodes, np.array([buffer.offset for buffer in buffers], np.int64)


def _room(n: int, others: int) -> int:
    """Numbers that :func:`canonical_search` has to work in."""
    return 2 * (others + 1) + n + 2 * ((n + 1) * n + 1)


def _lists(columns: dict[str, Ints]) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in columns.items()}


@njit
def canonical_search(
    capacity: int,
    order: Ints,
    buffers: Sequence[Buffer],
    sections: Sequence[Section],
    frames: Sequence[Frame],
    first: Ints,
    last: Ints,
    others: Ints,
    members: Ints,
    limit: int,
    room: Ints,
) -> tuple[int, int]:
    """Depth-first search for a plan within ``capacity``; returns (FOUND, EXHAUSTED or LIMIT, nodes).

    A plan is canonical when no single buffer can be moved to a lower place; wherever there is a plan there is a canonical
    one. Such plans are built by placing buffers in the order of their offsets, equal ones in the order of their ranks, each at
    the lowest offset above its placed neighbours (Moffitt, "MiniMalloc", ASPLOS 2023). What that order allows to cut:

    - a buffer that was passed over can only go on top of a neighbour that is still to come;
    - where some open buffer would fit below a candidate, the candidate is not canonical;
    - in each section, what is open must fit above the lowest place that any of it can still get;
    - a placement that is in nobody's way cannot be why the rest fails, so that no other is tried in its place;
    - after a placement, parts of time that no open buffer connects are searched apart: where one fails, so does the placement.

    The third is most of the work. Each section therefore watches one open buffer that can still go low enough, and its members
    are looked through only when that one no longer can.

    The tables are those of :meth:`Shape.search` and are changed; where FOUND, buffers have their offsets. ``limit`` is in
    nodes; ``room`` [:func:`_room`] is to work in.
    """
    n = len(order)
    failed_last = 0
    # What to undo: places that were raised, and buffers that were placed.
    most = len(others) + 1
    raised, before, raises = room[:most], room[most : 2 * most], 0
    stack, placed = room[2 * most : 2 * most + n], 0
    # The lists of all frames, one after the other.
    lists, length = 2 * most + n, (n + 1) * n + 1
    opens, candidates = room[lists : lists + length], room[lists + length : lists + 2 * length]
    for m in range(n):
        opens[m] = order[m]
    depth, nodes = 0, 0
    frame = frames[0]
    frame.until, frame.previous, frame.open_end = len(sections), -1, n
    step = _ENTER
    while True:
        if step == _ENTER:
            nodes += 1
            if nodes > limit:
                return LIMIT, nodes
            frame = frames[depth]
            floor, previous = frame.level, frame.previous
            fits_below, raised_floor, dead = _FAR, _FAR, False
            count = frame.candidate_base
            for m in range(frame.open_base, frame.open_end):
                buffer = buffers[opens[m]]
                at = buffer.place
                top = at + buffer.units
                if top < fits_below and buffer.fixed < 0:
                    fits_below = top
                if at > floor or (at == floor and buffer.rank >= previous):
                    if at < fits_below:
                        candidates[count] = opens[m]
                        count += 1
                else:
                    # Passed over.
                    top = floor + buffer.units
                    if buffer.fixed >= 0:
                        dead = True
                if top < raised_floor:
                    raised_floor = top
            frame.raises, frame.placed, frame.lonely = raises, placed, 0
            frame.beyond = frame.upcoming = frame.candidate_base
            if frame.open_base == frame.open_end:
                step = _SUCCEED
                continue
            # The section that failed last is the likeliest to fail again.
            at_first = failed_last if frame.since <= failed_last < frame.until else frame.since
            for turn in range(frame.since - 1, frame.since - 1 if dead else frame.until):
                s = turn if turn >= frame.since else at_first
                section = sections[s]
                if section.open == 0:
                    continue
                buffer = buffers[section.watched]
                if buffer.done == 0:
                    at = buffer.place
                    if at < floor or (at == floor and buffer.rank < previous):
                        at = raised_floor
                    if at <= section.room:
                        continue
                dead = True
                for m in range(section.first_member, section.end_member):
                    buffer = buffers[members[m]]
                    at = buffer.place
                    if buffer.done == 1 or at > section.room:
                        continue
                    if at < floor or (at == floor and buffer.rank < previous):
                        at = raised_floor
                        if at <= section.room:
                            # More exactly: on top of the lowest of its own neighbours.
                            at = _FAR
                            for k in range(buffer.first_other, buffer.end_other):
                                other = buffers[others[k]]
                                if other.done == 0:
                                    at = min(at, max(floor, other.place) + other.units)
                    if at <= section.room:
                        section.watched, dead = members[m], False
                        break
                if dead:
                    failed_last = s
                    break
            if not dead:
                # Candidates by place, then rank: an insertion sort, since they are few.
                for m in range(frame.candidate_base, count):
                    i = candidates[m]
                    at = buffers[i].place
                    if at < fits_below:
                        k = frame.beyond
                        while k > frame.candidate_base and buffers[candidates[k - 1]].place > at:
                            candidates[k] = candidates[k - 1]
                            k -= 1
                        candidates[k] = i
                        frame.beyond += 1
            step = _NEXT_CANDIDATE
        elif step == _NEXT_CANDIDATE:
            frame = frames[depth]
            while raises > frame.raises:
                raises -= 1
                buffers[raised[raises]].place = before[raises]
            while placed > frame.placed:
                placed -= 1
                buffer = buffers[stack[placed]]
                buffer.done = 0
                for p in range(buffer.first_piece, buffer.end_piece):
                    for s in range(first[p], last[p]):
                        sections[s].room -= buffer.units
                        sections[s].open += 1
                for s in range(buffer.begin + 1, buffer.end):
                    sections[s].spanning += 1
            if frame.upcoming >= frame.beyond or frame.lonely == 1:
                if depth == 0:
                    return EXHAUSTED, nodes
                depth -= 1
                continue
            i = candidates[frame.upcoming]
            frame.upcoming += 1
            buffer = buffers[i]
            top = buffer.place + buffer.units
            buffer.offset, buffer.done, stack[placed] = buffer.place, 1, i
            placed += 1
            for p in range(buffer.first_piece, buffer.end_piece):
                for s in range(first[p], last[p]):
                    sections[s].room += buffer.units
                    sections[s].open -= 1
            for s in range(buffer.begin + 1, buffer.end):
                sections[s].spanning -= 1
            fails = top > capacity
            frame.lonely = 1
            for k in range(buffer.first_other, buffer.end_other):
                other = buffers[others[k]]
                if other.done == 1:
                    continue
                frame.lonely = 0
                if other.place >= top:
                    continue
                raised[raises], before[raises] = others[k], other.place
                raises += 1
                other.place = top + -top % other.alignment
                if other.fixed >= 0 or other.place + other.units > capacity:
                    fails = True
                    break
            if not fails:
                frame.scan, step = frame.since, _NEXT_PART
        elif step == _NEXT_PART:
            frame = frames[depth]
            s = frame.scan
            while s < frame.until and sections[s].open == 0:
                s += 1
            if s >= frame.until:
                step = _SUCCEED
                continue
            stop = s + 1
            while stop < frame.until and sections[stop].spanning > 0:
                stop += 1
            frame.scan = stop
            placement = buffers[candidates[frame.upcoming - 1]]
            m = frame.open_end
            for k in range(frame.open_base, frame.open_end):
                buffer = buffers[opens[k]]
                if buffer.done == 0 and buffer.begin >= s and buffer.end <= stop:
                    opens[m] = opens[k]
                    m += 1
            below = frames[depth + 1]
            below.open_base, below.open_end = frame.open_end, m
            below.since, below.until, below.candidate_base = s, stop, frame.beyond
            below.level, below.previous = placement.offset, placement.rank
            depth += 1
            step = _ENTER
        else:
            if depth == 0:
                return FOUND, nodes
            depth -= 1
            step = _NEXT_PART
