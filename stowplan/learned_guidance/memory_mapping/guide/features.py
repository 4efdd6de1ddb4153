"""The features of each access for the learned guide, which do not depend on the size or the speed of a machine.

Sizes are relative to the capacity, times are relative to each other, and savings are ranks or relative to copy times. A program
with all sizes, or all times, ten times as large has the same features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.learned_guidance.memory_mapping.guide.program import OPERATIONS, Floats, Ints, Program

Rows = NDArray[np.float32]

#: Number of levels of density. The features of a gap include the bytes that all gaps of its level and above would occupy.
LEVELS = 16

#: Largest absolute value of logarithms, which are clipped.
MOST = 10.0

GAP = (
    "gap steps",
    "gap time to copy",
    "gap part of program",
    "gap live mean",
    "gap live most",
    "gap denser mean",
    "gap denser most",
    "gap denser twice mean",
    "gap denser twice most",
    "gap traffic",
    "gap channel",
    "gap channel denser",
    "gap density",
    "gap density twice",
)
"""Names of the features of a gap. Each access has these features twice: for the gap after it, and for the gap before it. Most
features are logarithms of ratios, and the last two are ranks from 0 to 1.

``time to copy``: the least time of the steps inside the gap, divided by the time of a copy-in. ``part of program``: the part of
the program's time that the gap lasts. ``traffic``: bytes of the tensors that steps inside the gap use, as a part of the
capacity. ``live``: bytes of all tensors that could stay at the same time, as a part of the capacity, mean and maximum over the
gap. ``denser``: the same for gaps of at least the same density only, where density is saved time per byte and time. ``twice``:
the saving of both ends of the gap counts, not only of the later one. ``channel``: copy time that gaps need, as a part of their
time; there, density is saved time per copy time.
"""

ACCESS = (
    "size",
    "too large",
    "accesses",
    "place",
    "first",
    "last",
    "input",
    "output",
    "reads",
    "writes",
    "copied",
    "dead",
    "glued",
    "dead before",
    "glued before",
    "saves to copy in",
    "saves to copy out",
    "saves of step",
    "saves of step at last",
    "saves of the step's most",
    "rank of saving",
    "rank of tensor density",
    "rank of saving to copy",
    "rank of size",
    "step accesses",
    "step bytes",
    "step gain",
    "step weight",
    "step time",
    "in loop",
    "program live",
    "program gain",
    "program channel",
    "stalls",
    *(f"operation {number}" for number in range(len(OPERATIONS) + 1)),
)
"""Names of the features of an access without its gaps; they describe the access, its tensor, its step and the program.

