"""What the constructive heuristics are made of, compiled."""

from __future__ import annotations

from numpy import float64
from numpy.typing import NDArray

from stowplan.compiled import njit_once, njit_outer
from stowplan.portfolio.memory_mapping.arrays import Data, Ints
from stowplan.portfolio.memory_mapping.engine import access_gain, joint_gain, settle, take_back
from stowplan.portfolio.memory_mapping.insert import COPY, DEFINE, EAGER, insert_best, insert_tensor
from stowplan.portfolio.memory_mapping.space import BEST_FIT, FIRST_FIT, clear, find_offset, place
from stowplan.portfolio.memory_mapping.state import ENTER, STAY, State
from stowplan.portfolio.memory_mapping.timeline import replay

Floats = NDArray[float64]


@njit_outer
def measure(data: Data, state: State, gains: Floats, lifetimes: Floats) -> None:
    """Fill two columns of [N]: what each tensor's accesses would save one by one, and the time from its first to its last (ps).

    Both are of the present state, in which the tensors have no residencies. The gain is 0 for a tensor that can have none. In
    a table a use may save something only beside others: half of that counts, if it is more.
    """
    for tensor in range(len(gains)):
        first, last = data.tensors[tensor].first_access, data.tensors[tensor + 1].first_access
        lifetimes[tensor] = 1.0
        if first == last or data.tensors[tensor].bytes > data.capacity:
            continue
        for access in range(first, last):
            gains[tensor] += max(0, access_gain(data, state, access), joint_gain(data, access) // 2)
        begin = state.began[data.accesses[first].low]
        lifetimes[tensor] = max(1.0, float(state.began[data.accesses[last - 1].high] - begin))


@njit_outer
def construct(data: Data, state: State, order: Ints, start: int, count: int, best: bool, policy: int, thorough: bool) -> None:
    """Insert the tensors ``order[start:start + count]``: each in its best way, or in the manner of production compilers.

    In the first case ``policy`` says which of the places that are free is taken, and ``thorough`` whether ways are tried that
    are rarely the best, stalls among them.
    """
    for position in range(start, min(start + count, len(order))):
        if state.first_slot[order[position]] < 0:
            if best:
                insert_best(data, state, order[position], policy, thorough, 0, 0)
            else:
                _insert_first(data, state, order[position])


@njit_once
def _insert_first(data: Data, state: State, tensor: int) -> None:
    """Insert a tensor in the first way that saves anything.

    Written fast if it fits and copied out at once where slow memory needs it; else copied in before each use, at the latest
    time that hides the copy; best fit.
    """
    base = state.totals[0].total
    state.totals[0].insertions += 1
    for mode in (DEFINE | COPY | EAGER, COPY):
        if insert_tensor(data, state, tensor, mode, BEST_FIT, 0):
            if replay(data, state) < base:
                settle(state, tensor)
                return
            take_back(data, state, tensor)
    replay(data, state)


@njit_outer
def repack(data: Data, state: State, order: Ints, old: Ints) -> bool:
    """Give every residency a new offset, first fit, slots in this order; False, and nothing changed, where it cannot be.

    ``old`` is as long as ``order``, for the offsets there were.
    """
    for position in range(len(order)):
        old[position] = state.slots[order[position]].offset
    clear(state)
    for position in range(len(order)):
        slot = state.slots[order[position]]
        slot.offset = find_offset(data, state, slot.start, slot.end, data.tensors[slot.tensor].bytes, FIRST_FIT)
        if slot.offset < 0:
            clear(state)
            for again in range(len(order)):
                state.slots[order[again]].offset = old[again]
                place(state, order[again])
            return False
        place(state, order[position])
    return True


@njit_outer
def follow(data: Data, state: State, fast: Floats, keep: Floats, sure: Floats, least: float, trust: float) -> None:
    """Permit what a hint says: a tensor enters where it is fast to at least ``least``, and stays where it is kept to that.

    ``fast``, ``keep`` and ``sure`` are of the accesses of :mod:`stowplan.models.memory_mapping.accesses`: of those that the
    tables have as one, the first says whether it enters and the last whether it stays. Where ``sure`` is less than ``trust``
    everything is permitted.
    """
    number = -1
    for access in range(len(state.permits)):
        first, last = data.accesses[access].first_use, data.accesses[access + 1].first_use
        state.permits[access] = 0
        for position in range(first, last):
            if position > first and data.access_uses[position].step == data.access_uses[position - 1].step:
                continue
            number += 1
            doubts = sure[number] < trust
            if position == first and (doubts or fast[number] >= least):
                state.permits[access] |= ENTER
            state.permits[access] &= ENTER
            if doubts or keep[number] >= least:
                state.permits[access] |= STAY


@njit_outer
def permitted_gains(data: Data, state: State, gains: Floats) -> None:
    """Fill [N]: what the accesses at which a tensor may enter, or to which it may stay, would save one by one (ps).

    The tensors have no residencies in the present state.
    """
    for tensor in range(len(gains)):
        first, last = data.tensors[tensor].first_access, data.tensors[tensor + 1].first_access
        gains[tensor] = 0.0
        stays = False
        for access in range(first, last):
            stays = (stays and state.permits[access - 1] & STAY != 0) or state.permits[access] & ENTER != 0
            if stays:
                gains[tensor] += max(0, access_gain(data, state, access), joint_gain(data, access) // 2)


@njit_outer
def lowest_places(data: Data, fast: Floats, place: Floats, sure: Floats, trust: float, lowest: Floats) -> None:
    """Lower [N] to the least place that a hint has for each tensor, of those of its accesses that it has in fast memory.

    The other arguments are as for :func:`follow`.
    """
    number = -1
    for tensor in range(len(lowest)):
        first = data.accesses[data.tensors[tensor].first_access].first_use
        last = data.accesses[data.tensors[tensor + 1].first_access].first_use
        for position in range(first, last):
            if position > first and data.access_uses[position].step == data.access_uses[position - 1].step:
                continue
            number += 1
            if sure[number] >= trust and fast[number] >= 0.5:
                lowest[tensor] = min(lowest[tensor], place[number])
