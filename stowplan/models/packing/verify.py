"""The verifier of packing: checks all rules of a plan and recomputes its height, the highest address that it uses.

It checks each buffer, then sweeps over time to find overlaps, and uses no solver. It is written from docs/reference/packing.md
alone. It shares code with other verifiers, but none with solver models, bounds or heuristics.
"""

from __future__ import annotations

from typing import Literal

from stowplan import verification
from stowplan.models.overlaps import MOST_OVERLAPS, overlaps
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem

#: The rules that a plan can break. ``moved``: a buffer with a fixed offset has another one. ``wrong_parts``: parts or results
#: that the plan repeats differ from those of the problem.
Code = Literal[
    "wrong_problem",
    "wrong_count",
    "wrong_objective",
    "negative_offset",
    "misaligned",
    "moved",
    "over_capacity",
    "overlap",
    "wrong_parts",
]


Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


def verify(problem: Problem, plan: Plan) -> Verification:
    """Check a plan against all rules of packing.

    The objective that the plan states must equal the recomputed one, since people read it. If the plan repeats the problem's
    ``parts`` (the model's tensors that lie inside a buffer, such as views) or its ``results`` (the buffers and parts that the
    model returns), they must be the same.

    Parameters
    ----------
    plan
        Any plan that could be decoded. If its content makes no sense, that is a violation, not an exception.

    Returns
    -------
    Verification
        All violations found, and the objective: the height in bytes, or the sum of the reuse penalties if the problem has any.
        The objective is None if the number of offsets is wrong. The list of overlaps is cut off after about
        :data:`~stowplan.models.overlaps.MOST_OVERLAPS` pairs.
    """
    violations = verification.of_problem(problem, plan)
    if len(plan.offsets) != len(problem.buffers):
        violations.append(Violation("wrong_count", f"{len(plan.offsets)} offsets for {len(problem.buffers)} buffers"))
        return Verification(tuple(violations), None)
    if any(stated and stated != right for stated, right in ((plan.parts, problem.parts), (plan.results, problem.results))):
        violations.append(Violation("wrong_parts", "its parts or results are not those of the problem"))
    height = 0
    for number, (buffer, offset) in enumerate(zip(problem.buffers, plan.offsets, strict=True)):
        end = offset + buffer.size
        height = max(height, end)
        if offset < 0:
            violations.append(Violation("negative_offset", f"buffer {buffer.id} is at offset {offset}", {"buffers": (number,)}))
        if offset % buffer.alignment:
            message = f"buffer {buffer.id} is at offset {offset}, not a multiple of {buffer.alignment}"
            violations.append(Violation("misaligned", message, {"buffers": (number,)}))
        if buffer.offset is not None and offset != buffer.offset:
            message = f"buffer {buffer.id} is at offset {offset}, fixed at {buffer.offset}"
            violations.append(Violation("moved", message, {"buffers": (number,)}))
        if problem.capacity is not None and end > problem.capacity:
            message = f"buffer {buffer.id} ends at {end}, beyond the capacity of {problem.capacity}"
            violations.append(Violation("over_capacity", message, {"buffers": (number,)}))
    objective = _reuse_cost(problem, plan) if problem.penalties else height
    if plan.objective != objective:
        found = f"reuse penalties add up to {objective}" if problem.penalties else f"height is {height}"
        stated = plan.objective if problem.penalties else f"{plan.objective} bytes"
        violations.append(Violation("wrong_objective", f"the plan says {stated}, its {found}"))
    boxes = (
        (start, end, offset, offset + buffer.size, number)
        for number, (buffer, offset) in enumerate(zip(problem.buffers, plan.offsets, strict=True))
        for start, end in (buffer.pieces if buffer.gaps else ((buffer.lower, buffer.upper),))
    )
    allowed = _allowed(problem, plan)
    for pair, moment in overlaps(boxes, MOST_OVERLAPS + len(allowed)).items():
        if pair in allowed:
            continue
        one, two = (problem.buffers[number].id for number in pair)
        violations.append(Violation("overlap", f"buffers {one} and {two} share bytes at time {moment}", {"buffers": pair}))
    return Verification(tuple(violations), objective)


def _reuse_cost(problem: Problem, plan: Plan) -> int:
    """The sum of the costs of all reuse penalties whose two buffers' ranges of bytes have a byte in common."""
    bytes_of = {
        buffer.id: range(offset, offset + buffer.size) for buffer, offset in zip(problem.buffers, plan.offsets, strict=True)
    }
    cost = 0
    for penalty in problem.penalties or ():
        first, second = bytes_of[penalty.first], bytes_of[penalty.second]
        if range(max(first.start, second.start), min(first.stop, second.stop)):
            cost += penalty.cost
    return cost


def _allowed(problem: Problem, plan: Plan) -> set[tuple[int, int]]:
    """The pairs of buffers whose overlap is permitted at the plan's offsets, the smaller number first.

    The problem lists pairs of buffers that may share bytes: the result of an operator (whether or not it is one of the
    problem's ``results``), and an operand that is still live when the result is created. If a pair has a distance, the result
    must start at least that many bytes below the end of the operand. If the distance is None, both must have the same offset.
    """
    pairs = set()
    for result, operand, distance in problem.overlaps:
        result_offset, operand_offset = plan.offsets[result], plan.offsets[operand]
        if (
            result_offset == operand_offset
            if distance is None
            else result_offset + distance <= operand_offset + problem.buffers[operand].size
        ):
            pairs.add((min(result, operand), max(result, operand)))
    return pairs
