"""The rules of MMapGame as compiled code, on tables and a flat state.

``tables`` are the tables of the game (``tables.py``). A state is a flat vector ``data`` of integers, its *cells*; ``layout.py``
describes them. There are no checks here, and nothing raises an error: the action of :func:`step` must be legal. Other compiled
code queries a state by ``readers.py``.
"""

from __future__ import annotations

from stowplan.compiled import njit, njit_inner, njit_once
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.places import (
    book,
    earliest_window,
    highest_offset,
    is_free,
    latest_window,
    link,
    lowest_offset,
    unlink,
    unmark,
)
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, MoveRow, PartRow, Tables


@njit_inner
def step(tables: Tables, data: Ints, action: int) -> int:
    """Make the current move with a legal action; returns the reward (ps)."""
    before = data[layout.RETURN_PS]
    _make_move(tables, data, action)
    find_legal_actions(tables, data)
    if data[layout.LEGAL] == 0 and data[layout.POSITION] < tables.program[0].moves:
        _leave_infeasible(tables, data)
    elif data[layout.BINDING] == 0:
        data[layout.BACKUP] = data[layout.POSITION]
    return data[layout.RETURN_PS] - before  # type: ignore[no-any-return]


@njit
def reset(tables: Tables, data: Ints) -> None:
    """Return to the state before the first move."""
    for cell in range(len(data)):
        data[cell] = tables.initial[cell]


# ---------------------------------------------------------------------------------------------- which actions are legal


@njit
def find_legal_actions(tables: Tables, data: Ints) -> None:
    """Find the legal actions of the current move, and the memory and slots that each would occupy."""
    for cell in range(layout.LEGAL, layout.HEAD):
        data[cell] = -1
    data[layout.LEGAL] = 0
    program = tables.program[0]
    if data[layout.IS_LOST] or data[layout.POSITION] == program.moves:
        return
    move = tables.moves[data[layout.POSITION]]
    cell = program.at_tensors + layout.TENSOR * move.tensor
    flags = data[cell + layout.FLAGS]
    is_dropped = move.alias_group >= 0 and data[program.at_dropped + move.alias_group] != 0
    legal = 0
    if _may_drop(move, flags, data[cell + layout.SLOW_FROM]):
        legal = 1 << layout.DROP
    if (
        not (is_dropped and legal)
        and not flags & layout.GROUP_SLOW
        and (not move.is_output or move.defines or flags & layout.INPUT_FAST)
    ):
        # A dropped group stays in fast memory until its copy-out is complete.
        if not is_dropped and move.may_copy and _place_copy(tables, data, move, cell):
            legal |= 1 << layout.COPY
        if _place_nocopy(tables, data, move, cell):
            legal |= 1 << layout.NOCOPY
    data[layout.LEGAL] = legal


@njit_once
def _may_drop(move: MoveRow, flags: int, slow_from: int) -> bool:
    """Whether Drop is legal in a move, given the cells of its tensor."""
    if flags & layout.GROUP_FAST:
        return False
    if move.is_output:
        return move.defines != 0 or not flags & layout.INPUT_FAST
    return not move.needs_content or slow_from <= move.start


@njit_once
def _place_copy(tables: Tables, data: Ints, move: MoveRow, cell: int) -> bool:
    """Find a window and an offset for Copy, and return whether there are any; ``cell`` is the index of the tensor's cells in
    ``data``."""
    program = tables.program[0]
    home = data[cell + layout.LATEST]
    if move.is_output:
        # In a loop that writes again, the limit is inside or before the visit, so that no slot is left.
        first, last = earliest_window(data, program.at_slots, move.demand, move.first_slot, move.last_slot, program.strict)
        if first < 0:
            return False
        start, end = move.start, tables.slots[last].start
    else:
        earliest = data[cell + layout.SLOW_FROM]
        if earliest == layout.NEVER:
            return False
        if home >= 0:
            earliest = max(earliest, data[program.at_rows + layout.ROW * home + layout.END])
        from_slot = max(tables.slot_of[earliest], move.first_slot)
        first, last = latest_window(data, program.at_slots, move.demand, from_slot, move.last_slot, program.strict)
        if first < 0:
            return False
        start, end = tables.slots[first].start, move.end
    data[layout.PLACEMENTS + layout.PLACEMENT * layout.COPY + layout.PLACE_FIRST] = first
    data[layout.PLACEMENTS + layout.PLACEMENT * layout.COPY + layout.PLACE_LAST] = last
    return _place(tables, data, move, layout.COPY, start, end, home)


@njit_once
def _place_nocopy(tables: Tables, data: Ints, move: MoveRow, cell: int) -> bool:
    """Find an offset for NoCopy, and return whether there is one; ``cell`` is the index of the tensor's cells in ``data``."""
    home = data[cell + layout.LATEST]
    if not move.is_output:
        if home < 0 or not data[cell + layout.FLAGS] & layout.HELD:
            return False
        return _place(tables, data, move, layout.NOCOPY, move.start, move.end, home)
    if move.is_final_output:
        return False
    return _place(tables, data, move, layout.NOCOPY, move.start, move.live_end, home)


