"""The tables of a partial memory-mapping plan.

The state holds residencies (slots), a map of fast memory sorted by offset, the queue of copies, and the timeline of the
last replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stowplan.portfolio.memory_mapping.arrays import Ints

#: More than any total; a plan that may not be.
NEVER = 1 << 62

# What a tensor may do at an access, as bits: begin a residency with it; stay from it to the next access.
ENTER, STAY = 1, 2

# Sources of a residency.
DEFINED, COPIED, PRELOADED = 0, 1, 2


class SlotRow:
    """A residency; a free slot has tensor -1."""

    tensor: int
    first: int
    """First access that it serves."""
    last: int
    """Last access that it serves."""
    source: int
    start: int
    end: int
    offset: int
    bytes: int
    out_start: int
    """Boundary at which its copy-out is queued; -1 where it has none."""
    out_end: int
    next: int
    """Next slot of the tensor, or next free slot; -1 at the end."""


class CopyRow:
    """A queued copy: number ``2 * slot`` is a slot's copy-in, ``2 * slot + 1`` its copy-out."""

    before: int
    """Copies before and after it in the queue of its boundary; -1 for none."""
    after: int
    due: int
    """Boundary that waits for it."""
    length: int
    """What it takes (ps)."""
    begin: int
    """When it begins and ends in the last replay, from the moment its boundary began (ps; may be negative)."""
    end: int


class MomentRow:
    """A boundary, and the step that follows it."""

    duration: int
    """Weighted latency of the step (ps); 0 at the end of the program."""
    head: int
    """First and last copy queued here; -1 for none."""
    tail: int
    due: int
    """When the copies that the boundary waits for are complete (scratch, zero between replays)."""
    stalled: int
    """How long the boundary waits (ps)."""
    idle: int
    """Whether all channels are idle when the program comes here."""
    dirty: int
    """Whether the queue here or the latency of the step has changed since the last replay."""


class Totals:
    """Sums and ends of lists."""

    total: int
    """Objective of the last replay, or NEVER for a forbidden stall."""
    latency: int
    """Sum of durations (ps)."""
    stalled: int
    placed: int
    preloads: int
    free: int
    """First free slot."""
    dirty_from: int
    """First and last dirty boundary."""
    dirty_to: int
    shift: int
    """By how much the timeline after the part just played moves (scratch)."""
    reach: int
    """Latest boundary waited for by a copy just played (scratch)."""
    insertions: int
    """How many tensors have been offered the map of memory; while one is, nothing else changes in it."""


class Draft:
    """The tensor being inserted."""

    slot: int
    """Its open residency, -1 while it is in slow memory."""
    written: int
    """Boundary at which the content of the open residency is complete."""
    unsaved: int
    """1 while the open residency holds what slow memory does not."""
    valid: int
    """Boundary from which the slow copy is valid; NEVER where it is not."""
    ended: int
    """End of the last residency."""
    bold: int
    """1 where reads come to fast memory even if that alone saves nothing."""


class MemoRow:
    """A question about the map of memory, of the tensor being inserted, and its answer."""

    number: int
    """The insertion in which it was asked: see ``Totals.insertions``."""
    start: int
    end: int
    place: int
    """Offset that was asked for; -1 where any would do."""
    answer: int


class State(NamedTuple):
    """A partial plan. S slots, as many as accesses; T steps, N tensors, U uses, K channels."""

    slots: Sequence[SlotRow]
    """[S]"""
    copies: Sequence[CopyRow]
    """[2 S]"""
    order: Ints
    """[S]: the map of memory: slots in use by offset, ``totals.placed`` of them."""
    crowd: Ints
    """[W]: how many residencies touch each window of time (see ``space``)."""
    nearby: Ints
    """[W * ROOM]: for each window, those residencies by offset; without a meaning where there are more than ROOM."""
    moments: Sequence[MomentRow]
    """[T + 1]"""
    began: Ints
    """[T + 1]: when each step begins in the last replay, after all waiting (ps)."""
    totals: Sequence[Totals]
    """[1]"""
    draft: Sequence[Draft]
    """[1]"""
    first_slot: Ints
    """[N]: first slot of each tensor, -1 where it has none."""
    fast: Ints
    """[U]: 1 where a use is fast."""
    free_at: Ints
    """[K]: when each channel is free (scratch)."""
    memo: Sequence[MemoRow]
    """[MEMO]: answers that hold for the tensor being inserted (see ``space``)."""
    kept: Sequence[SlotRow]
    """[S]: residencies of a tensor that was taken out to try another way (scratch)."""
    permits: Ints
    """[A]: what a tensor may do at each access: both, but while a construction follows a hint."""
