"""Lower bounds by Lagrangian relaxation, computed within milliseconds.

A *use* is the read or write of a tensor by a step. An *access* is all uses of a tensor by one step (:mod:`.arrays`). A
*boundary* is the moment before a step or after the last one. A use is *fast* if it is served from fast memory. Copies are made
by *channels*, one copy after the other on each.

The limits on memory and on the channels are replaced by *prices* (Lagrangian multipliers): one for a unit of memory at each
step, and one for the channels' time during each step. The latency of a step is the maximum of affine functions of its fast
uses, the *pieces*, and of a constant *floor*. A piece has a constant and a *term* for each use. Each piece and the floor get a
*share* in [0, 1], and the shares of a step add up to 1; the weighted sum of the pieces and the floor is a lower bound of the
latency. With prices and shares, tensors no longer depend on each other.

The bound is the sum over all tensors of the cheapest *path* through their accesses, plus the constants of the pieces, minus the
price of all memory and of all time of the channels. A path says before and after each access which memory has the valid content
of the tensor. Any prices give a valid bound (lemma B8 of ``docs/reference/memory-mapping-models.md``). They are improved by
subgradient steps with a step size for each coordinate (Duchi, Hazan and Singer, "Adaptive subgradient methods", 2011).

All numbers on which a proof rests are computed in integers: prices are multiples of 1 / :attr:`Priced.unit`. The functions
raise no errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from stowplan.compiled import njit, njit_inner, njit_once, records
from stowplan.models.memory_mapping.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.memory_mapping import arrays
from stowplan.portfolio.memory_mapping.arrays import Data, Floats, Ints

#: LARGEST is the largest sum that may occur, in ps / unit. NEVER is the cost of a path or copy that is impossible.
LARGEST, NEVER = 1 << 58, 1 << 61


class PricesParameters(Parameters, frozen=True):
    """Parameters of bounds by prices."""

    most_bits: int = 24
    """Number of fractional bits of prices. There are fewer if sums of prices could otherwise overflow."""
    least_bits: int = 8
    """Least number of fractional bits of prices. If sums of prices could overflow even with so few bits, there is no bound."""
    most_channel: int = 8
    """Largest price of the channels' time if the program may not wait for copies, in picoseconds for each picosecond."""
    most_steps: int = 300
    """Largest number of subgradient steps in total."""
    most_at_once: int = 20
    """Largest number of subgradient steps from one bound to the next."""
    uses_at_once: int = 200_000
    """Largest number of subgradient steps from one bound to the next, times the number of uses. At least two steps are made."""
    least_progress: float = 2e-5
    """Fraction of the difference between the latency with all tensors in slow memory and the floor of the problem. A smaller
    increase of a bound does not count as progress."""
    max_idle: int = 100
    """Number of subgradient steps in a row without progress after which the bounds end."""


PARAMS = parameters(PricesParameters, __name__)


#: FIRST_PRICE is the first price of memory at steps at which it is scarce, as a fraction of the mean gain of a use for each
#: unit of memory. STEP is the size of a subgradient step. FIRST_SQUARES is the sum of squared subgradients at the beginning, as
#: a fraction of the mean of the first squares. All three were tuned on ten HLO modules.
FIRST_PRICE, STEP, FIRST_SQUARES = 0.05, 0.15, 0.1

#: Number of boundaries at which the start or end of a copy is examined one by one. A single lower bound of the cost covers all
#: further boundaries, to limit the time.
MOST_LOOKS = 200


#: The states of a tensor on a path, which say where its content is valid: in slow memory alone (SLOW), nowhere (LOST), in both
#: memories (CLEAN), or in fast memory alone (DIRTY).
SLOW, LOST, CLEAN, DIRTY = 0, 1, 2, 3