@njit_inner
def _place(tables: Tables, data: Ints, move: MoveRow, action: int, start: int, end: int, home: int) -> bool:
    """Place a new residency for the steps ``[start, end)``, or extend the residency ``home`` up to ``end``, and return whether
    this is possible."""
    program = tables.program[0]
    rows, size = program.at_rows, move.bytes
    cell = layout.PLACEMENTS + layout.PLACEMENT * action
    is_new = move.defines or (action == layout.COPY and not move.is_output)
    if is_new and (home < 0 or not move.is_uniform):
        if size >= program.large:
            offset = lowest_offset(data, rows, start, end, size, program.alignment, program.capacity)
        else:
            offset = highest_offset(data, rows, start, end, size, program.alignment, program.capacity)
        is_possible = offset >= 0
    else:
        # A uniform alias group keeps the offset of its first residency (equation 4).
        offset = data[rows + layout.ROW * home + layout.OFFSET]
        if not is_new:
            start = data[rows + layout.ROW * home + layout.END]
            end = max(start, end)
        # If nothing is newly occupied, the placement is possible: the residency is there already.
        is_possible = start == end or is_free(data, rows, start, end, offset, offset + size)
    if not is_possible:
        data[cell + layout.PLACE_FIRST] = -1
        data[cell + layout.PLACE_LAST] = -1
        return False
    data[cell + layout.PLACE_START] = start
    data[cell + layout.PLACE_END] = end
    data[cell + layout.PLACE_OFFSET] = offset
    return True


# -------------------------------------------------------------------------------------------------- effects of actions


@njit_once
def _make_move(tables: Tables, data: Ints, action: int) -> None:
    """Make the current move, and save in its row the old values that are needed to undo it."""
    program = tables.program[0]
    position = data[layout.POSITION]
    move = tables.moves[position]
    rows = program.at_rows
    row = rows + layout.ROW * position
    cell = program.at_tensors + layout.TENSOR * move.tensor
    flags = data[cell + layout.FLAGS]
    data[row + layout.ACTION] = action
    data[row + layout.WAS_LATEST] = data[cell + layout.LATEST]
    data[row + layout.WAS_SLOW_FROM] = data[cell + layout.SLOW_FROM]
    data[row + layout.WAS_FLAGS] = flags
    data[row + layout.WAS_END] = -1
    data[row + layout.WINDOW_FIRST] = -1
    data[row + layout.WINDOW_LAST] = -1
    if action == layout.DROP:
        flags &= ~layout.INPUT_FAST
        if move.is_output:
            # Only slow memory has the new content.
            flags &= ~(layout.HELD | layout.BINDS)
            data[cell + layout.SLOW_FROM] = move.end
        if move.is_uniform:
            flags |= layout.GROUP_SLOW
    else:
        place = layout.PLACEMENTS + layout.PLACEMENT * action
        if move.defines or (action == layout.COPY and not move.is_output):
            number = data[layout.RESIDENCIES]
            data[layout.RESIDENCIES] = number + 1
            data[cell + layout.LATEST] = number
            flags |= layout.HELD
            home = rows + layout.ROW * number
            data[home + layout.RESIDENT] = move.tensor
            data[home + layout.START] = data[place + layout.PLACE_START]
            data[home + layout.END] = data[place + layout.PLACE_END]
            data[home + layout.OFFSET] = data[place + layout.PLACE_OFFSET]
            data[home + layout.TOP] = data[place + layout.PLACE_OFFSET] + move.bytes
            link(data, rows, number)
        else:
            number = data[cell + layout.LATEST]
            data[row + layout.WAS_END] = data[rows + layout.ROW * number + layout.END]
            _end_at(data, rows, number, data[place + layout.PLACE_END])
        if action == layout.COPY:
            first, last = data[place + layout.PLACE_FIRST], data[place + layout.PLACE_LAST]
            data[row + layout.WINDOW_FIRST] = first
            data[row + layout.WINDOW_LAST] = last
            data[row + layout.WAS_FIRST_PS] = data[program.at_slots + layout.SLOT * first + layout.SUPPLY_PS]
            data[row + layout.WAS_LAST_PS] = data[program.at_slots + layout.SLOT * (last - 1) + layout.SUPPLY_PS]
            book(data, program.at_slots, move.demand, first, last, not move.is_output)
        if move.is_output:
            # Slow memory is outdated until a copy-out ends; without one, a later update in place has to be fast as well.
            data[cell + layout.SLOW_FROM] = (
                tables.slots[data[row + layout.WINDOW_LAST]].start if action == layout.COPY else layout.NEVER
            )
            flags &= ~(layout.INPUT_FAST | layout.BINDS)
            if action == layout.NOCOPY and move.is_updated:
                flags |= layout.BINDS
        else:
            flags |= layout.INPUT_FAST
            if move.has_output:
                flags |= layout.BINDS
        if move.is_uniform:
            flags = (flags | layout.GROUP_FAST) & ~layout.BINDS
            if not move.is_last:
                flags |= layout.BINDS
        _serve(tables, data, position, 1)
    _set_flags(data, cell, flags)
    data[layout.POSITION] = position + 1


