"""Says whether a banked packing is valid, and what it costs: a sweep over time for each bank, without any solver.

Written from docs/reference/banked-packing.md alone; it shares no code with models, bounds or heuristics, and none with packing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stowplan.models import outcome
from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem

Code = Literal[
    "wrong_problem",
    "wrong_count",
    "wrong_objective",
    "no_such_bank",
    "forbidden_bank",
    "misaligned",
    "reserved",
    "over_capacity",
    "overlap",
]

#: Overlaps listed at most.
MOST_OVERLAPS = 10_000


@dataclass(frozen=True)
class Violation(outcome.Violation[Code]):
    """One broken rule."""

    buffers: tuple[int, ...] = ()
    """Numbers of the buffers concerned."""


@dataclass(frozen=True)
class Verification(outcome.Verification[Violation]):
    """What was found."""

    cost: int | None
    """Recomputed objective; None where the plan has not one bank of the problem's and one offset for each buffer."""


def verify(problem: Problem, plan: Plan) -> Verification:
    """All rules a plan breaks, and what it costs.

    Parameters
    ----------
    plan
        Any that decodes; what is malformed is a violation, not an error.

    Returns
    -------
    Verification
        Violations, and the recomputed objective.
    """
    found: list[Violation] = []
    if plan.problem != problem.digest:
        found.append(Violation("wrong_problem", f"the plan is for problem {plan.problem[:12]}, not {problem.digest[:12]}"))
    if not len(plan.banks) == len(plan.offsets) == len(problem.buffers):
        counts = f"{len(plan.banks)} banks and {len(plan.offsets)} offsets for {len(problem.buffers)} buffers"
        return Verification((*found, Violation("wrong_count", counts)), None)
    strays = [number for number, bank in enumerate(plan.banks) if not 0 <= bank < len(problem.banks)]
    if strays:
        message = f"buffer {problem.buffers[strays[0]].id} is in bank {plan.banks[strays[0]]} of {len(problem.banks)}"
        return Verification((*found, Violation("no_such_bank", message, tuple(strays))), None)
    cost = 0
    # Of each bank: (moment, 1 for a start and 0 for an end, buffer); an end comes first, for lives are half-open.
    events: list[list[tuple[int, int, int]]] = [[] for _ in problem.banks]
    ends: list[int] = []
    for number, buffer in enumerate(problem.buffers):
        bank, offset = problem.banks[plan.banks[number]], plan.offsets[number]
        units = (buffer.size + bank.alignment - 1) // bank.alignment
        ends.append(offset + units * bank.alignment)
        cost += buffer.size * buffer.uses * bank.cost
        if buffer.banks and bank.name not in buffer.banks:
            message = f"buffer {buffer.id} is in {bank.name}, not in {' or '.join(buffer.banks)}"
            found.append(Violation("forbidden_bank", message, (number,)))
        for unit in {buffer.alignment, bank.alignment}:
            if offset % unit:
                message = f"buffer {buffer.id} is at {offset} of {bank.name}, not a multiple of {unit}"
                found.append(Violation("misaligned", message, (number,)))
        if offset < bank.reserved:
            message = f"buffer {buffer.id} is at {offset} of {bank.name}, whose first {bank.reserved} bytes are reserved"
            found.append(Violation("reserved", message, (number,)))
        if ends[number] > bank.capacity:
            message = f"buffer {buffer.id} ends at {ends[number]} of {bank.name}, beyond its capacity of {bank.capacity}"
            found.append(Violation("over_capacity", message, (number,)))
        if buffer.size:
            events[plan.banks[number]] += [(buffer.lower, 1, number), (buffer.upper, 0, number)]
    if cost != plan.objective:
        found.append(Violation("wrong_objective", f"the plan says {plan.objective}, its cost is {cost}"))
    overlaps = 0
    for at_bank in events:
        live: set[int] = set()
        for moment, starts, number in sorted(at_bank):
            if not starts:
                live.remove(number)
                continue
            for other in sorted(live):
                if plan.offsets[other] < ends[number] and plan.offsets[number] < ends[other] and overlaps < MOST_OVERLAPS:
                    overlaps += 1
                    one, two = problem.buffers[other].id, problem.buffers[number].id
                    message = f"buffers {one} and {two} share bytes at time {moment}"
                    found.append(Violation("overlap", message, (min(other, number), max(other, number))))
            live.add(number)
    return Verification(tuple(found), cost)