``saves``: the time that the access saves if it is fast, divided by the time of a copy, by the latency of the step, or by the
largest saving of an access of the step; ``at last`` is the time that it loses if it alone is slow. ``rank``: from 0 to 1 among
all accesses. ``dead`` and ``glued`` describe the gap after the access; with ``before``, they describe the gap before it.
``copied``: whether the tensor may be copied. ``place``: from 0 for its first access to 1 for its last one. ``step gain`` and
``program gain``: the part of the latency that fast memory can save. ``step bytes``: sizes of the tensors that the step uses, as
a part of the capacity. ``program live``: the most bytes that are between first and last access at one step, as a part of the
capacity. ``program channel``: copy time of all reads that save time, as a part of the program's least time. ``operation``: 1
for the class of the step's operation, 0 for all other classes.
"""

NAMES = (*ACCESS, *GAP, *(f"{name}, before" for name in GAP))


def features(program: Program) -> Rows:
    """The features of each access, of shape ``[accesses, len(NAMES)]``; names and order are :data:`NAMES`."""
    total = len(program.tensor)
    if not total:
        return np.zeros((0, len(NAMES)), np.float32)
    gaps = _gaps(program)
    before = np.arange(total) - 1
    starts = program.first[:-1][np.diff(program.first) > 0]
    before[starts] = total + np.arange(len(starts))
    rows = np.concatenate([_accesses(program), gaps[:total], gaps[before]], axis=1)
    clipped: Rows = np.clip(rows, -MOST, MOST).astype(np.float32)
    return clipped


def gains(program: Program) -> Floats:
    """The time that serving each access from fast memory may save, in ps; shape ``[accesses]``."""
    return np.maximum(0.0, np.maximum(program.alone, 0.5 * program.final))


def _accesses(program: Program) -> Floats:
    """The features :data:`ACCESS` of each access; shape ``[accesses, len(ACCESS)]``."""
    of, at, total = program.tensor, program.step, len(program.tensor)
    counts = np.diff(program.first)[of]
    place = np.arange(total) - program.first[of]
    gain = gains(program)
    size = program.size[of] / program.capacity
    first, last = place == 0, place == counts - 1
    clock = _clock(program)
    begin, end = program.step[program.first[of]], program.step[program.first[of] + counts - 1]
    tensor_gain = np.bincount(of, gain, len(program.size))[of]
    step_most = np.zeros(len(program.slow))
    np.maximum.at(step_most, at, gain)
    step_slow = np.maximum(program.slow, 1.0)
    step_bytes = np.bincount(at, size, len(program.slow))
    live = _steps(program, begin[first], end[first] + 1, size[first])
    shifted = np.concatenate([[False], program.dead[:-1]]) & ~first
    shifted_glue = np.concatenate([[False], program.glued[:-1]]) & ~first
    demand = np.sum(program.copy_in[of] * (program.reads & (gain > 0)))
    columns = [
        _log(size),
        size > 1,
        np.log2(counts),
        place / np.maximum(1, counts - 1),
        first,
        last,
        program.is_input[of],
        program.is_output[of],
        program.reads,
        program.writes,
        program.may_copy[of],
        program.dead,
        program.glued,
        shifted,
        shifted_glue,
        _log(gain, program.copy_in[of]),
        _log(gain, program.copy_out[of]),
        program.alone / step_slow[at],
        program.final / step_slow[at],
        gain / np.maximum(step_most[at], 1.0),
        _rank(gain),
        _rank(tensor_gain / (size * np.maximum(1.0, clock[end + 1] - clock[begin]))),
        _rank(gain / np.maximum(1.0, program.copy_in[of])),
        _rank(size),
        np.log2(np.bincount(at, minlength=len(program.slow))[at]),
        _log(step_bytes[at]),
        (1 - program.floor / step_slow)[at],
        np.log2(program.weight)[at],
        _log(step_slow[at], np.mean(step_slow)),
        program.in_loop[at],
        np.full(total, _log(np.max(live))),
        np.full(total, 1 - np.sum(program.floor) / np.sum(step_slow)),
        np.full(total, _log(demand, np.sum(program.floor))),
        np.full(total, program.stalls),
        *((program.operation == number)[at] for number in range(len(OPERATIONS) + 1)),
    ]
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def _gaps(program: Program) -> Floats:
    """The features :data:`GAP` of the gap after each access, followed by those of the gap before each tensor's first access."""
    total, horizon = len(program.tensor), len(program.slow)
    gain, clock = gains(program), _clock(program)
    starts = program.first[:-1][np.diff(program.first) > 0]
    of = np.concatenate([program.tensor, program.tensor[starts]])
    start = np.concatenate([program.step, np.zeros(len(starts), np.int64)])
    end = np.concatenate([program.step, program.step[starts]])
    later = np.concatenate([gain, gain[starts]])
    open_ = np.concatenate([~program.dead, program.is_input[program.tensor[starts]]])
    goes_on = np.flatnonzero(~program.dead | program.glued)
    goes_on = goes_on[goes_on + 1 < total]
    end[goes_on] = program.step[goes_on + 1]
    later[goes_on] = gain[goes_on + 1]
    reads = np.concatenate([np.zeros(total, np.bool_), program.reads[starts]])
    reads[goes_on] = program.reads[goes_on + 1]
    size = program.size[of] / program.capacity
    inner = np.maximum(0.0, clock[end] - clock[np.minimum(start + 1, end)])
    lasts = np.maximum(1.0, clock[end] - clock[start])
    counted = open_ & (size <= 1)
    counted[total:] = False
    # Bytes at each step that tensors would occupy over gaps over which they can stay.
    live = _steps(program, start, end, size * counted)
    density, twice = (gained / (size * lasts) for gained in (later, later + np.concatenate([gain, 0 * gain[starts]])))
    copy = program.copy_in[of]
    rate = counted_rate = np.where(open_ & reads & (size <= 1) & (later > 0), copy / np.maximum(inner, copy + 1.0), 0.0)
    channel = _steps(program, start, end, counted_rate)
    to_copy = later / np.maximum(copy, 1.0)
    columns = [
        np.log2(1 + end - start),
        _log(inner, copy),
        (clock[end] - clock[start]) / max(1.0, clock[-1]),
        *(_log(1 + value) for value in _over(live[:, None], start, end, None)),
    ]
    for key in (density, twice):
        level = _levels(key, counted & (later > 0))
        columns += [_log(1 + value) for value in _over(_stack(program, start, end, size * counted, level), start, end, level)]
    traffic = np.concatenate([[0.0], np.cumsum(np.bincount(program.step, program.size[program.tensor], horizon))])
    columns.append(_log(1 + (traffic[end] - traffic[np.minimum(start + 1, end)]) / program.capacity))
    columns.append(_log(1 + _over(channel[:, None], start, end, None)[0]))
    level = _levels(to_copy, rate > 0)
    columns.append(_log(1 + _over(_stack(program, start, end, rate, level), start, end, level)[0]))
    columns += [_rank(density), _rank(twice)]
    stacked: Floats = np.stack(columns, axis=1)
    return stacked


