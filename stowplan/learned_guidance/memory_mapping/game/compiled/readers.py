"""Queries of a state for compiled code; Python code uses ``state.py``.

``tables`` are the tables of the game (``tables.py``), and ``data`` is the flat vector of the state (``layout.py``). The
*position* of a move is its number in the order of play. Actions are 0 (Copy), 1 (NoCopy) and 2 (Drop). Nothing here checks its
arguments or raises an error.
"""

from __future__ import annotations

from stowplan.compiled import njit, njit_inner
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.rules import latency
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables


@njit_inner
def legal(tables: Tables, data: Ints, action: int) -> bool:
    """Whether an action is legal in the current move."""
    return (data[layout.LEGAL] >> action) & 1 == 1  # type: ignore[no-any-return]


@njit_inner
def is_over(tables: Tables, data: Ints) -> bool:
    """Whether all moves have been made, or the game is lost."""
    return data[layout.IS_LOST] != 0 or data[layout.POSITION] == tables.program[0].moves  # type: ignore[no-any-return]


@njit_inner
def benefit(tables: Tables, data: Ints, position: int) -> int:
    """The time that the uses of a move would save if they were fast (ps): the reward of Copy or NoCopy."""
    saved = 0
    for index in range(tables.moves[position].first_part, tables.moves[position + 1].first_part):
        part = tables.parts[index]
        saved += data[tables.program[0].at_latencies + part.step] - latency(tables, data, part, 1)
    return saved


@njit
def present_benefit(tables: Tables, data: Ints) -> int:
    """Benefit of the current move (ps); 0 once the game is over."""
    return 0 if is_over(tables, data) else benefit(tables, data, data[layout.POSITION])


@njit_inner
def action_of(tables: Tables, data: Ints, position: int) -> int:
    """The action of a move that has been made; -1 otherwise."""
    if position >= data[layout.POSITION]:
        return -1
    return data[tables.program[0].at_rows + layout.ROW * position + layout.ACTION]  # type: ignore[no-any-return]


@njit_inner
def placement(data: Ints, action: int) -> tuple[int, int, int]:
    """The memory that Copy or NoCopy would newly occupy in the current move: the first step, the boundary at its end, and the
    offset; all -1 if the action is illegal."""
    cell = layout.PLACEMENTS + layout.PLACEMENT * action
    return data[cell + layout.PLACE_START], data[cell + layout.PLACE_END], data[cell + layout.PLACE_OFFSET]


@njit_inner
def residency(tables: Tables, data: Ints, number: int) -> tuple[int, int, int, int, int]:
    """Tensor, start, end, offset and top of a residency; their number is ``data[layout.RESIDENCIES]``."""
    row = tables.program[0].at_rows + layout.ROW * number
    return (
        data[row + layout.RESIDENT],
        data[row + layout.START],
        data[row + layout.END],
        data[row + layout.OFFSET],
        data[row + layout.TOP],
    )


@njit_inner
def supply_ps(tables: Tables, data: Ints, slot: int) -> int:
    """The part of a slot's supply that copies have not used (ps)."""
    return data[tables.program[0].at_slots + layout.SLOT * slot + layout.SUPPLY_PS]  # type: ignore[no-any-return]


@njit_inner
def windows_over(tables: Tables, data: Ints, slot: int) -> int:
    """Number of copies whose window contains a slot."""
    return data[tables.program[0].at_slots + layout.SLOT * slot + layout.MARKS] >> 2  # type: ignore[no-any-return]


@njit_inner
def latest_residency(tables: Tables, data: Ints, tensor: int) -> int:
    """Number of a tensor's latest residency; -1 if it had none."""
    return data[tables.program[0].at_tensors + layout.TENSOR * tensor + layout.LATEST]  # type: ignore[no-any-return]


@njit_inner
def slow_from(tables: Tables, data: Ints, tensor: int) -> int:
    """Boundary from which on a tensor's content in slow memory is valid; ``layout.NEVER`` if it is not."""
    return data[tables.program[0].at_tensors + layout.TENSOR * tensor + layout.SLOW_FROM]  # type: ignore[no-any-return]


@njit_inner
def tensor_flags(tables: Tables, data: Ints, tensor: int) -> int:
    """The flags of a tensor, as ``layout.py`` defines them."""
    return data[tables.program[0].at_tensors + layout.TENSOR * tensor + layout.FLAGS]  # type: ignore[no-any-return]


@njit_inner
def is_dropped(tables: Tables, data: Ints, group: int) -> bool:
    """Whether Drop-backup forbids to place an alias group in fast memory."""
    return data[tables.program[0].at_dropped + group] != 0  # type: ignore[no-any-return]


@njit_inner
def used(tables: Tables, data: Ints) -> int:
    """Number of cells of a state that are in use; those after them are undefined and need not be copied."""
    return tables.program[0].at_rows + layout.ROW * data[layout.POSITION]  # type: ignore[no-any-return]
