"""Searches on random problems, and everything that must hold of a state between two calls."""

from __future__ import annotations

import random

from stowplan.hardware.simulator import play
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import arrays, heuristics, space
from stowplan.portfolio.memory_mapping.convert import export_plan
from stowplan.portfolio.memory_mapping.machine import new_state
from stowplan.portfolio.memory_mapping.search import Search, new_search, ruin_and_recreate
from stowplan.portfolio.memory_mapping.state import COPIED, PRELOADED, State
from tests.models.memory_mapping.cases import random_problem


def wide_problem(seed: int) -> Problem:
    """More tensors and steps than by default, so that queues, timelines and memory are long enough to go wrong."""
    rng = random.Random(seed)
    return random_problem(rng, steps=rng.randint(8, 40), tensors=rng.randint(5, 16))


def built_states(problem: Problem) -> list[State]:
    """What every constructive heuristic builds."""
    data = arrays.build(problem)
    return [heuristics.run(steps, lambda: False)[0] for _, steps in heuristics.constructive(data)]


def searched(data: arrays.Data, *, seed: int, rounds: int, allowed: float) -> tuple[State, Search]:
    """A search from the all-slow plan."""
    state = new_state(data)
    search = new_search(data, state, heuristics.densities(data, 1), seed)
    if len(data.access_uses):
        ruin_and_recreate(data, state, search, rounds, allowed)
    return state, search


def assert_sound(problem: Problem, data: arrays.Data, state: State) -> None:
    """The state is consistent and stands for a valid plan with its objective and timeline."""
    used = {index: slot for index, slot in enumerate(state.slots) if slot.tensor >= 0}
    totals = state.totals[0]
    assert totals.placed == len(used)
    assert totals.preloads == sum(slot.source == PRELOADED for slot in used.values())
    assert_lists(state, set(used))
    assert_map(data, state, set(used))
    copies = assert_queues(data, state)
    assert sorted(copies) == sorted(
        [2 * index for index, slot in used.items() if slot.source == COPIED]
        + [2 * index + 1 for index, slot in used.items() if slot.out_start >= 0]
    )
    plan = export_plan(problem, data, state)
    assert plan.fast_uses == tuple(use for use, fast in enumerate(state.fast) if fast)
    found = verify(problem, plan)
    assert found.ok, found.violations[:3]
    assert found.objective == totals.total == plan.objective
    assert_timeline(problem, data, state, copies)


def assert_lists(state: State, used: set[int]) -> None:
    """Every slot is either in the list of its tensor or in the list of free ones."""
    listed = []
    for tensor, first in enumerate(state.first_slot):
        index = first
        while index >= 0:
            assert state.slots[index].tensor == tensor
            listed.append(int(index))
            index = state.slots[index].next
    assert sorted(listed) == sorted(used)
    free = state.totals[0].free
    while free >= 0:
        listed.append(int(free))
        free = state.slots[free].next
    assert sorted(listed) == list(range(len(state.slots)))


def assert_map(data: arrays.Data, state: State, used: set[int]) -> None:
    """The map of memory is sorted and agrees with the slots; residencies do not overlap."""
    order = [int(state.order[position]) for position in range(state.totals[0].placed)]
    assert set(order) == used
    rows = [state.slots[index] for index in order]
    for position, row in enumerate(rows):
        assert row.bytes == data.tensors[row.tensor].bytes
        assert row.offset + row.bytes <= data.capacity
        for other in rows[position + 1 :]:
            assert row.offset <= other.offset
            assert row.offset + row.bytes <= other.offset or row.end <= other.start or other.end <= row.start
    for window, window_counts in enumerate(state.window_counts):
        low, high = window * space.STRIDE, window * space.STRIDE + space.WIDTH
        near = {index for index in order if state.slots[index].start < high and state.slots[index].end > low}
        listed = [
            int(index) for index in state.nearby[window * space.ROOM : window * space.ROOM + min(window_counts, space.ROOM)]
        ]
        assert window_counts == len(near)
        if window_counts <= space.ROOM:
            assert set(listed) == near
            offsets = [state.slots[index].offset for index in listed]
            assert offsets == sorted(offsets)


def assert_queues(data: arrays.Data, state: State) -> list[int]:
    """Queues are linked both ways and sorted by deadline; returns all copies, as they are queued."""
    copies = []
    for boundary in range(data.horizon + 1):
        moment = state.moments[boundary]
        before, copy = -1, moment.head
        while copy >= 0:
            row, slot = state.copies[copy], state.slots[copy >> 1]
            assert row.before == before
            assert (slot.out_start if copy & 1 else slot.start) == boundary
            assert row.due == (slot.out_end if copy & 1 else data.accesses[slot.first].low)
            assert before < 0 or state.copies[before].due <= row.due
            copies.append(int(copy))
            before, copy = copy, row.after
        assert moment.tail == before
        assert (moment.due, moment.dirty) == (0, 0)
    return copies


def assert_timeline(problem: Problem, data: arrays.Data, state: State, copies: list[int]) -> None:
    """Replaying in part has led to what playing everything does."""
    plan = export_plan(problem, data, state)
    moments = [state.moments[boundary] for boundary in range(data.horizon + 1)]
    durations = [int(moment.duration) for moment in moments[:-1]]
    floors = [step.weight * step.floor_ps for step in problem.steps]
    timeline = play(problem, plan, durations if data.stalls_allowed else floors)
    assert sum(durations) == state.totals[0].latency
    assert [int(began) for began in state.began] == [*timeline.step_start_ps, timeline.total_ps][: len(moments)]
    assert [moment.stalled for moment in moments[:-1]] == timeline.step_wait_ps[: data.horizon]
    assert sum(moment.stalled for moment in moments) == timeline.stall_ps == state.totals[0].stalled
    served = {each.copy: (each.begin_ps, each.end_ps) for each in timeline.transfers}
    for number, copy in enumerate(copies):
        slot, row = state.slots[copy >> 1], state.copies[copy]
        began = state.began[slot.out_start if copy & 1 else slot.start]
        assert (began + row.begin, began + row.end) == served[number]
