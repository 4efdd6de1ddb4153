"""The timeline of a partial plan, compiled: how long steps last, which copies are queued, and when they run.

A *boundary* is the moment before a step or after the last one. A *use* is the read or write of a tensor by a step, and an
*access* is all uses of a tensor by one step; it is *fast* if it is served from fast memory. A copy is *queued* at the boundary
from which on it may begin, and its *deadline* is the boundary that waits for its end. :mod:`.state` describes the tables. A
*channel* makes one copy after the other. A *stall* is time that the program waits for a copy. Copies that are queued at one
boundary are served in the order of their deadlines, which is the best order for a single channel. A state is therefore the same
whatever the order in which its residencies, the stays of tensors in fast memory, were opened. The functions check no arguments
and raise no errors.

The rules are in ``docs/reference/memory-mapping.md``, "Copy engine". If stalls are forbidden, the queue is simulated with the
least latency that each step can have (its *floor*), and a plan that stalls costs
:data:`~stowplan.portfolio.memory_mapping.state.NEVER`.

Simulating the whole program after each change would take most of the time of a search. At a boundary where all channels are
idle, the past matters only by the time that has passed. A *replay*, which computes the timeline anew, therefore begins at the
last such boundary before the first change. After a change, the replay may reach a boundary that was idle in the old timeline
and is idle again. From there, the old timeline holds up to the next change, shifted by a constant. Copies store their times
relative to their boundary, so that only the boundaries are shifted.
"""

from __future__ import annotations

from stowplan.compiled import njit_inner, njit_once
from stowplan.portfolio.memory_mapping.arrays import Data, Ints
from stowplan.portfolio.memory_mapping.state import NEVER, State

# ---------------------------------------------------------------------------------------------------------------------- steps


@njit_inner
def latency(data: Data, fast: Ints, step: int) -> int:
    """Latency of one run of a step (ps), if the uses with 1 in ``fast`` [U] are served from fast memory."""
    row, after = data.steps[step], data.steps[step + 1]
    if row.table >= 0:
        mask = 0
        for bit in range(row.table_uses):
            if fast[row.first_use + data.table[row.table_use + bit]]:
                mask |= 1 << bit
        return data.table[row.table + mask]  # type: ignore[no-any-return]
    worst = -NEVER
    term = row.first_term
    while term < after.first_term:
        value = data.terms[term].slow
        for use in range(row.first_use, after.first_use):
            term += 1
            if fast[use]:
                value += data.terms[term].fast
            else:
                value += data.terms[term].slow
        worst = max(worst, value)
        term += 1
    return worst


@njit_inner
def step_time(data: Data, state: State, step: int) -> int:
    """How long all runs of a step last in the simulation of the queue (ps): their latency, or if stalls are forbidden their
    floor."""
    return state.moments[step].duration if data.stalls_allowed else data.steps[step].floor


@njit_inner
def set_access(data: Data, state: State, access: int, value: int) -> None:
    """Serve all uses of an access from fast (``value`` 1) or slow (0) memory, and update the latencies of their steps."""
    for position in range(data.accesses[access].first_use, data.accesses[access + 1].first_use):
        state.fast[data.access_uses[position].use] = value
    last = -1
    for position in range(data.accesses[access].first_use, data.accesses[access + 1].first_use):
        step = data.access_uses[position].step
        if step == last:
            continue
        last = step
        moment = state.moments[step]
        change = data.steps[step].weight * latency(data, state.fast, step) - moment.duration
        if change != 0:
            moment.duration += change
            state.totals[0].latency += change
            if data.stalls_allowed:
                touch(state, step)


@njit_inner
def gain_alone(data: Data, state: State, access: int) -> int:
    """The time that would be saved if a slow access became fast and nothing else changed (ps, over all runs of its steps).

    It is negative if the steps would become slower.
    """
    begin, end = data.accesses[access].first_use, data.accesses[access + 1].first_use
    for position in range(begin, end):
        state.fast[data.access_uses[position].use] = 1
    gain = 0
    last = -1
    for position in range(begin, end):
        step = data.access_uses[position].step
        if step != last:
            gain += state.moments[step].duration - data.steps[step].weight * latency(data, state.fast, step)
        last = step
    for position in range(begin, end):
        state.fast[data.access_uses[position].use] = 0
    return gain


