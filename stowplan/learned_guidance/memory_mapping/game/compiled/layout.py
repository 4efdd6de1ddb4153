"""The meaning of each number of a compiled game state.

A state is a flat vector ``data`` of int64. The tables say where its sections begin (``at = tables.program[0]``). Moves,
tensors, slots, steps and residencies are numbered as in the game; times are in picoseconds, offsets in bytes, ranges are
half-open, and flags are 0 or 1. *Weighted* times are multiplied by the number of times that the step runs. A visit that
overwrites its tensor completely is one *output move*; any other visit is an *input move* for its reads and, if it writes, also
an output move. In a *uniform* alias group, all uses must be fast or all slow.

* *head*, at 0: scalars, and the legal actions and placements of the current move; the names of this file up to :data:`HEAD`
* *tensors*, at ``at.at_tensors``: :data:`TENSOR` cells for each tensor
* *slots*, at ``at.at_slots``: :data:`SLOT` cells for each slot of the channel
* *latencies*, at ``at.at_latencies``: a cell for each step: its weighted latency (ps) with the current fast uses
* *pieces*, at ``at.at_pieces``: for each piece of each step, a cell with its weighted value (ps). For a step with a latency
  table there is one cell instead, with the number of the subset of its uses that are fast. The first cell of a step is
  ``tables.PartRow.first_piece`` cells after the start of the section
* *dropped*, at ``at.at_dropped``: a flag for each alias group, set where Drop-backup forbids to place it
* *rows*, at ``at.at_rows``: :data:`ROW` cells for each move

Row ``n`` has two independent parts: residency ``n``; and the old values of everything that the move at position ``n`` has
changed, so that the move can be undone. There are never more residencies than moves made, so all rows from ``position`` on are
unused, and only a prefix of the vector matters (``readers.used``). A copy of the vector is a copy of the state.
"""

from __future__ import annotations

# ---------------------------------------------------------------------------------------------------------------- head

POSITION = 0
"""Number of the current move, which is to be made next; the number of all moves at the end."""
RETURN_PS = 1
"""Sum of all rewards so far."""
IS_LOST = 2
"""1 if no action was legal and Drop-backup is off."""
RESETS = 3
"""How often the game went back from an infeasible state."""
BACKUP = 4
"""Position that Drop-backup goes back to: the moves from there on are undone."""
BINDING = 5
"""Number of tensors that bind later moves (:data:`BINDS`). While it is 0, :data:`BACKUP` follows the current move."""
RESIDENCIES = 6
"""Number of residencies."""
LAST_TO_END = 7
"""The residency that ends last, where the list along :data:`BEFORE_IT` begins; -1 if there is none."""
LEGAL = 8
"""Bit ``action`` is set if the action (0 Copy, 1 NoCopy, 2 Drop) is legal in the current move; 0 once the game is over."""
PLACEMENTS = 9
"""The placement of Copy, then that of NoCopy: :data:`PLACEMENT` cells each, all -1 if the action is illegal."""

PLACEMENT = 5
PLACE_START, PLACE_END, PLACE_OFFSET = 0, 1, 2
"""Steps ``[start, end)`` that would be newly occupied, possibly none, and the offset."""
PLACE_FIRST, PLACE_LAST = 3, 4
"""Slots ``[first, last)`` of the copy's window; -1 for NoCopy."""

HEAD = PLACEMENTS + 2 * PLACEMENT
"""Number of cells of the head."""

# The actions of ``game.Action``, as plain integers for compiled code.
COPY, NOCOPY, DROP = 0, 1, 2

# ------------------------------------------------------------------------------------------------------------- tensors

TENSOR = 3
LATEST = 0
"""Number of the tensor's latest residency, its *home*; -1 if it had none."""
SLOW_FROM = 1
"""Boundary from which on the content in slow memory is valid; :data:`NEVER` if it is not."""
FLAGS = 2
"""Sum of the flags below that are set."""

HELD = 1
"""The latest residency has the current content."""
INPUT_FAST = 2
"""The latest input move was Copy or NoCopy, and its visit has no output move, or has one that is still to be made."""
BINDS = 4
"""Placements constrain later moves, so that dropping all of them is not possible."""
GROUP_FAST = 8
"""The tensor is a uniform alias group, and a move has decided that its uses are fast."""
GROUP_SLOW = 16
"""The tensor is a uniform alias group, and a move has decided that its uses are slow."""

NEVER = 1 << 62
"""Later than any boundary."""

# --------------------------------------------------------------------------------------------------------------- slots

SLOT = 2
SUPPLY_PS = 0
"""The part of the slot's supply that copies have not used."""
MARKS = 1
"""Sum of the marks below that are set, and of :data:`COVERED` for each window that contains the slot."""

CROSSED = 1
"""Some window contains both this slot and the next. No second window may, since equation 6 of the paper (Wang et al. 2023)
allows two windows to share at most one slot."""
INTERIOR = 2
"""Some window contains this slot and both its neighbours. Then no other window contains it."""
COVERED = 4

# ---------------------------------------------------------------------------------------------------------------- rows

ROW = 16

# A residency.
RESIDENT = 0
"""Its tensor."""
START, END = 1, 2
"""Steps ``[start, end)``."""
OFFSET, TOP = 3, 4
"""Bytes ``[offset, top)``."""
BEFORE_IT = 5
"""The residency that ends next before this one, or at the same time; -1 if there is none."""
AFTER_IT = 6
"""The residency that ends next after this one, or at the same time; -1 if there is none."""

# A move that has been made.
ACTION = 7
"""The action."""
WINDOW_FIRST, WINDOW_LAST = 8, 9
"""Slots ``[first, last)`` of its copy; -1 if it had none."""
WAS_LATEST, WAS_SLOW_FROM, WAS_FLAGS = 10, 11, 12
"""The tensor's cells before the move."""
WAS_END = 13
"""End of the tensor's home before the move, if the move extended it; -1 for a new residency, or none."""
WAS_FIRST_PS, WAS_LAST_PS = 14, 15
"""Remaining supplies of the window's first and last slot before the move."""
