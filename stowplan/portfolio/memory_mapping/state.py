"""The tables of a partial memory-mapping plan.

They are the residencies (slots), a map of fast memory sorted by offset, the queue of copies, and the timeline of the last
replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stowplan.portfolio.memory_mapping.arrays import Ints

#: A number above any objective, which marks a plan that is not valid.
NEVER = 1 << 62

# What a tensor may do at an access, as bits: begin a residency with it; stay in fast memory from it to the next access.
ENTER, STAY = 1, 2

# How a residency gets its content: its first access writes it, a copy brings it, or it is there before the program starts.
DEFINED, COPIED, PRELOADED = 0, 1, 2


class SlotRow:
    """A residency; a free slot has tensor -1."""

    tensor: int
    first: int
    """First access that it serves."""
    last: int
    """Last access that it serves."""
    source: int
    """``DEFINED``, ``COPIED`` or ``PRELOADED``."""
    start: int
    """Boundary at which it begins."""
    end: int
    """Boundary at which it ends."""
    offset: int
    """Offset in bytes."""
    bytes: int
    """Size in bytes."""
    out_start: int
    """Boundary at which its copy-out is queued; -1 if it has none."""
    out_end: int
    """Boundary at which the copy-out is due."""
    next: int
    """Next slot of the tensor, or next free slot; -1 at the end."""


class CopyRow:
    """A queued copy: number ``2 * slot`` is a slot's copy-in, ``2 * slot + 1`` its copy-out."""

    before: int
    """The copy before it in the queue of its boundary; -1 for none."""
    after: int
    """The copy after it."""
    due: int
    """Boundary that waits for it."""
    length: int
    """Duration (ps)."""
    begin: int
    """When it begins in the last replay, counted from the begin of its boundary (ps; may be negative)."""
    end: int
    """When it ends, likewise."""


class MomentRow:
    """A boundary, with the step that follows it."""

    duration: int
    """Weighted latency of the step (ps); 0 at the end of the program."""
    head: int
    """First copy queued here; -1 for none."""
    tail: int
    """Last copy queued here."""
    due: int
    """When the copies that the boundary waits for are complete (ps; scratch space, 0 between replays)."""
    stalled: int
    """How long the boundary waits for copies (ps)."""
    idle: int
    """1 if all channels are idle when the program arrives here."""
    dirty: int
    """1 if the queue here or the latency of the step has changed since the last replay."""


class Totals:
    """Sums over the plan, and ends of lists."""

    total: int
    """Objective of the last replay (ps), or NEVER if there is a forbidden stall."""
    latency: int
    """Sum of the durations of all steps (ps)."""
    stalled: int
    """Sum of all waiting times (ps)."""
    placed: int
    """Number of residencies in the map of memory."""
    preloads: int
    """Number of residencies that begin with the program."""
    free: int
    """First free slot."""
    dirty_from: int
    """First dirty boundary."""
    dirty_to: int
    """Last dirty boundary."""
    shift: int
    """By how much the timeline after the replayed part moves (ps; scratch space)."""
    reach: int
    """Latest boundary that waits for a replayed copy (scratch space)."""
    insertions: int
    """Number of insertions that were started. During one, nothing else changes in the map of memory."""


class Draft:
    """The tensor being inserted."""

    slot: int
    """Its open residency, -1 while it is in slow memory."""
    written: int
    """Boundary at which the content of the open residency is complete."""
    unsaved: int
    """1 while the open residency has content that slow memory does not have."""
    valid: int
    """Boundary from which on the content in slow memory is valid; NEVER if it is not."""
    ended: int
    """Boundary at which its last residency ended."""
    accepts_loss: int
    """1 if reads are served from fast memory even if that alone saves nothing."""


class MemoRow:
    """A cached query of the map of memory for the tensor being inserted, with its answer."""

    number: int
    """The insertion during which the answer holds: see ``Totals.insertions``."""
    start: int
    """First step of the query."""
    end: int
    """Step after the last."""
    place: int
    """Offset of the query; -1 if it was for any offset."""
    answer: int
    """The offset that was found, or whether the given one is free."""


class State(NamedTuple):
    """A partial plan. There are S slots, as many as accesses (A), W windows, T steps, N tensors, U uses and K channels."""

    slots: Sequence[SlotRow]
    """[S]"""
    copies: Sequence[CopyRow]
    """[2 S]"""
    order: Ints
    """[S] the map of memory: the slots in use by offset, ``totals.placed`` of them."""
    window_counts: Ints
    """[W] number of residencies in each window of time (see ``space``)."""
    nearby: Ints
    """[W * ROOM] the residencies of each window by offset; undefined for windows with more than ROOM residencies."""
    moments: Sequence[MomentRow]
    """[T + 1]"""
    began: Ints
    """[T + 1] when each step begins in the last replay, after waiting for copies (ps)."""
    totals: Sequence[Totals]
    """[1]"""
    draft: Sequence[Draft]
    """[1]"""
    first_slot: Ints
    """[N] first slot of each tensor, -1 if it has none."""
    fast: Ints
    """[U] 1 if the use is fast."""
    free_at: Ints
    """[K] when each channel is free (ps; scratch space)."""
    memo: Sequence[MemoRow]
    """[MEMO] cached answers for the tensor being inserted (see ``space``)."""
    kept: Sequence[SlotRow]
    """[S] residencies of a tensor that was removed to try another way (scratch space)."""
    permits: Ints
    """[A] what a tensor may do at each access, as bits ``ENTER`` and ``STAY``: both, unless a construction follows a hint."""