@njit_inner
def gain_beside_others(data: Data, access: int) -> int:
    """The most that a fast access could save in steps with latency tables, over all choices for other uses (ps, all runs)."""
    begin, end = data.accesses[access].first_use, data.accesses[access + 1].first_use
    gain = 0
    last = -1
    for position in range(begin, end):
        step = data.access_uses[position].step
        row = data.steps[step]
        if step == last or row.table < 0:
            continue
        last = step
        subset = 0
        for bit in range(row.table_uses):
            for other in range(position, end):
                if data.access_uses[other].use == row.first_use + data.table[row.table_use + bit]:
                    subset |= 1 << bit
        best = 0
        for mask in range(1 << row.table_uses):
            if mask & subset == 0:
                best = max(best, data.table[row.table + mask] - data.table[row.table + (mask | subset)])
        gain += row.weight * best
    return gain


@njit_inner
def gain(data: Data, state: State, access: int) -> int:
    """Estimate of the time that a slow access would save if it were fast (ps), at least 0.

    Savings that depend on other uses, which would have to be fast as well, count by half.
    """
    return max(0, gain_alone(data, state, access), gain_beside_others(data, access) // 2)


# -------------------------------------------------------------------------------------------------------- the queue of copies


@njit_inner
def touch(state: State, boundary: int) -> None:
    """Mark a boundary and the step after it as changed, so that the next replay simulates them."""
    totals = state.totals[0]
    state.moments[boundary].dirty = 1
    totals.dirty_from = min(totals.dirty_from, boundary)
    totals.dirty_to = max(totals.dirty_to, boundary)


@njit_inner
def queue_copy(state: State, copy: int, boundary: int, due: int, length: int) -> None:
    """Insert a copy into the queue of a boundary: by its deadline, then by tensor, with copies out before copies in.

    ``copy`` is the number of the copy (:class:`.state.CopyRow`), ``due`` the boundary that waits for it, and ``length`` its
    duration (ps).
    """
    moment, row = state.moments[boundary], state.copies[copy]
    rank = 2 * state.slots[copy >> 1].tensor + 1 - (copy & 1)
    before = moment.tail
    while before >= 0:
        other = state.copies[before]
        if other.due < due or (other.due == due and 2 * state.slots[before >> 1].tensor + 1 - (before & 1) < rank):
            break
        before = other.before
    row.before = before
    row.after = moment.head if before < 0 else state.copies[before].after
    row.due = due
    row.length = length
    if before >= 0:
        state.copies[before].after = copy
    else:
        moment.head = copy
    if row.after >= 0:
        state.copies[row.after].before = copy
    else:
        moment.tail = copy
    touch(state, boundary)


@njit_inner
def unqueue_copy(state: State, copy: int, boundary: int) -> None:
    """Remove a copy from the queue of a boundary."""
    moment, row = state.moments[boundary], state.copies[copy]
    if row.before >= 0:
        state.copies[row.before].after = row.after
    else:
        moment.head = row.after
    if row.after >= 0:
        state.copies[row.after].before = row.before
    else:
        moment.tail = row.before
    touch(state, boundary)


# --------------------------------------------------------------------------------------------------------------------- replay


@njit_inner
def replay(data: Data, state: State) -> int:
    """Bring the timeline up to date; returns the objective (ps), or NEVER if the plan stalls and stalls are forbidden."""
    totals = state.totals[0]
    boundary = totals.dirty_from
    totals.reach = -1
    while boundary <= data.horizon:
        boundary = _simulate(data, state, boundary)
        unchanged = boundary
        while boundary <= min(totals.dirty_to, data.horizon) and not state.moments[boundary].dirty:
            boundary += 1
        if boundary > totals.dirty_to:
            boundary = data.horizon + 1
        for later in range(unchanged, min(boundary, totals.reach + 1)):
            state.moments[later].due = 0
        if totals.shift != 0:
            for later in range(unchanged, boundary):
                state.began[later] += totals.shift
    totals.dirty_from = data.horizon + 1
    totals.dirty_to = -1
    if data.stalls_allowed:
        totals.total = state.began[data.horizon]
    else:
        totals.total = totals.latency if totals.stalled == 0 else NEVER
    return totals.total


@njit_once
def _simulate(data: Data, state: State, changed: int) -> int:
    """Simulate from a dirty boundary until the old timeline holds again; returns the boundary from which on it holds.

    ``changed`` is the dirty boundary, one whose queue or step has changed since the last replay. The simulation begins at the
    last boundary up to it at which all channels were idle.
    """
    totals = state.totals[0]
    boundary = changed
    while not state.moments[boundary].idle:
        boundary -= 1
    now = 0
    if boundary > 0:
        now = state.began[boundary - 1] + step_time(data, state, boundary - 1)
    for channel in range(data.channels):
        state.free_at[channel] = now
    holds_again = False
    while boundary <= data.horizon and not holds_again:
        moment = state.moments[boundary]
        idle = 1
        for channel in range(data.channels):
            if state.free_at[channel] > now:
                idle = 0
        holds_again = idle == 1 and moment.idle == 1 and moment.dirty == 0 and boundary > changed
        moment.idle = idle
        arrived = now
        now = max(now, moment.due)
        _serve(data, state, boundary, now)
        if moment.due > now:
            # The boundary also waits for copies of its own. Their times are counted from the end of this wait.
            copy = moment.head
            while copy >= 0:
                row = state.copies[copy]
                row.begin -= moment.due - now
                row.end -= moment.due - now
                copy = row.after
            now = moment.due
        totals.stalled += now - arrived - moment.stalled
        totals.shift = now - state.began[boundary]
        moment.stalled = now - arrived
        state.began[boundary] = now
        moment.due = 0
        moment.dirty = 0
        if boundary < data.horizon:
            now += step_time(data, state, boundary)
        boundary += 1
    return boundary


@njit_once
def _serve(data: Data, state: State, boundary: int, now: int) -> None:
    """Start the copies that are queued at a boundary at time ``now`` (ps), each on the channel that is free first."""
    copy = state.moments[boundary].head
    while copy >= 0:
        row = state.copies[copy]
        channel = 0
        for other in range(1, data.channels):
            if state.free_at[other] < state.free_at[channel]:
                channel = other
        begin = max(now, state.free_at[channel])
        end = begin + row.length
        state.free_at[channel] = end
        row.begin = begin - now
        row.end = end - now
        waiting = state.moments[row.due]
        waiting.due = max(waiting.due, end)
        state.totals[0].reach = max(state.totals[0].reach, row.due)
        copy = row.after


# -------------------------------------------------------------------------------------------------- idle times of the channel


@njit_inner
def first_at(data: Data, state: State, moment: int) -> int:
    """First boundary that begins at time ``moment`` (ps) of the last replay or later; T + 1 if there is none (T is the number
    of steps)."""
    low, high = 0, data.horizon + 1
    while low < high:
        middle = (low + high) >> 1
        if state.began[middle] < moment:
            low = middle + 1
        else:
            high = middle
    return low


@njit_once
def latest_gap(state: State, valid: int, low: int, length: int, skip: int) -> int:
    """Latest time (ps) at which a copy may begin in an idle time of the channel that is long enough; -1 if there is none.

    The copy takes ``length`` ps, between the boundaries ``valid`` and ``low``. ``skip`` is the number of suitable idle times
    that are left out, from the latest on, to try earlier ones. The timeline must be up to date.
    """
    earliest = state.began[valid]
    end = state.began[low]
    boundary = low - 1
    while boundary >= 0:
        moment = state.moments[boundary]
        copy = moment.tail
        while copy >= 0:
            row = state.copies[copy]
            floor = max(earliest, state.began[boundary] + row.end)
            if end - floor >= length:
                if skip == 0:
                    return end - length  # type: ignore[no-any-return]
                skip -= 1
            end = min(end, state.began[boundary] + row.begin)
            if end - earliest < length:
                return -1
            copy = row.before
        if boundary <= valid and moment.idle:
            break
        boundary -= 1
    return end - length if end - earliest >= length and skip == 0 else -1


@njit_once
def earliest_gap(data: Data, state: State, written: int, length: int) -> int:
    """Earliest time (ps) at which a copy of ``length`` ps may begin in an idle time of the channel.

    The copy begins no earlier than the boundary ``written``. There is always such a time, perhaps after the end of the program.
    The timeline must be up to date.
    """
    begin = state.began[written]
    boundary = written
    while not state.moments[boundary].idle:
        boundary -= 1
    while boundary <= data.horizon:
        moment = state.moments[boundary]
        copy = moment.head
        if copy < 0 and state.began[boundary] >= begin + length:
            break
        while copy >= 0:
            row = state.copies[copy]
            if state.began[boundary] + row.begin - begin >= length:
                return begin  # type: ignore[no-any-return]
            begin = max(begin, state.began[boundary] + row.end)
            copy = row.after
        boundary += 1
    return begin  # type: ignore[no-any-return]
