"""Between plans and the state of the compiled heuristics."""

from __future__ import annotations

import msgspec

from stowplan.hardware.simulator import simulate
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping.arrays import ACCESS, HIGH, LOW, Data, Ints
from stowplan.portfolio.memory_mapping.engine import (
    AFTER,
    COPIED,
    DEFINED,
    END,
    FIRST,
    OFFSET,
    OUT_END,
    OUT_START,
    PLACED,
    PRELOADED,
    QUEUE_HEAD,
    SOURCE,
    START,
    TENSOR,
    TOTAL,
    State,
    extend_slot,
    new_state,
    open_slot,
    queue_copy,
    replay,
)


def finish_plan(problem: Problem, plan: Plan) -> Plan:
    """The same plan with its problem's digest and names, and the objective that the simulator gives it."""
    plan = msgspec.structs.replace(plan, problem=problem.digest, program=problem.name, target=problem.target)
    return msgspec.structs.replace(plan, objective_ps=simulate(problem, plan).total_ps)


def all_slow_plan(problem: Problem) -> Plan:
    """Everything in slow memory: valid for every problem."""
    return Plan(problem=problem.digest, objective_ps=problem.all_slow_ps, program=problem.name, target=problem.target)


def export_plan(problem: Problem, data: Data, state: State) -> Plan:
    """The plan that a state stands for."""
    rows = [state.slots[slot].tolist() for slot in sorted(state.order[: state.counts[PLACED]].tolist())]
    residencies = sorted(
        (Residency(row[TENSOR], row[START], row[END], row[OFFSET], row[SOURCE] == PRELOADED) for row in rows),
        key=lambda residency: (residency.start, residency.offset),
    )
    copies: list[Copy] = []
    for boundary in range(data.horizon + 1):
        number = int(state.boundaries[boundary, QUEUE_HEAD])
        while number >= 0:
            row = state.slots[number >> 1].tolist()
            if number & 1:
                copies.append(Copy(row[TENSOR], "out", row[OUT_START], row[OUT_END]))
            else:
                copies.append(Copy(row[TENSOR], "in", row[START], int(data.accesses[row[FIRST], LOW])))
            number = int(state.copies[number, AFTER])
    return Plan(
        problem=problem.digest,
        objective_ps=int(state.counts[TOTAL]),
        residencies=tuple(residencies),
        copies=tuple(copies),
        fast_uses=tuple(state.fast.nonzero()[0].tolist()),
        program=problem.name,
        target=problem.target,
    )


def import_plan(data: Data, plan: Plan) -> tuple[Ints, State]:
    """Buffer and state that stand for a valid plan, or for as much of it as a state can hold.

    Uses that a plan serves slow inside a residency become fast; a residency's copies out but the last are left out, and so is a
    residency in which nothing is used.
    """
    buffer, state = new_state(data)
    ins = {(copy.tensor, copy.start): copy.end for copy in plan.copies if copy.direction == "in"}
    outs: dict[tuple[int, int], tuple[int, int]] = {}
    slots: dict[tuple[int, int], int] = {}
    spans: dict[int, list[Residency]] = {}
    for residency in plan.residencies:
        spans.setdefault(residency.tensor, []).append(residency)
    for copy in plan.copies:
        if copy.direction == "out":
            for residency in spans.get(copy.tensor, []):
                if residency.start <= copy.start and copy.end <= residency.end:
                    outs[copy.tensor, residency.start] = (copy.start, copy.end)
    for residency in plan.residencies:
        tensor = residency.tensor
        ready = ins.get((tensor, residency.start), residency.start)
        accesses = [
            access
            for access in range(data.tensors[tensor, ACCESS], data.tensors[tensor + 1, ACCESS])
            if ready <= data.accesses[access, LOW] and data.accesses[access, HIGH] <= residency.end
        ]
        if not accesses:
            continue
        source = PRELOADED if residency.preloaded else COPIED if (tensor, residency.start) in ins else DEFINED
        # Copies are queued below, in the order of the plan.
        slot = open_slot(data, state, tensor, accesses[0], DEFINED, residency.start, residency.end, residency.offset)
        extend_slot(data, state, slot, accesses[-1], source)
        slots[tensor, residency.start] = slot
    for copy in plan.copies:
        if copy.direction == "in":
            slot = slots.get((copy.tensor, copy.start), -1)
            if slot >= 0:
                queue_copy(state, 2 * slot, copy.start)
        else:
            for (tensor, start), window in outs.items():
                if tensor == copy.tensor and window == (copy.start, copy.end) and (tensor, start) in slots:
                    slot = slots[tensor, start]
                    state.slots[slot, OUT_START], state.slots[slot, OUT_END] = window
                    queue_copy(state, 2 * slot + 1, copy.start)
                    break
    state.counts[TOTAL] = replay(data, state)
    return buffer, state