class VisitRow:
    """How the cheapest path of a tensor gets from one access to the next; the last row is for the end of the program.

    The states are :data:`SLOW`, :data:`LOST`, :data:`CLEAN` and :data:`DIRTY`. The *gap* of an access is the time between it
    and the access before.
    """

    slow: int
    """The state at the beginning of the gap, if the state at its end is ``SLOW``."""
    lost: int
    """The state at the beginning of the gap, if the state at its end is ``LOST``."""
    clean: int
    """The state at the beginning of the gap, if the state at its end is ``CLEAN``."""
    dirty: int
    """The state at the beginning of the gap, if the state at its end is ``DIRTY``."""
    out_end: int
    """Boundary at which the copy-out in the gap ends after which the tensor leaves fast memory."""
    in_start: int
    """Boundary at which the copy-in in the gap starts."""
    version: int
    """Boundary after the last write before the gap."""
    fast_write: int
    """The state right before an access that writes, for the best path on which the access is fast."""
    slow_write: int
    """The state right before an access that writes, for the best path on which the access is slow."""


class Priced(NamedTuple):
    """The prices, with the arrays for computing bounds and subgradients.

    There are T steps, U uses and E terms of pieces, the constants included.
    """

    unit: int
    """Denominator of all prices and costs, a power of two."""
    room: int
    """Capacity in units of memory, each as large as the alignment."""
    alignment: int
    """Bytes of a unit of memory."""
    most_channel: int
    """Largest price of the channels' time, which is also the price of a copy for which the program waits."""
    is_whole: int
    """1 if a tensor that is copied out between two steps occupies its bytes for one more step; otherwise 0."""
    is_sliced: int
    """1 if prefetches may be cut into slices; otherwise 0."""
    rate: float
    """Scale of the memory prices: the mean gain of a use for each unit of its tensor (ps)."""
    memory: Floats
    """[T] price of a unit of memory at each step, in multiples of ``rate``."""
    channel: Floats
    """[T] price of the channels' time during each step, in picoseconds for each picosecond."""
    share: Floats
    """[E] share of each piece, at its first term; -1 for a piece that is never above the floor. The floor has the rest."""
    squares: Floats
    """[2 T + E] sums of squared subgradients of memory prices, channel prices and shares."""
    gain: Ints
    """[E] the change of the piece's value if the term's use becomes fast (ps, mostly negative); for the first term of a piece,
    the piece's value with all uses slow."""
    latency: Ints
    """[E] value of each piece (ps), at its first term, if all tensors are on their cheapest paths."""
    earned: Ints
    """[U] the amount by which each use lowers the cost of a path if it is fast (ps / unit)."""
    until: Ints
    """[T + 1] the sum of the prices of a unit of memory at all steps before each boundary."""
    cheapest: Ints
    """[levels * T] a sparse table: the lowest price of the channels' time during 1, 2, 4, … steps from each step on."""
    supply: Ints
    """[T + 1] the least time from the start of the program to each boundary (ps)."""
    change: Ints
    """[T + 2] change of the number of used units of memory at each step, over all cheapest paths."""
    traffic: Floats
    """[T] time of the channels that copies take during each step (ps), over all cheapest paths."""
    visits: Sequence[VisitRow]
    """Scratch space for the path of one tensor."""


