"""What each number of a compiled game state means.

A state is one flat vector ``data`` of int64. Where its sections begin is in the program's row of the
tables (``at = tables.program[0]``). Numbers of moves, tensors, slots, steps and residencies are those of the game; times are
picoseconds, offsets bytes, ranges half-open, flags 0 or 1.

* *head*, at 0: scalars, and the legal actions and placements of the present move; the names of this file up to :data:`HEAD`
* *tensors*, at ``at.at_tensors``: :data:`TENSOR` cells for each tensor
* *slots*, at ``at.at_slots``: :data:`SLOT` cells for each slot of the channel
* *latencies*, at ``at.at_latencies``: a cell for each step, its weighted latency (ps) with the uses that are fast now
* *pieces*, at ``at.at_pieces``: a cell for each piece of each step (``PartRow.first_piece``), its weighted value (ps); a
  step with a table has one cell, the number of the subset that is fast
* *dropped*, at ``at.at_dropped``: a flag for each alias group, set where Drop-backup forbids to place it
* *rows*, at ``at.at_rows``: :data:`ROW` cells for each move

Row ``n`` holds residency ``n`` and, by itself, what the move at position ``n`` did and what stood there before, so that it can
be taken back. There are no more residencies than moves made: all rows from ``position`` on are unused, and what a state says is
a prefix of its vector (``readers.used``). A copy of the whole vector is a copy of the state as well.
"""

from __future__ import annotations

# ---------------------------------------------------------------------------------------------------------------- head

POSITION = 0
"""Number of the move to make; the number of moves where all are made."""
RETURN_PS = 1
"""Sum of all rewards so far."""
IS_LOST = 2
"""No action was legal, and Drop-backup is off."""
RESETS = 3
"""How often an infeasible state led back."""
BACKUP = 4
"""Position of the backup: the state that taking back the moves from there on leads to."""
BINDING = 5
"""Number of tensors that bind later moves."""
RESIDENCIES = 6
"""Number of residencies."""
LAST_TO_END = 7
"""The residency that ends last, first of the list by :data:`BEFORE_IT`; -1 where there is none."""
LEGAL = 8
"""Bit ``action`` is set where the action (0 Copy, 1 NoCopy, 2 Drop) is legal in the present move; 0 once the game is over."""
PLACEMENTS = 9
"""What Copy would occupy, then what NoCopy would: :data:`PLACEMENT` cells each, all -1 where it is not legal."""

PLACEMENT = 5
PLACE_START, PLACE_END, PLACE_OFFSET = 0, 1, 2
"""Steps ``[start, end)`` that are newly occupied, perhaps none, and the offset."""
PLACE_FIRST, PLACE_LAST = 3, 4
"""Slots ``[first, last)`` of the copy's window; -1 for NoCopy."""

HEAD = PLACEMENTS + 2 * PLACEMENT
"""Number of cells of the head."""

# Actions, in the order of ``game.Action``, as compiled code wants them.
COPY, NOCOPY, DROP = 0, 1, 2

# ------------------------------------------------------------------------------------------------------------- tensors

TENSOR = 3
LATEST = 0
"""Number of the tensor's latest residency, its home; -1 where it had none."""
SLOW_FROM = 1
"""Boundary from which the slow copy is valid; :data:`NEVER` where it is not, until something writes it."""
FLAGS = 2
"""Sum of the flags below that hold."""

HELD = 1
"""The latest residency has the current content."""
INPUT_FAST = 2
"""The latest input move was Copy or NoCopy, and the output move of its visit is still to come or not there."""
BINDS = 4
"""What is placed binds moves to come, so that dropping them all is no way out."""
GROUP_FAST = 8
"""Uniform alias group: decided to be fast."""
GROUP_SLOW = 16
"""Uniform alias group: decided to be slow."""

NEVER = 1 << 62
"""Later than any boundary."""

# --------------------------------------------------------------------------------------------------------------- slots

SLOT = 2
SUPPLY_PS = 0
"""What copies have left of the slot's supply."""
MARKS = 1
"""Sum of the two marks below that hold, and :data:`COVERED` for each window that has the slot."""

CROSSED = 1
"""A window has both this slot and the next. There is no second such window (equation 6)."""
INTERIOR = 2
"""A window has this slot and both its neighbours. No other window has it then."""
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
"""The residency that ends next before this one, or with it; -1 where there is none."""
AFTER_IT = 6
"""The residency that ends next after this one, or with it; -1 where there is none."""

# A move that is made.
ACTION = 7
"""The action."""
WINDOW_FIRST, WINDOW_LAST = 8, 9
"""Slots ``[first, last)`` of its copy; -1 where it had none."""
WAS_LATEST, WAS_SLOW_FROM, WAS_FLAGS = 10, 11, 12
"""The tensor before."""
WAS_END = 13
"""End of the tensor's home before, where the move extended it; -1 for a new residency, or none."""
WAS_FIRST_PS, WAS_LAST_PS = 14, 15
"""Supplies of the window's first and last slot before."""
