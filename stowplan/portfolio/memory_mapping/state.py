"""The tables of a partial memory-mapping plan, on which compiled heuristics work.

They are the residencies, a map of fast memory sorted by offset, the queues of copies, and the *timeline*, the times at which
steps begin. A *residency* is the stay of a tensor in fast memory from one boundary to another; its row in a table is a *slot*.
A *boundary* is the moment before a step or after the last one. A *use* is the read or write of a tensor by a step, and an
*access* is all uses of a tensor by one step; uses in a loop or during an asynchronous operation can also be one access together
(:mod:`.arrays`). An access is *fast* if it is served from fast memory. A *replay* brings the timeline and the objective up to
date; it simulates the steps and copies only around changes. A *copy-in* goes to fast memory, a *copy-out* to slow memory. A
copy is *queued* at the boundary from which on it may begin, and is *due* at the boundary that waits for its end. A *stall* is
such a wait that takes time. To *insert* a tensor is to open residencies for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stowplan.portfolio.memory_mapping.arrays import Ints

#: A number above any objective and any boundary. An objective of NEVER marks a plan that is not valid.
NEVER = 1 << 62

# Bits of permissions at an access: a tensor may begin a residency with it (ENTER), and may stay in fast memory from it to the
# next access (STAY).
ENTER, STAY = 1, 2

# How a residency gets its content: its first access writes it, a copy brings it, or it is there before the program starts.
DEFINED, COPIED, PRELOADED = 0, 1, 2


class SlotRow:
    """A residency; a free slot has tensor -1."""

    tensor: int
    """Number of the tensor."""
    first: int
    """First access that the residency serves."""
    last: int
    """Last access that the residency serves."""
    source: int
    """How the residency gets its content: ``DEFINED``, ``COPIED`` or ``PRELOADED``."""
    start: int
    """Boundary at which the residency begins. A copy-in is queued there."""
    end: int
    """Boundary at which the residency ends."""
    offset: int
    """Offset in fast memory, in bytes."""
    bytes: int
    """Size in bytes."""
    out_start: int
    """Boundary at which the copy-out of the residency is queued; -1 if it has none."""
    out_end: int
    """Boundary at which the copy-out is due."""
    next: int
    """Next slot of the tensor, or next free slot; -1 at the end of the list."""


class CopyRow:
    """A queued copy: number ``2 * slot`` is the copy-in of a slot, ``2 * slot + 1`` its copy-out."""

    before: int
    """The copy before it in the queue of its boundary; -1 for none."""
    after: int
    """The copy after it in this queue; -1 for none."""
    due: int
    """Boundary at which the copy is due, that is, which waits for its end."""
    length: int
    """Duration (ps)."""
    begin: int
    """When the copy begins in the last replay (ps). Time 0 is the moment at which the program leaves the boundary where the
    copy is queued, and the step after it begins. The number is negative if the copy begins earlier, while the program waits at
    this boundary for a copy that is both queued and due there."""
    end: int
    """When the copy ends in the last replay, counted in the same way (ps)."""


class MomentRow:
    """A boundary, with the step that follows it."""

    duration: int
    """Latency of all runs of the step together (ps); 0 at the end of the program."""
    head: int
    """First copy queued at the boundary; -1 for none."""
    tail: int
    """Last copy queued at the boundary; -1 for none."""
    due: int
    """When the copies that the boundary waits for are complete (ps; scratch space, 0 between replays)."""
    stalled: int
    """How long the program waits for copies at the boundary (ps)."""
    idle: int
    """1 if all channels are idle when the program arrives at the boundary; otherwise 0."""
    dirty: int
    """1 if the queue of the boundary or the latency of the step has changed since the last replay; otherwise 0."""


class Totals:
    """Numbers of the whole plan: sums, the first free slot, the range of dirty boundaries, and scratch space of a replay."""

    total: int
    """Objective in the last replay (ps), or NEVER if the plan stalls and stalls are forbidden."""
    latency: int
    """Sum of the durations of all steps (ps)."""
    stalled: int
    """Sum of all waiting times (ps)."""
    placed: int
    """Number of residencies in the map of memory."""
    preloads: int
    """Number of residencies that begin with the program."""
    free: int
    """First free slot; -1 if there is none."""
    dirty_from: int
    """First dirty boundary; after the last boundary if there is none."""
    dirty_to: int
    """Last dirty boundary; -1 if there is none."""
    shift: int
    """By how much the timeline after the replayed part moves (ps; scratch space)."""
    reach: int
    """Latest boundary that waits for a replayed copy (scratch space)."""
    insertions: int
    """Number of insertions of tensors that have begun, which is also the number of the latest insertion. Each cached answer
    (:class:`MemoRow`) has the number of its insertion, and is used only during that insertion. Until the insertion ends, the
    answer stays right, because the new residencies do not enter the map of memory before."""


class Draft:
    """The state of the insertion of one tensor, which walks along the tensor's accesses."""

    slot: int
    """Slot of the open residency; -1 while the tensor is in slow memory alone."""
    written: int
    """Boundary at which the content of the open residency is complete."""
    unsaved: int
    """1 while the open residency has content that slow memory does not have; otherwise 0."""
    valid: int
    """Boundary from which on the content in slow memory is valid; NEVER if it is not."""
    ended: int
    """Boundary at which the tensor's last residency ended."""
    accepts_loss: int
    """1 if a residency may begin with any read; 0 if only with a read that would save time even if no other access became
    fast."""


