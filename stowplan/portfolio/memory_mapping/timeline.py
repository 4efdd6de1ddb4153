"""When things happen in a partial plan, compiled: the copy queue is played, from the first change on.

The rules are in ``docs/reference/memory-mapping.md``, "Copy engine". Where stalls are forbidden the queue is played with floor
latencies, and a plan that stalls costs :data:`~stowplan.portfolio.memory_mapping.state.NEVER`.

Replaying everything after each change would take most of the time of a search. At a boundary where all channels are idle,
nothing that came before matters but the moment. So a replay begins at the last such boundary before the first change, and
once it comes, past a change, to a boundary that was idle before and is so again, the old timeline holds to the next change,
moved by a constant. Copies keep their times relative to the boundary at which they are queued, so that only the
boundaries move.
"""

from __future__ import annotations

from stowplan.compiled import njit_inner, njit_once
from stowplan.portfolio.memory_mapping.arrays import Data
from stowplan.portfolio.memory_mapping.state import NEVER, State


@njit_inner
def step_time(data: Data, state: State, step: int) -> int:
    """How long a step lasts when the queue is played (ps)."""
    return state.moments[step].duration if data.stalls_allowed else data.steps[step].floor


@njit_inner
def replay(data: Data, state: State) -> int:
    """Bring the timeline up to date; returns the objective, or NEVER for a forbidden stall."""
    totals = state.totals[0]
    boundary = totals.dirty_from
    totals.reach = -1
    while boundary <= data.horizon:
        boundary = _play(data, state, boundary)
        kept = boundary
        while boundary <= min(totals.dirty_to, data.horizon) and not state.moments[boundary].dirty:
            boundary += 1
        if boundary > totals.dirty_to:
            boundary = data.horizon + 1
        for later in range(kept, min(boundary, totals.reach + 1)):
            state.moments[later].due = 0
        if totals.shift != 0:
            for later in range(kept, boundary):
                state.began[later] += totals.shift
    totals.dirty_from = data.horizon + 1
    totals.dirty_to = -1
    if data.stalls_allowed:
        totals.total = state.began[data.horizon]
    else:
        totals.total = totals.latency if totals.stalled == 0 else NEVER
    return totals.total


@njit_once
def _play(data: Data, state: State, changed: int) -> int:
    """Play past a dirty boundary until the old timeline holds again; returns the boundary from which it does."""
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
            # Copies queued and waited for at once: their times count from when the waiting is over.
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
    """Serve the copies queued at a boundary."""
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


@njit_inner
def first_at(data: Data, state: State, moment: int) -> int:
    """First boundary that begins at a moment of the last replay or later; T + 1 where there is none."""
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
    """Latest begin (ps) of an idle time of the channel between two boundaries; -1 where there is none.

    ``skip`` leaves out that many idle times that would do, to try earlier ones.
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
    """Earliest begin (ps), not before a boundary, of an idle time of the channel; there always is one."""
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
