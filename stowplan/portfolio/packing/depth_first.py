"""Compiled depth-first search over canonical packings: those in which no buffer can be moved lower by itself.

:func:`canonical_search` describes the method. :class:`stowplan.portfolio.packing.arrays.Data` has the buffers: time is divided
into *sections*, sizes and offsets are counted in *units*, and n is the number of buffers. The life of a buffer has a *piece*
for each part without gaps; a *gap* is a time during which the buffer takes no bytes. The *neighbours* of a buffer are those
that are live at the same time. A buffer is *open* as long as it is not placed. The *place* of an open buffer is the lowest
offset above its placed neighbours; that of a buffer with a fixed offset is this offset. A *node* is a partial packing that the
search examines. A *candidate* is a buffer that may be placed next. Nothing in this module raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.compiled import filled, njit, records
from stowplan.portfolio.packing.arrays import Data, Ints, neighbours

#: A number of units that is larger than any height.
_FAR = 1 << 62

#: Outcomes of a search: it found a plan, it proved that there is none, or it reached its limit of nodes.
FOUND, EXHAUSTED, LIMIT = 1, 0, -1

#: The states of the state machine in :func:`canonical_search`, which replaces recursion.
_ENTER, _SUCCEED, _NEXT_CANDIDATE, _NEXT_PART = 0, 1, 2, 3


class Buffer:
    """The state of a buffer in the search: a row of a table of :func:`stowplan.compiled.records`."""

    units: int
    """Size in units."""
    alignment: int
    """Alignment in units."""
    fixed: int
    """Fixed offset in units, -1 if the buffer may go anywhere."""
    begin: int
    """First section of its life."""
    end: int
    """Section after the last section of its life."""
    first_piece: int
    """First piece of its life."""
    end_piece: int
    """Piece after the last piece of its life."""
    first_other: int
    """Index of its first neighbour in the list of all neighbours."""
    end_other: int
    """Index after its last neighbour in that list."""
    rank: int
    """Of two buffers at equal offsets, the one of lower rank is placed first."""
    place: int
    """Lowest offset above the placed neighbours, in units."""
    is_placed: int
    """1 if the buffer is placed, at ``offset``; otherwise 0."""
    offset: int
    """Offset in units, if the buffer is placed."""


class Section:
    """The state of a section in the search. The *members* of a section are the buffers that are live in it."""

    first_member: int
    """Index of its first member in the list of all members."""
    end_member: int
    """Index after its last member in that list."""
    room: int
    """Highest offset, in units, at which the lowest of the open members may start so that all of them fit."""
    open: int
    """Number of open members."""
    spanning: int
    """Number of open buffers whose lives begin before this section and reach into it."""
    watched: int
    """A member that was open and could start at ``room`` or lower when the section was last examined."""


class Frame:
    """One level of the depth-first search. It has to place the open buffers of a *part* of time, which is a range of sections:
    it places one of them, and inner levels place the others."""

    since: int
    """First section of the part."""
    until: int
    """Section after the last section of the part."""
    level: int
    """Offset, in units, of the buffer that was placed on the next outer level."""
    previous: int
    """Rank of the buffer that was placed on the next outer level."""
    open_base: int
    """Index of the part's first open buffer in the list of open buffers, which is sorted by rank."""
    open_end: int
    """Index after the part's last open buffer in that list."""
    candidate_base: int
    """Index of the first buffer that may be placed next, in the list of candidates."""
    candidate_end: int
    """Index after the last buffer that may be placed next, in that list."""
    next_candidate: int
    """Index of the candidate to try next."""
    raises: int
    """How often places of buffers had been raised when the level was entered. Later changes are undone on the way back."""
    placed: int
    """Number of placed buffers when the level was entered. Later placements are undone on the way back."""
    scan: int
    """The current placement divides the rest into independent parts, which are searched one after the other. The next of these
    parts begins at this section or later."""
    is_isolated: int
    """1 if the buffer that is placed on this level has no open neighbour; otherwise 0."""