class MemoRow:
    """A cached query of the map of memory for the tensor that is being inserted, with its answer."""

    number: int
    """Number of the insertion during which the answer holds (``Totals.insertions``)."""
    start: int
    """First step of the query."""
    end: int
    """Step after the last step of the query."""
    place: int
    """Offset in bytes of which the query asks whether it is free; -1 if it asks for any free offset."""
    answer: int
    """The free offset that was found (-1 for none), or 1 if the offset of the query is free and 0 if not."""


class State(NamedTuple):
    """A partial plan.

    In shapes, S is the number of slots, A of accesses, T of steps, N of tensors, U of uses, K of channels and W of windows. S
    equals A, because each residency serves at least one access. *Windows* are short ranges of steps with lists of their
    residencies, of at most ``ROOM`` entries each (:mod:`.space`). They are not the windows of copies.
    """

    slots: Sequence[SlotRow]
    """[S] the residencies."""
    copies: Sequence[CopyRow]
    """[2 S] the copies of the slots, which are linked to queues."""
    order: Ints
    """[S] the map of memory: the slots in use by offset, ``totals.placed`` of them."""
    window_counts: Ints
    """[W] number of residencies in each window."""
    nearby: Ints
    """[W * ROOM] the residencies of each window by offset; undefined for windows with more than ROOM residencies."""
    moments: Sequence[MomentRow]
    """[T + 1] the boundaries."""
    began: Ints
    """[T + 1] when each step begins in the last replay, after waiting for copies (ps)."""
    totals: Sequence[Totals]
    """[1] numbers of the whole plan."""
    draft: Sequence[Draft]
    """[1] the insertion that is under way."""
    first_slot: Ints
    """[N] first slot of each tensor, -1 if it has none."""
    fast: Ints
    """[U] 1 if the use is served from fast memory, otherwise 0."""
    free_at: Ints
    """[K] when each channel is free (ps; scratch space)."""
    memo: Sequence[MemoRow]
    """[MEMO] cached answers for the tensor that is being inserted (:mod:`.space`)."""
    kept: Sequence[SlotRow]
    """[S] saved residencies of a tensor while another way to insert it is tried (scratch space)."""
    permits: Ints
    """[A] permissions at each access, as bits ``ENTER`` and ``STAY``. Both are set, except while a plan is built that has only
    the residencies that a hint suggests."""
