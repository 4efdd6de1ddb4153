"""What compiled code wants to know of a state; from Python, ``state.py`` reads one."""

from __future__ import annotations

from stowplan.compiled import njit, njit_inner
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.rules import latency
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables


@njit_inner
def legal(tables: Tables, data: Ints, action: int) -> bool:
    """Whether an action is legal in the present move."""
    return (data[layout.LEGAL] >> action) & 1 == 1  # type: ignore[no-any-return]


@njit_inner
def is_over(tables: Tables, data: Ints) -> bool:
    """Whether all moves are made, or the game is lost."""
    return data[layout.IS_LOST] != 0 or data[layout.POSITION] == tables.program[0].moves  # type: ignore[no-any-return]


@njit_inner
def benefit(tables: Tables, data: Ints, position: int) -> int:
    """What the uses of a move, slow so far, would save now if they were fast (ps): the reward of Copy or NoCopy."""
    saved = 0
    for index in range(tables.moves[position].first_part, tables.moves[position + 1].first_part):
        part = tables.parts[index]
        saved += data[tables.program[0].at_latencies + part.step] - latency(tables, data, part, 1)
    return saved


@njit
def present_benefit(tables: Tables, data: Ints) -> int:
    """Benefit of the present move; 0 once the game is over."""
    return 0 if is_over(tables, data) else benefit(tables, data, data[layout.POSITION])


@njit_inner
def action_of(tables: Tables, data: Ints, position: int) -> int:
    """How a move was made; -1 where it is not made."""
    if position >= data[layout.POSITION]:
        return -1
    return data[tables.program[0].at_rows + layout.ROW * position + layout.ACTION]  # type: ignore[no-any-return]


@njit_inner
def placement(data: Ints, action: int) -> tuple[int, int, int]:
    """Start, end and offset of what Copy or NoCopy would newly occupy in the present move; -1 where it is not legal."""
    cell = layout.PLACEMENTS + layout.PLACEMENT * action
    return data[cell + layout.PLACE_START], data[cell + layout.PLACE_END], data[cell + layout.PLACE_OFFSET]


@njit_inner
def residency(tables: Tables, data: Ints, number: int) -> tuple[int, int, int, int, int]:
    """Tensor, start, end, offset and top of a residency; there are ``data[layout.RESIDENCIES]``."""
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
    """What copies have left of a slot's supply (ps)."""
    return data[tables.program[0].at_slots + layout.SLOT * slot + layout.SUPPLY_PS]  # type: ignore[no-any-return]


@njit_inner
def windows_over(tables: Tables, data: Ints, slot: int) -> int:
    """Number of copies whose window has a slot."""
    return data[tables.program[0].at_slots + layout.SLOT * slot + layout.MARKS] >> 2  # type: ignore[no-any-return]


@njit_inner
def latest_residency(tables: Tables, data: Ints, tensor: int) -> int:
    """Number of a tensor's latest residency; -1 where it had none."""
    return data[tables.program[0].at_tensors + layout.TENSOR * tensor + layout.LATEST]  # type: ignore[no-any-return]


@njit_inner
def slow_from(tables: Tables, data: Ints, tensor: int) -> int:
    """Boundary from which a tensor's slow copy is valid; ``layout.NEVER`` where it is not."""
    return data[tables.program[0].at_tensors + layout.TENSOR * tensor + layout.SLOW_FROM]  # type: ignore[no-any-return]


@njit_inner
def tensor_flags(tables: Tables, data: Ints, tensor: int) -> int:
    """Flags of a tensor, as ``layout.py`` names them."""
    return data[tables.program[0].at_tensors + layout.TENSOR * tensor + layout.FLAGS]  # type: ignore[no-any-return]


@njit_inner
def is_dropped(tables: Tables, data: Ints, group: int) -> bool:
    """Whether Drop-backup forbids to place an alias group."""
    return data[tables.program[0].at_dropped + group] != 0  # type: ignore[no-any-return]


@njit_inner
def used(tables: Tables, data: Ints) -> int:
    """How many cells of a state say something: those after them may be anything, and need not be copied."""
    return tables.program[0].at_rows + layout.ROW * data[layout.POSITION]  # type: ignore[no-any-return]
