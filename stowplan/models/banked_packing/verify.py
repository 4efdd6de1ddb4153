"""The verifier of banked packing: checks all rules of a plan and recomputes its cost, by a sweep over time for each bank.

It is written from docs/reference/banked-packing.md alone, uses no solver, and shares no code with models, bounds or heuristics.
With the verifier of packing it shares only the sweep.
"""

from __future__ import annotations

from typing import Literal

from stowplan import verification
from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.overlaps import MOST_OVERLAPS, Box, overlaps

#: The rules that a plan can break; docs/reference/banked-packing.md explains each of them.
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


Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


def verify(problem: Problem, plan: Plan) -> Verification:
    """Check a plan against all rules of banked packing.

    Parameters
    ----------
    plan
        Any plan that could be decoded. If its content makes no sense, that is a violation, not an exception.

    Returns
    -------
    Verification
        All violations found, but at most :data:`~stowplan.models.overlaps.MOST_OVERLAPS` overlaps, and the recomputed cost. The
        cost is None if the number of banks or offsets is wrong, or if a bank does not exist.
    """
    violations = verification.of_problem(problem, plan)
    if not len(plan.banks) == len(plan.offsets) == len(problem.buffers):
        counts = f"{len(plan.banks)} banks and {len(plan.offsets)} offsets for {len(problem.buffers)} buffers"
        return Verification((*violations, Violation("wrong_count", counts)), None)
    outside = [number for number, bank in enumerate(plan.banks) if not 0 <= bank < len(problem.banks)]
    if outside:
        message = f"buffer {problem.buffers[outside[0]].id} is in bank {plan.banks[outside[0]]} of {len(problem.banks)}"
        return Verification((*violations, Violation("no_such_bank", message, {"buffers": tuple(outside)})), None)
    cost = 0
    boxes: list[list[Box]] = [[] for _ in problem.banks]
    for number, buffer in enumerate(problem.buffers):
        bank, offset = problem.banks[plan.banks[number]], plan.offsets[number]
        units = (buffer.size + bank.alignment - 1) // bank.alignment
        end = offset + units * bank.alignment
        cost += buffer.size * buffer.uses * bank.cost
        if buffer.banks and bank.name not in buffer.banks:
            message = f"buffer {buffer.id} is in {bank.name}, not in {' or '.join(buffer.banks)}"
            violations.append(Violation("forbidden_bank", message, {"buffers": (number,)}))
        for unit in {buffer.alignment, bank.alignment}:
            if offset % unit:
                message = f"buffer {buffer.id} is at {offset} of {bank.name}, not a multiple of {unit}"
                violations.append(Violation("misaligned", message, {"buffers": (number,)}))
        if offset < bank.reserved:
            message = f"buffer {buffer.id} is at {offset} of {bank.name}, whose first {bank.reserved} bytes are reserved"
            violations.append(Violation("reserved", message, {"buffers": (number,)}))
        if end > bank.capacity:
            message = f"buffer {buffer.id} ends at {end} of {bank.name}, beyond its capacity of {bank.capacity}"
            violations.append(Violation("over_capacity", message, {"buffers": (number,)}))
        boxes[plan.banks[number]].append((buffer.lower, buffer.upper, offset, end, number))
    if cost != plan.objective:
        violations.append(Violation("wrong_objective", f"the plan says {plan.objective}, its cost is {cost}"))
    remaining = MOST_OVERLAPS
    for inside in boxes:
        pairs = overlaps(inside, remaining)
        remaining -= len(pairs)
        for pair, moment in pairs.items():
            one, two = (problem.buffers[number].id for number in pair)
            violations.append(Violation("overlap", f"buffers {one} and {two} share bytes at time {moment}", {"buffers": pair}))
    return Verification(tuple(violations), cost)