class PreparedBuffers:
    """The buffers of a problem, or of a part of it that is packed independently, prepared for many searches.

    An *overlap* permits two buffers that are live together to share bytes. The searches do not use this permission: buffers
    that are live together never share bytes in their plans.
    """

    def __init__(self, data: Data):
        self.data = data
        start, others = neighbours(data)
        owner = np.repeat(np.arange(len(data.size)), np.diff(data.piece))
        lengths = data.last - data.first
        # The numbers of the sections of every piece, piece by piece.
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
        """Search for a plan within ``capacity`` units.

        Parameters
        ----------
        capacity
            Largest height of the plan, in units.
        order
            [n] indices of all buffers, in the order in which buffers of equal offset are placed.
        limit
            Largest number of nodes.

        Returns
        -------
        tuple
            ``FOUND``, ``EXHAUSTED`` (there is no such plan) or ``LIMIT``; the number of nodes; and the offsets [n] in units,
            which are a plan only after ``FOUND``.
        """
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
    """The length of the scratch space of :func:`canonical_search`."""
    return 2 * (others + 1) + n + 2 * ((n + 1) * n + 1)


def _lists(columns: dict[str, Ints]) -> dict[str, list[int]]:
    """Returns the same columns with each array as a list."""
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
    """Depth-first search for a plan within ``capacity``; returns (FOUND, EXHAUSTED or LIMIT, number of nodes).

    A plan is canonical if no single buffer can be moved lower. If there is a plan, there is a canonical one. Canonical plans
    are built by placing buffers in the order of their offsets, each at the lowest offset above its placed neighbours (Moffitt,
    "MiniMalloc", ASPLOS 2023). Buffers of equal offset are placed in the order of their ranks. The *last placement* is the
    buffer that was placed last. The order allows five ways of pruning:

    - An open buffer whose place is below the offset of the last placement was passed over: it can only go on top of a neighbour
      that is still open.
    - If some open buffer without a fixed offset fits entirely below the place of a candidate, the candidate is not tried. No
      buffer that is placed later starts lower than the candidate. The open buffer could therefore be moved down in the finished
      plan, which would not be canonical.
    - In each section, all open buffers together must fit above the lowest place that any of them can still get.
    - A placement without open neighbours does not constrain the rest. If the rest fails, no other candidate is tried instead.
    - After a placement, parts of time that no open buffer connects are searched independently. If one of them has no plan, the
      placement fails.

    The third check is most of the work. Each section therefore watches one open buffer that can still go low enough. The other
    members of the section are examined only when the watched buffer no longer can.

    ``buffers``, ``sections`` and ``frames`` are the tables that :meth:`PreparedBuffers.search` makes, and they are modified. If
    the outcome is FOUND, the buffers have their offsets. ``order`` [n] has the buffers by rank. ``first`` and ``last`` are the
    arrays of :class:`~stowplan.portfolio.packing.arrays.Data`. ``others`` is the list of all neighbours, ``members`` that of
    all members of sections. ``limit`` is the largest number of nodes; ``room`` is scratch space of the length :func:`_room`.
    """
    n = len(order)
    failed_last = 0
    # Two lists serve to undo changes. One has the buffers whose places were raised, together with their old places; the other
    # has the placed buffers.
    max_raises = len(others) + 1
    raised, before, raises = room[:max_raises], room[max_raises : 2 * max_raises], 0
    stack, placed = room[2 * max_raises : 2 * max_raises + n], 0
    # The lists of open buffers and of candidates of all frames are stored one after the other.
    lists, length = 2 * max_raises + n, (n + 1) * n + 1
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
                    # The buffer was passed over: it goes on top of an open neighbour.
                    top = floor + buffer.units
                    if buffer.fixed >= 0:
                        dead = True
                if top < raised_floor:
                    raised_floor = top
            frame.raises, frame.placed, frame.is_isolated = raises, placed, 0
            frame.candidate_end = frame.next_candidate = frame.candidate_base
            if frame.open_base == frame.open_end:
                step = _SUCCEED
                continue
            # The section that failed last is examined first, because it is the most likely one to fail again.
            at_first = failed_last if frame.since <= failed_last < frame.until else frame.since
            for turn in range(frame.since - 1, frame.since - 1 if dead else frame.until):
                s = turn if turn >= frame.since else at_first
                section = sections[s]
                if section.open == 0:
                    continue
                buffer = buffers[section.watched]
                if buffer.is_placed == 0:
                    at = buffer.place
                    if at < floor or (at == floor and buffer.rank < previous):
                        at = raised_floor
                    if at <= section.room:
                        continue
                dead = True
                for m in range(section.first_member, section.end_member):
                    buffer = buffers[members[m]]
                    at = buffer.place
                    if buffer.is_placed == 1 or at > section.room:
                        continue
                    if at < floor or (at == floor and buffer.rank < previous):
                        at = raised_floor
                        if at <= section.room:
                            # A tighter estimate puts the buffer on top of the lowest of its own open neighbours.
                            at = _FAR
                            for k in range(buffer.first_other, buffer.end_other):
                                other = buffers[others[k]]
                                if other.is_placed == 0:
                                    at = min(at, max(floor, other.place) + other.units)
                    if at <= section.room:
                        section.watched, dead = members[m], False
                        break
                if dead:
                    failed_last = s
                    break
            if not dead:
                # The candidates are sorted by place, then rank. There are few of them, so insertion sort is fast.
                for m in range(frame.candidate_base, count):
                    i = candidates[m]
                    at = buffers[i].place
                    if at < fits_below:
                        k = frame.candidate_end
                        while k > frame.candidate_base and buffers[candidates[k - 1]].place > at:
                            candidates[k] = candidates[k - 1]
                            k -= 1
                        candidates[k] = i
                        frame.candidate_end += 1
            step = _NEXT_CANDIDATE
        elif step == _NEXT_CANDIDATE:
            frame = frames[depth]
            while raises > frame.raises:
                raises -= 1
                buffers[raised[raises]].place = before[raises]
            while placed > frame.placed:
                placed -= 1
                buffer = buffers[stack[placed]]
                buffer.is_placed = 0
                for p in range(buffer.first_piece, buffer.end_piece):
                    for s in range(first[p], last[p]):
                        sections[s].room -= buffer.units
                        sections[s].open += 1
                for s in range(buffer.begin + 1, buffer.end):
                    sections[s].spanning += 1
            if frame.next_candidate >= frame.candidate_end or frame.is_isolated == 1:
                if depth == 0:
                    return EXHAUSTED, nodes
                depth -= 1
                continue
            i = candidates[frame.next_candidate]
            frame.next_candidate += 1
            buffer = buffers[i]
            top = buffer.place + buffer.units
            buffer.offset, buffer.is_placed, stack[placed] = buffer.place, 1, i
            placed += 1
            for p in range(buffer.first_piece, buffer.end_piece):
                for s in range(first[p], last[p]):
                    sections[s].room += buffer.units
                    sections[s].open -= 1
            for s in range(buffer.begin + 1, buffer.end):
                sections[s].spanning -= 1
            fails = top > capacity
            frame.is_isolated = 1
            for k in range(buffer.first_other, buffer.end_other):
                other = buffers[others[k]]
                if other.is_placed == 1:
                    continue
                frame.is_isolated = 0
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
            placement = buffers[candidates[frame.next_candidate - 1]]
            m = frame.open_end
            for k in range(frame.open_base, frame.open_end):
                buffer = buffers[opens[k]]
                if buffer.is_placed == 0 and buffer.begin >= s and buffer.end <= stop:
                    opens[m] = opens[k]
                    m += 1
            below = frames[depth + 1]
            below.open_base, below.open_end = frame.open_end, m
            below.since, below.until, below.candidate_base = s, stop, frame.candidate_end
            below.level, below.previous = placement.offset, placement.rank
            depth += 1
            step = _ENTER
        else:
            if depth == 0:
                return FOUND, nodes
            depth -= 1
            step = _NEXT_PART
