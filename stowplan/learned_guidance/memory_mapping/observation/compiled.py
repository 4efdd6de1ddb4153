"""Compiled encoding of a state of MMapGame as an observation.

Logarithms keep the numbers of all programs small and comparable: ``near`` takes a number of steps, ``ratio`` a ratio that is
not negative, and ``signed`` a ratio that may be negative. The *target time* is the first step of the current move. The
*benefit* of a move is the time that its uses would save in fast memory. There are M moves, T steps and K slots of the copy
channel.

``tables`` are the tables of the game, and ``data`` is the flat vector of a state
(:mod:`stowplan.learned_guidance.memory_mapping.game.compiled`). Nothing here raises an error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Singles2D, njit, njit_inner
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.readers import (
    benefit,
    is_dropped,
    latest_residency,
    placement,
    residency,
    slow_from,
    supply_ps,
    tensor_flags,
    windows_over,
)
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.observation.layout import (
    FIRST_DYNAMIC,
    FIRST_ID,
    ActionFeature,
    BufferFeature,
    Bytes,
    Floats,
    GlobalFeature,
    Observations,
    SupplyFeature,
)

Doubles = NDArray[np.float64]

_ZERO, _HALF, _ONE, _FULL = np.float32(0), np.float32(0.5), np.float32(1), np.float32(255)


class View(NamedTuple):
    """The data of a program that the encoder needs and that no move changes; and work arrays."""

    future_buffers: int
    same_tensor_buffers: int
    steps_per_column: int
    is_binary: bool
    """Whether cells of the memory map are 0 or 1: ``ObservationConfig.binary_map``. The three fields before have the same names
    there."""
    unit: float
    """Unit of returns, in ps."""
    mean_benefit: float
    """Mean benefit of a move if all buffers are slow, in ps."""
    byte_benefit: float
    """Sum of these benefits over the sum of bytes, in ps per byte."""
    density: float
    """Sum of these benefits over the sum of bytes times steps, in ps per byte and step."""
    mean_supply: float
    """Mean supply of a slot, in ps."""
    buffers: Singles2D
    """(M, :class:`BufferFeature`): features that are the same in all states; the others are 0."""
    area: Doubles
    """(M,) bytes times steps that each move occupies."""
    pressure: Floats
    """(T,) ``SupplyFeature.PRESSURE`` of each step."""
    slot_benefit: Floats
    """(K,) ``SupplyFeature.BENEFIT`` of each slot."""
    benefit_left: Floats
    """(M + 1,) ``GlobalFeature.BENEFIT_LEFT`` of each position."""
    globals: Floats
    """(:class:`GlobalFeature`,): features that are the same in all states."""
    map_sums: Singles2D
    """(rows, columns) work array."""
    profile_sums: Floats
    """(bins,) work array."""
    in_use: Doubles
    """(slots + 1,) work array."""


@njit
def first_benefits(tables: Tables, data: Ints, out: Doubles) -> None:
    """Compute the benefits (ps) of all moves in the initial state."""
    for position in range(len(out)):
        out[position] = benefit(tables, data, position)


@njit_inner
def near(steps: float) -> float:
    """Return a signed logarithm of a number of steps: 1 at 255."""
    return math.copysign(math.log2(1.0 + abs(steps)), steps) / 8.0


@njit_inner
def ratio(x: float) -> float:
    """Return a logarithm of 1 plus a ratio: 0 at 0, 1/4 at 1, 1 at 15."""
    return math.log2(1.0 + max(x, 0.0)) / 4.0


@njit_inner
def signed(x: float) -> float:
    """Return :func:`ratio` of the absolute value, with the sign of the value."""
    return math.copysign(math.log2(1.0 + abs(x)), x) / 4.0


@njit_inner
def clipped(x: float) -> float:
    """Clip to [-2, 2]."""
    return min(max(x, -2.0), 2.0)


@njit
def encode(tables: Tables, data: Ints, view: View, out: Observations, row: int) -> None:
    """Encode a state in a row of the observations. The game must not be over."""
    in_use = draw(tables, data, view, out.memory_map, out.profile, row)
    describe_supply(tables, data, view, out.supply, row)
    describe_actions(tables, data, view, out.actions, row)
    describe_globals(tables, data, view, in_use, out.globals, row)
    position = data[layout.POSITION]
    for number in range(1 + view.future_buffers):
        other = position + number
        describe_buffer(tables, data, view, other if other < tables.program[0].moves else -1, out.buffers, row, number)
    other = tables.moves[position].later
    for number in range(1 + view.future_buffers, out.buffers.shape[1]):
        describe_buffer(tables, data, view, other, out.buffers, row, number)
        if other >= 0:
            other = tables.moves[other].later


# ------------------------------------------------------------------------------------------------------- memory in use


@njit_inner
def draw(tables: Tables, data: Ints, view: View, image: Bytes, profile: Bytes, row: int) -> float:
    """Draw the residencies around the target time, and return the fraction of memory in use at that time. Also fills
    ``view.in_use``."""
    program = tables.program[0]
    target = tables.moves[data[layout.POSITION]].start
    rows, columns, width = image.shape[1], image.shape[2], view.steps_per_column
    map_start = target - columns // 2 * width
    map_end = map_start + columns * width
    slots = len(view.in_use) - 1
    first_slot = slot_at(tables, target) - slots // 2
    seen_from = min(map_start, tables.slots[min(max(first_slot, 0), program.slots)].start)
    view.map_sums[:] = 0
    view.profile_sums[:] = 0
    view.in_use[:] = 0
    in_use = 0
    number = data[layout.LAST_TO_END]
    while number >= 0:
        _, start, end, offset, top = residency(tables, data, number)
        number = data[program.at_rows + layout.ROW * number + layout.BEFORE_IT]
        if end <= seen_from:
            break
        # Slots whose first step is in the residency.
        view.in_use[min(max(tables.slot_of[start] - first_slot, 0), slots)] += top - offset
        view.in_use[min(max(tables.slot_of[end] - first_slot, 0), slots)] -= top - offset
        if start <= target < end:
            in_use += top - offset
            bins = len(view.profile_sums)
            low, high = offset * bins / program.capacity, top * bins / program.capacity
            for place in range(int(low), min(math.ceil(high), bins)):
                view.profile_sums[place] += min(high, place + 1.0) - max(low, float(place))
        if end > map_start and start < map_end:
            left = (max(start, map_start) - map_start) / width
            right = (min(end, map_end) - map_start) / width
            low, high = offset * rows / program.capacity, top * rows / program.capacity
            add_rectangle(view.map_sums, low, high, left, right)
    for place in range(rows):
        for column in range(columns):
            image[row, place, column] = shade(view.map_sums[place, column], view.is_binary)
    for place in range(len(view.profile_sums)):
        profile[row, place] = shade(view.profile_sums[place], view.is_binary)
    for slot in range(1, slots):
        view.in_use[slot] += view.in_use[slot - 1]
    return in_use / program.capacity


@njit_inner
def slot_at(tables: Tables, step: int) -> int:
    """Return the slot of a step."""
    slot = tables.slot_of[step]
    # A step within a loop is in the slot that began before it.
    return slot if tables.slots[slot].start == step else slot - 1  # type: ignore[no-any-return]


@njit_inner
def add_rectangle(sums: Floats, low: float, high: float, left: float, right: float) -> None:
    """Add to each cell the fraction of it that is in a rectangle, given in rows and columns."""
    first, last = math.ceil(left), int(right)
    for place in range(int(low), min(math.ceil(high), sums.shape[0])):
        part = np.float32(min(high, place + 1.0) - max(low, float(place)))
        if first > last:  # Within one column.
            sums[place, last] += np.float32(right - left) * part
            continue
        for column in range(first, last):
            sums[place, column] += part
        if left < first:
            sums[place, first - 1] += np.float32(first - left) * part
        if last < right:
            sums[place, last] += np.float32(right - last) * part


@njit_inner
def shade(part: np.float32, is_binary: bool) -> np.int32:
    """Return the byte for the occupied fraction of a cell; it is 0 only if the fraction is 0."""
    # Single precision throughout: double precision takes ten times as long.
    least = _FULL if is_binary else _ONE
    shaded = max(min(part * _FULL + _HALF, _FULL), least if part > _ZERO else _ZERO)
    return np.int32(shaded)


# -------------------------------------------------------------------------------------------------------------- features


@njit_inner
def describe_supply(tables: Tables, data: Ints, view: View, out: Floats, row: int) -> None:
    """Describe the slots around the target time. Reads ``view.in_use``."""
    program = tables.program[0]
    move = tables.moves[data[layout.POSITION]]
    target = slot_at(tables, move.start)
    count = out.shape[1]
    first = target - count // 2
    demand = max(float(move.demand), 1e-9)
    for place in range(count):
        slot = first + place
        for feature in range(out.shape[2]):
            out[row, place, feature] = 0.0
        if slot < 0 or slot >= program.slots:
            continue
        left = float(supply_ps(tables, data, slot))
        own = tables.slots[slot].supply
        start = tables.slots[slot].start
        out[row, place, SupplyFeature.IS_INSIDE] = 1.0
        out[row, place, SupplyFeature.LEFT] = ratio(left / view.mean_supply)
        out[row, place, SupplyFeature.LEFT_DEMAND] = ratio(min(left / demand, 65535.0))
        # REACH is accumulated by the loops below.
        out[row, place, SupplyFeature.REACH] = left / demand
        out[row, place, SupplyFeature.LEFT_SHARE] = left / own if own > 0 else 0.0
        out[row, place, SupplyFeature.IS_WINDOW] = 1.0 if windows_over(tables, data, slot) > 0 else 0.0
        out[row, place, SupplyFeature.IN_USE] = view.in_use[place] / program.capacity
        out[row, place, SupplyFeature.PRESSURE] = view.pressure[start]
        out[row, place, SupplyFeature.BENEFIT] = view.slot_benefit[slot]
    reach = 0.0
    for place in range(count // 2 - 1, -1, -1):
        reach = min(reach + out[row, place, SupplyFeature.REACH], 1.0)
        out[row, place, SupplyFeature.REACH] = reach * out[row, place, SupplyFeature.IS_INSIDE]
    reach = 0.0
    for place in range(count // 2, count):
        reach = min(reach + out[row, place, SupplyFeature.REACH], 1.0)
        out[row, place, SupplyFeature.REACH] = reach * out[row, place, SupplyFeature.IS_INSIDE]


@njit_inner
def describe_actions(tables: Tables, data: Ints, view: View, out: Floats, row: int) -> None:
    """Describe the three actions of the current move."""
    program = tables.program[0]
    move = tables.moves[data[layout.POSITION]]
    reward = float(benefit(tables, data, data[layout.POSITION]))
    reach = max(view.map_sums.shape[1] * view.steps_per_column / 2.0, 1.0)
    for action in range(3):
        for feature in range(out.shape[2]):
            out[row, action, feature] = 0.0
        if not data[layout.LEGAL] >> action & 1:
            continue
        out[row, action, ActionFeature.IS_LEGAL] = 1.0
        if action == layout.DROP:
            continue
        start, end, offset = placement(data, action)
        area = float(move.bytes) * (end - start)
        out[row, action, ActionFeature.OCCUPIES] = 1.0 if end > start else 0.0
        out[row, action, ActionFeature.START] = near(start - move.start)
        out[row, action, ActionFeature.END] = near(end - move.start)
        out[row, action, ActionFeature.OFFSET] = offset / program.capacity
        out[row, action, ActionFeature.TOP] = (offset + move.bytes) / program.capacity
        out[row, action, ActionFeature.START_COLUMN] = max(min((start - move.start) / reach, 1.0), -1.0)
        out[row, action, ActionFeature.END_COLUMN] = max(min((end - move.start) / reach, 1.0), -1.0)
        out[row, action, ActionFeature.AREA] = ratio(area / program.capacity)
        out[row, action, ActionFeature.SUPPLY] = ratio(move.demand / view.mean_supply) if action == layout.COPY else 0.0
        out[row, action, ActionFeature.REWARD] = signed(reward / view.mean_benefit)
        out[row, action, ActionFeature.REWARD_SHARE] = reward / view.unit
        # An action that newly occupies no memory has the largest density.
        out[row, action, ActionFeature.DENSITY] = clipped(signed(reward / max(area, 1e-9) / view.density))


@njit_inner
def describe_globals(tables: Tables, data: Ints, view: View, in_use: float, out: Floats, row: int) -> None:
    """Describe the game as a whole. ``in_use`` is the fraction of memory in use at the target time."""
    program = tables.program[0]
    position = data[layout.POSITION]
    for feature in range(out.shape[1]):
        out[row, feature] = view.globals[feature]
    out[row, GlobalFeature.MOVE] = math.log2(1.0 + position) / 16.0
    out[row, GlobalFeature.PROGRESS] = position / program.moves
    out[row, GlobalFeature.LEFT] = math.log2(1.0 + program.moves - position) / 16.0
    out[row, GlobalFeature.ALIAS_INDEX] = view.buffers[position, BufferFeature.ALIAS_INDEX]
    out[row, GlobalFeature.ALIAS_LEFT] = view.buffers[position, BufferFeature.ALIAS_LEFT]
    out[row, GlobalFeature.RESETS] = ratio(data[layout.RESETS])
    out[row, GlobalFeature.IN_USE] = in_use
    out[row, GlobalFeature.PRESSURE] = view.pressure[tables.moves[position].start]
    out[row, GlobalFeature.RETURN] = data[layout.RETURN_PS] / view.unit
    out[row, GlobalFeature.BENEFIT_LEFT] = view.benefit_left[position]


@njit_inner
def describe_buffer(tables: Tables, data: Ints, view: View, number: int, out: Floats, row: int, place: int) -> None:
    """Describe the buffer of move ``number``, which is not yet decided; all 0 if ``number`` is -1."""
    if number < 0:
        for feature in range(out.shape[2]):
            out[row, place, feature] = 0.0
        return
    for feature in range(FIRST_DYNAMIC):
        out[row, place, feature] = view.buffers[number, feature]
    for feature in range(FIRST_ID, out.shape[2]):
        out[row, place, feature] = view.buffers[number, feature]
    program = tables.program[0]
    present = tables.moves[data[layout.POSITION]]
    move = tables.moves[number]
    gain = float(benefit(tables, data, number))
    flags = tensor_flags(tables, data, move.tensor)
    valid_from = slow_from(tables, data, move.tensor)
    is_alias = move.alias_group >= 0
    is_held = flags & layout.HELD != 0
    offset, end = 0, move.start
    if is_held:
        _, _, end, offset, _ = residency(tables, data, latest_residency(tables, data, move.tensor))
    out[row, place, BufferFeature.TARGET_TIME] = near(move.start - present.start)
    out[row, place, BufferFeature.BENEFIT] = signed(gain / view.mean_benefit)
    out[row, place, BufferFeature.BENEFIT_SHARE] = gain / view.unit
    out[row, place, BufferFeature.BYTE_BENEFIT] = signed(gain / move.bytes / view.byte_benefit)
    out[row, place, BufferFeature.DENSITY] = clipped(signed(gain / view.area[number] / view.density))
    out[row, place, BufferFeature.SAME_TENSOR] = 1.0 if move.tensor == present.tensor else 0.0
    out[row, place, BufferFeature.SAME_ALIAS] = 1.0 if is_alias and move.alias_group == present.alias_group else 0.0
    out[row, place, BufferFeature.IS_HELD] = 1.0 if is_held else 0.0
    out[row, place, BufferFeature.HOME_OFFSET] = offset / program.capacity
    out[row, place, BufferFeature.HOME_END] = near(end - move.start)
    out[row, place, BufferFeature.IS_COVERED] = 1.0 if is_held and end >= move.end else 0.0
    out[row, place, BufferFeature.HAS_SLOW] = 1.0 if valid_from != layout.NEVER else 0.0
    out[row, place, BufferFeature.IS_SLOW_VALID] = 1.0 if valid_from <= move.start else 0.0
    out[row, place, BufferFeature.IS_GROUP_FAST] = 1.0 if flags & layout.GROUP_FAST else 0.0
    out[row, place, BufferFeature.IS_GROUP_SLOW] = 1.0 if flags & layout.GROUP_SLOW else 0.0
    out[row, place, BufferFeature.IS_DROPPED] = 1.0 if is_alias and is_dropped(tables, data, move.alias_group) else 0.0