def _clock(program: Program) -> Floats:
    """Least time from the start to each boundary, with a small positive time for every step; shape ``[T + 1]``."""
    least = 1e-3 * max(1.0, float(np.mean(program.slow)))
    return np.concatenate([[0.0], np.cumsum(np.maximum(program.floor, least))])


def _log(value: Any, over: Any = 1.0) -> Floats:
    """Clipped logarithm to the base 2 of a ratio, for arrays or numbers."""
    logarithm: Floats = np.log2(np.maximum(2.0**-MOST, np.asarray(value) / np.maximum(over, 1e-9)))
    return logarithm


def _rank(value: Floats) -> Floats:
    """Ranks in (0, 1); equal values have equal ranks."""
    order = np.sort(value)
    return (np.searchsorted(order, value, "left") + np.searchsorted(order, value, "right")) / (2.0 * len(value))


def _steps(program: Program, start: Ints, end: Ints, amount: Floats) -> Floats:
    """For each step, the sum of the amounts whose range ``[start, end)`` contains it; shape ``[T]``."""
    horizon = len(program.slow)
    change = np.bincount(start, amount, horizon + 1) - np.bincount(end, amount, horizon + 1)
    return np.cumsum(change)[:horizon]


def _levels(key: Floats, counted: NDArray[np.bool_]) -> Ints:
    """The level of each key, 0 for the highest; each level has an equal part of the counted keys."""
    if not counted.any():
        return np.zeros(len(key), np.int64)
    # This computes ``numpy.quantile``, which would import masked arrays and take a third of the time of a first call.
    ranked = np.sort(key[counted])
    at = (len(ranked) - 1) * np.linspace(1, 0, LEVELS + 1)[1:-1]
    below = np.floor(at).astype(np.int64)
    low, high, part = ranked[below], ranked[np.minimum(below + 1, len(ranked) - 1)], at - below
    borders = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return np.searchsorted(-borders, -key, "left").astype(np.int64)


def _stack(program: Program, start: Ints, end: Ints, amount: Floats, level: Ints) -> Floats:
    """For each step and level, the sum of the amounts of this level and above; shape ``[T, LEVELS]``."""
    horizon = len(program.slow)
    change = np.zeros((horizon + 1) * LEVELS)
    change += np.bincount(start * LEVELS + level, amount, len(change))
    change -= np.bincount(end * LEVELS + level, amount, len(change))
    return np.cumsum(np.cumsum(change.reshape(-1, LEVELS), axis=0), axis=1)[:horizon]


def _over(values: Floats, start: Ints, end: Ints, level: Ints | None) -> tuple[Floats, Floats]:
    """Mean and maximum of a column of ``values`` ``[T, levels]`` over ``[start, end]``."""
    horizon = len(values)
    column = np.zeros(len(start), np.int64) if level is None else level
    last = np.minimum(end, horizon - 1)
    length = last - start + 1
    sums = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    mean = (sums[last + 1, column] - sums[start, column]) / length
    power = np.frexp(length.astype(np.float64))[1] - 1
    most = np.zeros(len(start))
    table = values
    for exponent in range(int(power.max(initial=0)) + 1):
        here = np.flatnonzero(power == exponent)
        if len(here):
            most[here] = np.maximum(table[start[here], column[here]], table[last[here] - (1 << exponent) + 1, column[here]])
        if (2 << exponent) <= horizon:
            table = np.maximum(table[: -(1 << exponent)], table[1 << exponent :])
    return mean, most
