"""The rules of MMapGame, compiled, on tables and a flat state.

Nothing is checked here: :func:`step` takes a legal action. ``readers.py`` says what compiled code wants to know of a state.
"""

from __future__ import annotations

from stowplan.compiled import njit, njit_inner, njit_once
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import (
    ACTION,
    BACKUP,
    BINDING,
    BINDS,
    COPY,
    DROP,
    END,
    FLAGS,
    GROUP_FAST,
    GROUP_SLOW,
    HEAD,
    HELD,
    INPUT_FAST,
    IS_LOST,
    LATEST,
    LEGAL,
    NEVER,
    NOCOPY,
    OFFSET,
    PLACE_END,
    PLACE_FIRST,
    PLACE_LAST,
    PLACE_OFFSET,
    PLACE_START,
    PLACEMENT,
    PLACEMENTS,
    POSITION,
    RESETS,
    RESIDENCIES,
    RESIDENT,
    RETURN_PS,
    ROW,
    SLOT,
    SLOW_FROM,
    START,
    SUPPLY_PS,
    TENSOR,
    TOP,
    WAS_END,
    WAS_FIRST_PS,
    WAS_FLAGS,
    WAS_LAST_PS,
    WAS_LATEST,
    WAS_SLOW_FROM,
    WINDOW_FIRST,
    WINDOW_LAST,
)
from stowplan.learned_guidance.memory_mapping.game.kernel.places import (
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
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints, MoveRow, PartRow, Tables


@njit_inner
def step(tables: Tables, data: Ints, action: int) -> int:
    """Make the move with a legal action; the reward (ps)."""
    before = data[RETURN_PS]
    _make(tables, data, action)
    look(tables, data)
    if data[LEGAL] == 0 and data[POSITION] < tables.program[0].moves:
        _leave_infeasible(tables, data)
    elif data[BINDING] == 0:
        data[BACKUP] = data[POSITION]
    return data[RETURN_PS] - before  # type: ignore[no-any-return]


@njit
def reset(tables: Tables, data: Ints) -> None:
    """Back to the state before the first move."""
    for cell in range(len(data)):
        data[cell] = tables.initial[cell]


# ---------------------------------------------------------------------------------------------- which actions are legal


@njit
def look(tables: Tables, data: Ints) -> None:
    """Find the legal actions of the present move, and what they would occupy."""
    for cell in range(LEGAL, HEAD):
        data[cell] = -1
    data[LEGAL] = 0
    program = tables.program[0]
    if data[IS_LOST] or data[POSITION] == program.moves:
        return
    move = tables.moves[data[POSITION]]
    cell = program.at_tensors + TENSOR * move.tensor
    flags = data[cell + FLAGS]
    is_dropped = move.alias_group >= 0 and data[program.at_dropped + move.alias_group] != 0
    legal = 0
    if _may_drop(move, flags, data[cell + SLOW_FROM]):
        legal = 1 << DROP
    if not (is_dropped and legal) and not flags & GROUP_SLOW and (not move.is_output or move.defines or flags & INPUT_FAST):
        # While the copy out of a dropped group is under way, what is there stays till it is done.
        if not is_dropped and move.may_copy and _place_copy(tables, data, move, cell):
            legal |= 1 << COPY
        if _place_nocopy(tables, data, move, cell):
            legal |= 1 << NOCOPY
    data[LEGAL] = legal


@njit_once
def _may_drop(move: MoveRow, flags: int, slow_from: int) -> bool:
    if flags & GROUP_FAST:
        return False
    if move.is_output:
        return move.defines != 0 or not flags & INPUT_FAST
    return not move.needs_content or slow_from <= move.start


@njit_once
def _place_copy(tables: Tables, data: Ints, move: MoveRow, cell: int) -> bool:
    """Find a window and a place for Copy; ``cell`` is where the tensor stands in ``data``."""
    program = tables.program[0]
    home = data[cell + LATEST]
    if move.is_output:
        # A limit inside or before the visit, in a loop that writes again, leaves no slot.
        first, last = earliest_window(data, program.at_slots, move.demand, move.first_slot, move.last_slot, program.strict)
        if first < 0:
            return False
        start, end = move.start, tables.slots[last].start
    else:
        earliest = data[cell + SLOW_FROM]
        if earliest == NEVER:
            return False
        if home >= 0:
            earliest = max(earliest, data[program.at_rows + ROW * home + END])
        from_slot = tables.slot_of[earliest]
        first, last = latest_window(data, program.at_slots, move.demand, from_slot, move.last_slot, program.strict)
        if first < 0:
            return False
        start, end = tables.slots[first].start, move.end
    data[PLACEMENTS + PLACEMENT * COPY + PLACE_FIRST] = first
    data[PLACEMENTS + PLACEMENT * COPY + PLACE_LAST] = last
    return _place(tables, data, move, COPY, start, end, home)


@njit_once
def _place_nocopy(tables: Tables, data: Ints, move: MoveRow, cell: int) -> bool:
    """Find a place for NoCopy."""
    home = data[cell + LATEST]
    if not move.is_output:
        if home < 0 or not data[cell + FLAGS] & HELD:
            return False
        return _place(tables, data, move, NOCOPY, move.start, move.end, home)
    if move.is_final_output:
        return False
    return _place(tables, data, move, NOCOPY, move.start, move.live_end, home)


@njit_inner
def _place(tables: Tables, data: Ints, move: MoveRow, action: int, start: int, end: int, home: int) -> bool:
    """Place a new residency for the steps ``[start, end)``, or the same for longer, up to ``end``."""
    program = tables.program[0]
    rows, size = program.at_rows, move.bytes
    cell = PLACEMENTS + PLACEMENT * action
    is_new = move.defines or (action == COPY and not move.is_output)
    if is_new and (home < 0 or not move.is_uniform):
        if size >= program.large:
            offset = lowest_offset(data, rows, start, end, size, program.alignment, program.capacity)
        else:
            offset = highest_offset(data, rows, start, end, size, program.alignment, program.capacity)
        is_possible = offset >= 0
    else:
        # A uniform alias group takes the offset of its first residency (equation 4).
        offset = data[rows + ROW * home + OFFSET]
        if not is_new:
            start = data[rows + ROW * home + END]
            end = max(start, end)
        # Nothing newly occupied is free: what stands there already is apart from all others.
        is_possible = start == end or is_free(data, rows, start, end, offset, offset + size)
    if not is_possible:
        data[cell + PLACE_FIRST] = -1
        data[cell + PLACE_LAST] = -1
        return False
    data[cell + PLACE_START] = start
    data[cell + PLACE_END] = end
    data[cell + PLACE_OFFSET] = offset
    return True


# ----------------------------------------------------------------------------------------------------- what actions do


@njit_once
def _make(tables: Tables, data: Ints, action: int) -> None:
    """Make the present move, and keep in its row what it takes to take it back."""
    program = tables.program[0]
    position = data[POSITION]
    move = tables.moves[position]
    rows = program.at_rows
    row = rows + ROW * position
    cell = program.at_tensors + TENSOR * move.tensor
    flags = data[cell + FLAGS]
    data[row + ACTION] = action
    data[row + WAS_LATEST] = data[cell + LATEST]
    data[row + WAS_SLOW_FROM] = data[cell + SLOW_FROM]
    data[row + WAS_FLAGS] = flags
    data[row + WAS_END] = -1
    data[row + WINDOW_FIRST] = -1
    data[row + WINDOW_LAST] = -1
    if action == DROP:
        flags &= ~INPUT_FAST
        if move.is_output:
            # Slow memory alone has the new content.
            flags &= ~(HELD | BINDS)
            data[cell + SLOW_FROM] = move.end
        if move.is_uniform:
            flags |= GROUP_SLOW
    else:
        place = PLACEMENTS + PLACEMENT * action
        if move.defines or (action == COPY and not move.is_output):
            number = data[RESIDENCIES]
            data[RESIDENCIES] = number + 1
            data[cell + LATEST] = number
            flags |= HELD
            home = rows + ROW * number
            data[home + RESIDENT] = move.tensor
            data[home + START] = data[place + PLACE_START]
            data[home + END] = data[place + PLACE_END]
            data[home + OFFSET] = data[place + PLACE_OFFSET]
            data[home + TOP] = data[place + PLACE_OFFSET] + move.bytes
            link(data, rows, number)
        else:
            number = data[cell + LATEST]
            data[row + WAS_END] = data[rows + ROW * number + END]
            _end_at(data, rows, number, data[place + PLACE_END])
        if action == COPY:
            first, last = data[place + PLACE_FIRST], data[place + PLACE_LAST]
            data[row + WINDOW_FIRST] = first
            data[row + WINDOW_LAST] = last
            data[row + WAS_FIRST_PS] = data[program.at_slots + SLOT * first + SUPPLY_PS]
            data[row + WAS_LAST_PS] = data[program.at_slots + SLOT * (last - 1) + SUPPLY_PS]
            book(data, program.at_slots, move.demand, first, last, not move.is_output)
        if move.is_output:
            # The write leaves slow memory behind, until a copy out ends; without one an update in place must be fast, too.
            data[cell + SLOW_FROM] = tables.slots[data[row + WINDOW_LAST]].start if action == COPY else NEVER
            flags &= ~(INPUT_FAST | BINDS)
            if action == NOCOPY and move.is_updated:
                flags |= BINDS
        else:
            flags |= INPUT_FAST
            if move.has_output:
                flags |= BINDS
        if move.is_uniform:
            flags = (flags | GROUP_FAST) & ~BINDS
            if not move.is_last:
                flags |= BINDS
        _serve(tables, data, position, 1)
    _set_flags(data, cell, flags)
    data[POSITION] = position + 1


@njit_once
def _take_back(tables: Tables, data: Ints) -> None:
    """Take back the latest move; what is legal is left to :func:`look`."""
    program = tables.program[0]
    position = data[POSITION] - 1
    move = tables.moves[position]
    rows, slots = program.at_rows, program.at_slots
    row = rows + ROW * position
    cell = program.at_tensors + TENSOR * move.tensor
    if data[row + ACTION] != DROP:
        _serve(tables, data, position, -1)
        if data[row + WAS_END] >= 0:
            _end_at(data, rows, data[cell + LATEST], data[row + WAS_END])
        else:
            unlink(data, rows, data[cell + LATEST])
            data[RESIDENCIES] -= 1
        first, last = data[row + WINDOW_FIRST], data[row + WINDOW_LAST]
        if first >= 0:
            unmark(data, slots, first, last)
            # No other window has the slots between.
            for slot in range(first + 1, last - 1):
                data[slots + SLOT * slot + SUPPLY_PS] = tables.slots[slot].supply
            data[slots + SLOT * (last - 1) + SUPPLY_PS] = data[row + WAS_LAST_PS]
            data[slots + SLOT * first + SUPPLY_PS] = data[row + WAS_FIRST_PS]
    data[cell + LATEST] = data[row + WAS_LATEST]
    data[cell + SLOW_FROM] = data[row + WAS_SLOW_FROM]
    _set_flags(data, cell, data[row + WAS_FLAGS])
    data[POSITION] = position


@njit_inner
def _set_flags(data: Ints, cell: int, flags: int) -> None:
    data[BINDING] += ((flags & BINDS) - (data[cell + FLAGS] & BINDS)) // BINDS
    data[cell + FLAGS] = flags


@njit_inner
def _end_at(data: Ints, rows: int, number: int, end: int) -> None:
    """Let a residency end at a boundary."""
    if data[rows + ROW * number + END] != end:
        unlink(data, rows, number)
        data[rows + ROW * number + END] = end
        link(data, rows, number)


@njit_once
def _leave_infeasible(tables: Tables, data: Ints) -> None:
    """No action is legal: back to the backup, and never again place this alias group; or the game is lost."""
    program = tables.program[0]
    if not program.drop_backup:
        reset(tables, data)
        data[IS_LOST] = 1
    else:
        group = tables.moves[data[POSITION]].alias_group
        while data[POSITION] > data[BACKUP]:
            _take_back(tables, data)
        data[program.at_dropped + group] = 1
        data[RESETS] += 1
    look(tables, data)


# ------------------------------------------------------------------------------------------------------------ latencies


@njit_inner
def _serve(tables: Tables, data: Ints, position: int, sign: int) -> None:
    """Serve the uses of a move from fast memory (sign 1) or from slow memory again (-1), and keep the return."""
    program = tables.program[0]
    for index in range(tables.moves[position].first_part, tables.moves[position + 1].first_part):
        part = tables.parts[index]
        after = latency(tables, data, part, sign)
        data[RETURN_PS] += data[program.at_latencies + part.step] - after
        data[program.at_latencies + part.step] = after
        cell = program.at_pieces + part.first_piece
        if part.table >= 0:
            data[cell] += sign * part.subset
        for piece in range(part.pieces):
            data[cell + piece] += sign * tables.changes[part.first_change + piece]


@njit_inner
def latency(tables: Tables, data: Ints, part: PartRow, sign: int) -> int:
    """Weighted latency of a part's step with the part served from fast memory (sign 1), or slow (-1)."""
    cell = tables.program[0].at_pieces + part.first_piece
    if part.table >= 0:
        return tables.latencies[part.table + data[cell] + sign * part.subset]  # type: ignore[no-any-return]
    worst = -NEVER
    for piece in range(part.pieces):
        worst = max(worst, data[cell + piece] + sign * tables.changes[part.first_change + piece])
    return worst