def new_priced(problem: Problem, data: Data) -> Priced | None:
    """The arrays with the first prices; None if the numbers of the problem are so large that sums could overflow."""
    steps, terms = problem.horizon, len(data.terms)
    is_stalling = problem.stalls == "allowed"
    total = problem.floor_ps
    for step in problem.steps:
        total += step.weight * sum(sum(map(abs, (piece.base_ps, *piece.slow_ps, *piece.fast_ps))) for piece in step.pieces)
    copied = [PARAMS.most_channel * (tensor.copy_in_ps + tensor.copy_out_ps) for tensor in problem.tensors]
    total += sum(copied[tensor] for tensor in problem.tensor_of_use)
    bits = min(PARAMS.most_bits, LARGEST.bit_length() - 1 - total.bit_length())
    if bits < PARAMS.least_bits:
        return None
    # The capacity is rounded up, because a tensor that ends in the last unit need not fill it.
    room = -(-min(problem.capacity, arrays.MOST_CAPACITY) // problem.alignment)
    gain = np.zeros(terms, np.int64)
    share = np.zeros(terms, np.float64)
    rate = _first_shares(data, problem.alignment, room, gain, share)
    accesses = int(np.diff(data.tensors["first_access"]).max(initial=0))  # type: ignore[call-overload]
    return Priced(
        unit=1 << bits,
        room=room,
        alignment=problem.alignment,
        most_channel=(1 << bits) // problem.channels if is_stalling else PARAMS.most_channel << bits,
        is_whole=int(problem.evictions == "whole_steps"),
        is_sliced=int(problem.prefetches == "sliced"),
        rate=rate,
        memory=np.zeros(steps),
        channel=np.zeros(steps),
        share=share,
        squares=np.zeros(2 * steps + terms),
        gain=gain,
        latency=np.zeros(terms, np.int64),
        earned=np.zeros(problem.use_count, np.int64),
        until=np.zeros(steps + 1, np.int64),
        cheapest=np.zeros(max(1, steps.bit_length()) * steps, np.int64),
        supply=np.array(problem.floor_until, np.int64),
        change=np.zeros(steps + 2, np.int64),
        traffic=np.zeros(steps),
        visits=records(VisitRow, accesses + 1),
    )


def first_bounds(problem: Problem) -> Iterator[int]:
    """Yield lower bounds of the objective (ps), each at least as large as the one before.

    They end once they hardly improve, after some milliseconds to tenths of a second; a subgradient step takes about 0.1 us for
    each use. There are no bounds if the problem has no uses, or if its numbers are so large that sums could overflow.
    """
    data = arrays.build(problem)
    priced = new_priced(problem, data) if problem.use_count else None
    if priced is None:
        return
    best, least = problem.floor_ps, PARAMS.least_progress * max(0, problem.all_slow_ps - problem.floor_ps)
    steps = max(2, min(PARAMS.most_at_once, PARAMS.uses_at_once // problem.use_count))
    done = progress = 0
    while done < PARAMS.most_steps and done - progress < PARAMS.max_idle:
        before, best = best, max(best, ascend(data, priced, steps, done == 0))
        done += steps
        progress = done if best - before > least else progress
        yield best


# ------------------------------------------------------------------------------------------------------------------- pieces


@njit
def _first_shares(data: Data, alignment: int, room: int, gain: Ints, share: Floats) -> float:
    """Set the gains, and equal shares for the pieces of each step.

    Returns the mean gain of a use for each unit of memory of its tensor (ps), 0 if no use gains anything.
    """
    gained, units = 0.0, 0.0
    for tensor in range(len(data.tensors) - 1):
        size = data.tensors[tensor].bytes // alignment
        for access in range(data.tensors[tensor].first_access, data.tensors[tensor + 1].first_access):
            for at in range(data.accesses[access].first_use, data.accesses[access + 1].first_use):
                step = data.access_uses[at].step
                row, end = data.steps[step], data.steps[step + 1]
                place, most = 1 + data.access_uses[at].use - row.first_use, 0
                for first in range(row.first_term, end.first_term, end.first_use - row.first_use + 1):
                    most = max(most, data.terms[first + place].slow - data.terms[first + place].fast)
                if most > 0 and size <= room:
                    gained += float(most * row.weight)
                    units += size
    for step in range(data.horizon):
        row = data.steps[step]
        floor, length = row.floor // row.weight, data.steps[step + 1].first_use - row.first_use + 1
        active = 0
        for first in range(row.first_term, data.steps[step + 1].first_term, length):
            constant, rise = 0, 0
            for at in range(first, first + length):
                constant += data.terms[at].slow
                rise += max(0, data.terms[at].fast - data.terms[at].slow)
            gain[first] = constant
            # A gain counts at most as much as brings the piece down to the floor
            # (:mod:`stowplan.models.memory_mapping.latency`).
            for at in range(first + 1, first + length):
                gain[at] = max(data.terms[at].fast - data.terms[at].slow, min(0, floor - constant - rise))
            active += constant + rise > floor
        for first in range(row.first_term, data.steps[step + 1].first_term, length):
            rise = 0
            for at in range(first + 1, first + length):
                rise += max(0, gain[at])
            share[first] = 1.0 / active if gain[first] + rise > floor else -1.0
    return gained / units if units > 0.0 else 0.0


@njit_once
def _price_steps(data: Data, priced: Priced) -> int:
    """Round the prices to integers, and compute ``earned`` and the tables of prices.

    Returns the constant part of the bound (ps / unit): the cost of the steps with all uses slow, minus the price of all memory
    and of all time of the channels.
    """
    total, unit, horizon = 0, priced.unit, data.horizon
    per_unit, most_memory = priced.rate * unit, LARGEST // priced.room
    priced.until[0] = 0
    for step in range(horizon):
        row = data.steps[step]
        price = min(max(0.0, priced.memory[step]) * per_unit, float(most_memory))
        priced.until[step + 1] = min(most_memory, priced.until[step] + int(price))
        channel = int(min(max(0.0, priced.channel[step]) * unit, float(priced.most_channel)))
        priced.cheapest[step] = channel
        priced.change[step], priced.traffic[step] = 0, 0.0
        rest, length = unit, data.steps[step + 1].first_use - row.first_use + 1
        if data.stalls_allowed:
            rest -= data.channels * channel
        else:
            total -= data.channels * channel * row.floor
        rest_at_first = rest
        for use in range(row.first_use, data.steps[step + 1].first_use):
            priced.earned[use] = 0
        for first in range(row.first_term, data.steps[step + 1].first_term, length):
            priced.latency[first] = priced.gain[first]
            portion = min(rest, int(min(max(0.0, priced.share[first]), 1.0) * rest_at_first))
            if portion > 0:
                rest -= portion
                total += row.weight * portion * priced.gain[first]
                for place in range(1, length):
                    priced.earned[row.first_use + place - 1] -= row.weight * portion * priced.gain[first + place]
        total += rest * row.floor
    priced.change[horizon], priced.change[horizon + 1] = 0, 0
    width, level = 1, horizon
    while 2 * width <= horizon:
        for step in range(horizon - 2 * width + 1):
            one = priced.cheapest[level - horizon + step]
            priced.cheapest[level + step] = min(one, priced.cheapest[level - horizon + step + width])
        width, level = 2 * width, level + horizon
    return total - int(priced.room * priced.until[horizon])


# -------------------------------------------------------------------------------------------------------------------- paths


@njit_inner
def _cheapest(priced: Priced, horizon: int, start: int, end: int) -> int:
    """The lowest price of the channels' time during the steps ``[start, end)``, which must not be empty."""
    width, level = 1, 0
    while 2 * width <= end - start:
        width, level = 2 * width, level + horizon
    return int(min(priced.cheapest[level + start], priced.cheapest[level + end - width]))


@njit_inner
def _copy_cost(data: Data, priced: Priced, duration: int, start: int, end: int) -> int:
    """The lowest cost (ps / unit) of a copy of ``duration`` ps between two boundaries; NEVER if there is not enough time for
    it. If stalls are allowed, there always is."""
    if not data.stalls_allowed and (start >= end or priced.supply[end] - priced.supply[start] < duration):
        return NEVER
    if start >= end:
        return duration * priced.most_channel
    return duration * min(priced.most_channel, _cheapest(priced, data.horizon, start, end))


@njit_inner
def _left_after(data: Data, priced: Priced, first: int, version: int, end: int) -> int:
    """Returns the boundary until which a tensor occupies fast memory if its copy-out ends at boundary ``end``.

    The gap begins at boundary ``first``, and ``version`` is the boundary after the last write.
    """
    return first + 1 if priced.is_whole and end == first == data.steps[version].up else end


@njit_inner
def _cheapest_copy_in(data: Data, priced: Priced, tensor: int, version: int, last: int) -> tuple[int, int]:
    """The lowest cost of a copy-in that is complete by boundary ``last``, with the memory from its start on; and its start.

    ``version`` is the boundary after the last write. The cost is at least :data:`NEVER` if no copy is possible.
    """
    duration, units = data.tensors[tensor].copy_in, data.tensors[tensor].bytes // priced.alignment
    best, best_start = NEVER, last
    earliest, start, end = data.steps[version].up, data.steps[last].down, data.steps[last].down
    for look in range(MOST_LOOKS + 1):
        if start < earliest:
            break
        copy_cost = _copy_cost(data, priced, duration, start if look < MOST_LOOKS else earliest, end)
        # A sliced copy may occupy memory late, because only its first slice has to be early.
        memory_cost = units * (priced.until[last] - priced.until[end if priced.is_sliced else start])
        if memory_cost + copy_cost < best:
            best, best_start = memory_cost + copy_cost, start
        # An earlier start never occupies less memory.
        if copy_cost == 0 or memory_cost >= best or start == 0:
            break
        start = data.steps[start - 1].down
    return best, best_start


@njit_inner
def _cheapest_copy_out(data: Data, priced: Priced, tensor: int, version: int, first: int, last: int) -> tuple[int, int]:
    """The lowest cost of a copy-out after which a tensor leaves fast memory, with the memory until then; and its end.

    The copy ends within the gap between the boundaries ``first`` and ``last``, and may begin earlier, from boundary ``version``
    on, after the last write. The cost is at least :data:`NEVER` if no copy is possible.
    """
    duration, units = data.tensors[tensor].copy_out, data.tensors[tensor].bytes // priced.alignment
    best, best_end = NEVER, last
    start, end, latest = data.steps[version].up, data.steps[first].up, data.steps[last].down
    for look in range(MOST_LOOKS + 1):
        if end > latest:
            break
        leaves = _left_after(data, priced, first, version, end)
        if leaves <= data.horizon and start <= end:
            copy_cost = _copy_cost(data, priced, duration, start, end if look < MOST_LOOKS else latest)
            memory_cost = units * (priced.until[leaves] - priced.until[first])
            if memory_cost + copy_cost < best:
                best, best_end = memory_cost + copy_cost, end
            if copy_cost == 0 or memory_cost >= best:
                break
        if end == data.horizon:
            break
        end = data.steps[end + 1].up
    return best, best_end


@njit_inner
def _cheapest_path(data: Data, priced: Priced, tensor: int) -> tuple[int, int]:
    """The lowest cost of a path of a tensor, and the tensor's state at the end of the program; ``visits`` records the path.

    The uses in a loop may count as one access, for which the order of writes and reads is relaxed.
    """
    row = data.tensors[tensor]
    units, horizon = row.bytes // priced.alignment, data.horizon
    slow, lost = (0, NEVER) if row.is_input else (NEVER, 0)
    clean = 0 if row.is_input and data.max_preloads else NEVER
    dirty, first, version = NEVER, 0, 0
    for access in range(row.first_access, data.tensors[tensor + 1].first_access + 1):
        visit = priced.visits[access - row.first_access]
        is_end = access == data.tensors[tensor + 1].first_access
        last = horizon if is_end else data.accesses[access].low
        visit.slow, visit.lost, visit.clean, visit.dirty = SLOW, LOST, CLEAN, DIRTY
        visit.version = version
        stay = units * (priced.until[last] - priced.until[first])
        if clean < slow:
            slow, visit.slow = clean, CLEAN
        if dirty < lost:
            lost, visit.lost = dirty, DIRTY
        clean += stay
        start = data.steps[version].up
        if dirty < NEVER and row.can_copy and start <= data.steps[last].down and start < horizon + 1 - priced.is_whole:
            total_cost = dirty + stay + _copy_cost(data, priced, row.copy_out, start, data.steps[last].down)
            if total_cost < clean:
                clean, visit.clean = total_cost, DIRTY
            total_cost, end = _cheapest_copy_out(data, priced, tensor, version, first, last)
            if dirty + total_cost < slow:
                slow, visit.slow, visit.out_end = dirty + total_cost, DIRTY, end
        dirty += stay
        if is_end:
            if row.is_output:
                return min(slow, clean), SLOW if slow <= clean else CLEAN
            least = min(min(slow, lost), min(clean, dirty))
            return least, SLOW if slow == least else LOST if lost == least else CLEAN if clean == least else DIRTY
        here = data.accesses[access]
        if slow < NEVER and row.can_copy and here.reads:
            total_cost, start = _cheapest_copy_in(data, priced, tensor, version, last)
            if slow + total_cost < clean:
                clean, visit.clean, visit.in_start = slow + total_cost, SLOW, start
        memory_cost = units * (priced.until[here.high] - priced.until[here.low])
        earned, chosen = 0, 0
        for use in range(here.first_use, data.accesses[access + 1].first_use):
            value = priced.earned[data.access_uses[use].use]
            earned += value
            chosen += value if row.uniform else max(0, value)
        if here.writes:
            before_write, visit.fast_write = min(clean, dirty), CLEAN if clean <= dirty else DIRTY
            visit.slow_write = SLOW
            if not here.reads or here.high > here.low + 1:
                visit.slow_write = SLOW if slow <= lost else LOST
                slow = min(slow, lost)
                if slow < before_write:
                    before_write, visit.fast_write = slow, visit.slow_write
            clean, dirty, version = NEVER, before_write + memory_cost - earned, here.written
        else:
            clean, dirty = clean + memory_cost - chosen, dirty + memory_cost - earned
        slow, lost = NEVER if row.uniform else slow, NEVER
        clean, dirty = min(clean, NEVER), min(dirty, NEVER)
        first = here.high
    return 0, SLOW


@njit_inner
def _add_traffic(data: Data, priced: Priced, duration: int, start: int, end: int) -> None:
    """Add the traffic of a copy between two boundaries, spread over the cheapest steps in proportion to their floors."""
    if start < end and duration > 0:
        price, total = _cheapest(priced, data.horizon, start, end), 0.0
        if price < priced.most_channel:
            for step in range(start, end):
                if priced.cheapest[step] == price:
                    total += 1.0 + data.steps[step].floor
            for step in range(start, end):
                if priced.cheapest[step] == price:
                    priced.traffic[step] += duration * (1.0 + data.steps[step].floor) / total


@njit_inner
def _add_memory(priced: Priced, units: int, start: int, end: int) -> None:
    """Add units of memory that are used during the steps ``[start, end)``."""
    priced.change[start] += units
    priced.change[end] -= units


@njit_inner
def _add_usage(data: Data, priced: Priced, tensor: int, state: int) -> None:
    """Walk back along the cheapest path of a tensor, and add its memory, its traffic and its effect on latencies to the sums.

    ``state`` is the tensor's state at the end of the program.
    """
    row, horizon = data.tensors[tensor], data.horizon
    units = row.bytes // priced.alignment
    for access in range(data.tensors[tensor + 1].first_access, row.first_access - 1, -1):
        visit = priced.visits[access - row.first_access]
        first = data.accesses[access - 1].high if access > row.first_access else 0
        last = data.accesses[access].low if access < data.tensors[tensor + 1].first_access else horizon
        if state == CLEAN and visit.clean == SLOW:
            end = data.steps[last].down
            _add_memory(priced, units, end if priced.is_sliced else visit.in_start, last)
            _add_traffic(data, priced, row.copy_in, visit.in_start, end)
            state = SLOW
        if state in (CLEAN, DIRTY):
            _add_memory(priced, units, first, last)
            if state == CLEAN and visit.clean == DIRTY:
                _add_traffic(data, priced, row.copy_out, data.steps[visit.version].up, data.steps[last].down)
                state = DIRTY
        elif state == SLOW and visit.slow == DIRTY:
            _add_memory(priced, units, first, _left_after(data, priced, first, visit.version, visit.out_end))
            _add_traffic(data, priced, row.copy_out, data.steps[visit.version].up, visit.out_end)
            state = DIRTY
        elif state == SLOW:
            state = visit.slow
        else:
            state = visit.lost
        if access == row.first_access:
            return
        here = data.accesses[access - 1]
        if state in (CLEAN, DIRTY):
            _add_memory(priced, units, here.low, here.high)
            for place in range(here.first_use, data.accesses[access].first_use):
                use, step = data.access_uses[place].use, data.access_uses[place].step
                if state == DIRTY or row.uniform or priced.earned[use] > 0:
                    first_use = data.steps[step].first_use
                    length = data.steps[step + 1].first_use - first_use + 1
                    for piece in range(data.steps[step].first_term, data.steps[step + 1].first_term, length):
                        priced.latency[piece] += priced.gain[piece + 1 + use - first_use]
        if here.writes:
            before = priced.visits[access - 1 - row.first_access]
            state = before.fast_write if state == DIRTY else before.slow_write


# -------------------------------------------------------------------------------------------------------------------- steps


@njit_inner
def _step_coordinate(priced: Priced, at: int, value: float, slope: float, most: float) -> float:
    """Returns a price or share after a step along its subgradient ``slope``, clipped to ``[0, most]``.

    ``value`` is its value before the step, and ``at`` its index in :attr:`Priced.squares`.
    """
    if (value <= 0.0 and slope <= 0.0) or (value >= most and slope >= 0.0) or slope == 0.0:
        return value
    priced.squares[at] += slope * slope
    stepped = value + STEP * slope / math.sqrt(priced.squares[at])
    return min(most, max(0.0, stepped))


@njit_once
def _take_step(data: Data, priced: Priced, is_first: bool) -> None:
    """Change all prices and shares by a step along the subgradient; the first one also sets the initial sums of squares."""
    horizon, channels = data.horizon, data.channels
    most = priced.most_channel / priced.unit
    for is_counting in range(1 if is_first else 0, -1, -1):
        used, memory, traffic, latencies, pieces = 0, 0.0, 0.0, 0.0, 0
        for step in range(horizon):
            row = data.steps[step]
            used += priced.change[step]
            floor, length = row.floor // row.weight, data.steps[step + 1].first_use - row.first_use + 1
            worth = row.weight * (1.0 - channels * priced.channel[step]) if data.stalls_allowed else float(row.weight)
            passed, shares = float(floor), 0.0
            for piece in range(row.first_term, data.steps[step + 1].first_term, length):
                share, more = priced.share[piece], float(priced.latency[piece] - floor)
                if share >= 0.0:
                    passed += share * more
                    if is_counting:
                        latencies, pieces = latencies + (worth * more) ** 2, pieces + 1
                    else:
                        at = 2 * horizon + piece
                        priced.share[piece] = _step_coordinate(priced, at, share, worth * more, 1.0)
                        shares += priced.share[piece]
            for piece in range(row.first_term, data.steps[step + 1].first_term, length):
                if shares > 1.0 and priced.share[piece] > 0.0:
                    priced.share[piece] /= shares
            slope = priced.traffic[step] - channels * (row.weight * passed if data.stalls_allowed else float(row.floor))
            rise = priced.rate * (used - priced.room)
            if is_counting:
                memory, traffic = memory + rise**2, traffic + slope**2
            else:
                priced.memory[step] = _step_coordinate(priced, step, priced.memory[step], rise, np.inf)
                priced.channel[step] = _step_coordinate(priced, horizon + step, priced.channel[step], slope, most)
        if is_counting:
            for at in range(len(priced.squares)):
                total = memory if at < horizon else traffic if at < 2 * horizon else latencies
                priced.squares[at] = FIRST_SQUARES * total / (horizon if at < 2 * horizon else max(1, pieces))


@njit
def ascend(data: Data, priced: Priced, steps: int, is_first: bool) -> int:
    """Make a number of subgradient steps; returns the best bound (ps) among those before each step.

    ``is_first`` says that these are the first steps of all. They also set the first prices.
    """
    best = -NEVER
    for number in range(steps):
        total = _price_steps(data, priced)
        for tensor in range(len(data.tensors) - 1):
            row, following = data.tensors[tensor], data.tensors[tensor + 1]
            if row.bytes // priced.alignment <= priced.room:
                earns = False
                for place in range(data.accesses[row.first_access].first_use, data.accesses[following.first_access].first_use):
                    earns |= priced.earned[data.access_uses[place].use] > 0
                if earns:
                    cost, state = _cheapest_path(data, priced, tensor)
                    # A path on which all accesses are slow costs nothing and is always possible, so no tensor adds a positive
                    # cost.
                    if cost < 0:
                        total += cost
                        _add_usage(data, priced, tensor, state)
        best = max(best, -(-total // priced.unit))
        if is_first and number == 0:
            # Without prices, every tensor stays in fast memory. Memory gets a first price at steps at which this takes more
            # than half of it.
            used = 0
            for step in range(data.horizon):
                used += priced.change[step]
                priced.memory[step] = FIRST_PRICE if 2 * used > priced.room else 0.0
        else:
            _take_step(data, priced, is_first and number == 1)
    return best
