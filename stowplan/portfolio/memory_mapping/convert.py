"""Converts between plans and the state of the compiled heuristics (:mod:`stowplan.portfolio.memory_mapping.state`).

A *use* is the read or write of a tensor by a step, and an *access* is all uses of a tensor by one step. A *boundary* is the
moment before a step or after the last one. A *residency* is the stay of a tensor in fast memory from one boundary to another;
its row in a table of the state is a *slot*. The *timeline* of a state is the times at which steps begin. A copy is queued at
the boundary from which on it may begin, and its *deadline* is the boundary that waits for its end. A *sliced prefetch* is a
copy to fast memory that is made in several parts. The functions raise no errors.
"""

from __future__ import annotations

import numpy as np

from stowplan.compiled import filled, plain, values
from stowplan.models.memory_mapping.copy_engine import with_whole_copies
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping.arrays import Data
from stowplan.portfolio.memory_mapping.machine import new_state, restart
from stowplan.portfolio.memory_mapping.search import Search
from stowplan.portfolio.memory_mapping.state import COPIED, DEFINED, PRELOADED, SlotRow, State


def export_plan(problem: Problem, data: Data, state: State) -> Plan:
    """The plan that a state represents. The timeline of the state must be up to date."""
    rows = plain(SlotRow, state.slots, state.order[: state.totals[0].placed])
    return _plan(problem, data, rows, int(state.totals[0].total))


def export_best(problem: Problem, data: Data, search: Search) -> Plan:
    """The best plan that a search has found."""
    status = search.status[0]
    return _plan(problem, data, plain(SlotRow, search.best, np.arange(status.best_count)), int(status.best))


def _plan(problem: Problem, data: Data, rows: list[SlotRow], objective: int) -> Plan:
    """The plan with the residencies ``rows``, the copies that they have, and this objective (ps)."""
    low, first_use, use = values(data.accesses, "low"), values(data.accesses, "first_use"), values(data.access_uses, "use")
    residencies = [Residency(row.tensor, row.start, row.end, row.offset, row.source == PRELOADED) for row in rows]
    copies = [Copy(row.tensor, "out", row.out_start, row.out_end) for row in rows if row.out_start >= 0]
    copies += [Copy(row.tensor, "in", row.start, low[row.first]) for row in rows if row.source == COPIED]
    uses = [number for row in rows for number in use[first_use[row.first] : first_use[row.last + 1]]]
    between = problem.evictions == "between_steps"

    def place(copy: Copy) -> tuple[int, bool, int, int, bool]:
        # This is the order of a state's queues: by boundary, then by deadline, then by tensor, with copies out before copies
        # in. A copy for which its own boundary waits may have any position among those of the boundary. It comes first if it
        # makes space between two steps, so that the tensor that leaves is copied before the one that takes its place.
        waits = between and copy.direction == "out" and copy.start == copy.end
        return copy.start, not waits, copy.end, copy.tensor, copy.direction == "in"

    return Plan(
        problem=problem.digest,
        objective=objective,
        residencies=tuple(sorted(residencies, key=lambda residency: (residency.start, residency.offset, residency.tensor))),
        copies=tuple(sorted(copies, key=place)),
        fast_uses=tuple(sorted(uses)),
        program=problem.name,
        target=problem.target,
    )


def import_plan(problem: Problem, data: Data, plan: Plan) -> State:
    """The state that represents a valid plan, as far as a state can.

    The plan changes in five ways. Uses that it serves from slow memory during a residency become fast. Copies that are queued
    at one boundary are sorted by their deadlines. Of several copies out of a residency only the last remains. A residency that
    serves no access is dropped. Sliced prefetches become whole copies.
    """
    plan = with_whole_copies(problem, plan)
    copy_in_ends = {(copy.tensor, copy.start): copy.end for copy in plan.copies if copy.direction == "in"}
    copies_out: dict[int, list[Copy]] = {}
    for copy in plan.copies:
        if copy.direction == "out":
            copies_out.setdefault(copy.tensor, []).append(copy)
    rows: list[SlotRow] = []
    first_access, size = values(data.tensors, "first_access"), values(data.tensors, "bytes")
    low, high = values(data.accesses, "low"), values(data.accesses, "high")
    for residency in plan.residencies:
        tensor = residency.tensor
        ready = copy_in_ends.get((tensor, residency.start), residency.start)
        accesses = [
            access
            for access in range(first_access[tensor], first_access[tensor + 1])
            if ready <= low[access] and high[access] <= residency.end
        ]
        if not accesses:
            continue
        row = SlotRow()
        row.tensor, row.start, row.end, row.offset = tensor, residency.start, residency.end, residency.offset
        row.bytes = size[tensor]
        row.first, row.last, row.next = accesses[0], accesses[-1], -1
        row.source = PRELOADED if residency.preloaded else COPIED if (tensor, residency.start) in copy_in_ends else DEFINED
        row.out_start = row.out_end = -1
        for copy in copies_out.get(tensor, []):
            if residency.start < copy.start and copy.end <= residency.end:
                row.out_start, row.out_end = copy.start, copy.end
        rows.append(row)
    state = new_state(data)
    columns = {name: [getattr(row, name) for row in rows] for name in SlotRow.__annotations__}
    restart(data, state, filled(SlotRow, len(rows), columns), len(rows))
    return state