@njit_once
def _undo_move(tables: Tables, data: Ints) -> None:
    """Undo the latest move; :func:`find_legal_actions` must find the legal actions afterwards."""
    program = tables.program[0]
    position = data[layout.POSITION] - 1
    move = tables.moves[position]
    rows, slots = program.at_rows, program.at_slots
    row = rows + layout.ROW * position
    cell = program.at_tensors + layout.TENSOR * move.tensor
    if data[row + layout.ACTION] != layout.DROP:
        _serve(tables, data, position, -1)
        if data[row + layout.WAS_END] >= 0:
            _end_at(data, rows, data[cell + layout.LATEST], data[row + layout.WAS_END])
        else:
            unlink(data, rows, data[cell + layout.LATEST])
            data[layout.RESIDENCIES] -= 1
        first, last = data[row + layout.WINDOW_FIRST], data[row + layout.WINDOW_LAST]
        if first >= 0:
            unmark(data, slots, first, last)
            # No other window contains the slots in between.
            for slot in range(first + 1, last - 1):
                data[slots + layout.SLOT * slot + layout.SUPPLY_PS] = tables.slots[slot].supply
            data[slots + layout.SLOT * (last - 1) + layout.SUPPLY_PS] = data[row + layout.WAS_LAST_PS]
            data[slots + layout.SLOT * first + layout.SUPPLY_PS] = data[row + layout.WAS_FIRST_PS]
    data[cell + layout.LATEST] = data[row + layout.WAS_LATEST]
    data[cell + layout.SLOW_FROM] = data[row + layout.WAS_SLOW_FROM]
    _set_flags(data, cell, data[row + layout.WAS_FLAGS])
    data[layout.POSITION] = position


@njit_inner
def _set_flags(data: Ints, cell: int, flags: int) -> None:
    """Set the flags of the tensor whose cells begin at ``cell``, and count the tensors that bind later moves."""
    data[layout.BINDING] += ((flags & layout.BINDS) - (data[cell + layout.FLAGS] & layout.BINDS)) // layout.BINDS
    data[cell + layout.FLAGS] = flags


@njit_inner
def _end_at(data: Ints, rows: int, number: int, end: int) -> None:
    """Set the end of a residency."""
    if data[rows + layout.ROW * number + layout.END] != end:
        unlink(data, rows, number)
        data[rows + layout.ROW * number + layout.END] = end
        link(data, rows, number)


@njit_once
def _leave_infeasible(tables: Tables, data: Ints) -> None:
    """Leave a state without a legal action: go back and drop this alias group from then on, or lose the game."""
    program = tables.program[0]
    if not program.drop_backup:
        reset(tables, data)
        data[layout.IS_LOST] = 1
    else:
        group = tables.moves[data[layout.POSITION]].alias_group
        while data[layout.POSITION] > data[layout.BACKUP]:
            _undo_move(tables, data)
        data[program.at_dropped + group] = 1
        data[layout.RESETS] += 1
    find_legal_actions(tables, data)


# ------------------------------------------------------------------------------------------------------------ latencies


@njit_inner
def _serve(tables: Tables, data: Ints, position: int, sign: int) -> None:
    """Serve the uses of a move from fast memory (``sign`` 1), or from slow memory again (-1), and update the return."""
    program = tables.program[0]
    for index in range(tables.moves[position].first_part, tables.moves[position + 1].first_part):
        part = tables.parts[index]
        after = latency(tables, data, part, sign)
        data[layout.RETURN_PS] += data[program.at_latencies + part.step] - after
        data[program.at_latencies + part.step] = after
        cell = program.at_pieces + part.first_piece
        if part.table >= 0:
            data[cell] += sign * part.subset
        for piece in range(part.pieces):
            data[cell + piece] += sign * tables.changes[part.first_change + piece]


@njit_inner
def latency(tables: Tables, data: Ints, part: PartRow, sign: int) -> int:
    """Weighted latency (ps) of a part's step if the part is served from fast memory (``sign`` 1) or from slow memory (-1)."""
    cell = tables.program[0].at_pieces + part.first_piece
    if part.table >= 0:
        return tables.latencies[part.table + data[cell] + sign * part.subset]  # type: ignore[no-any-return]
    worst = -layout.NEVER
    for piece in range(part.pieces):
        worst = max(worst, data[cell + piece] + sign * tables.changes[part.first_change + piece])
    return worst
