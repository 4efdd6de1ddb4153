"""What is shown of a banked packing: each bank as a packing of its own."""

from __future__ import annotations

from dataclasses import replace

from stowplan.errors import InputError
from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.packing import plan as packing_plan
from stowplan.models.packing import problem as packing
from stowplan.report.packing.scene import Scene, build_scene


def check_fits(problem: Problem, plan: object) -> Plan:
    """The plan, where it can be shown for this problem; raises :class:`~stowplan.errors.InputError` where it cannot."""
    if not isinstance(plan, Plan):
        raise InputError(f"found a {type(plan).__name__} of another kind, expected a banked packing")
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem: expected the same buffers and banks")
    if not len(plan.banks) == len(plan.offsets) == len(problem.buffers):
        raise InputError(f"found {len(plan.banks)} banks and {len(plan.offsets)} offsets for {len(problem.buffers)} buffers")
    if any(not 0 <= bank < len(problem.banks) for bank in plan.banks):
        raise InputError(f"found a buffer in none of the {len(problem.banks)} banks")
    return plan


def bank_scenes(problem: Problem, plan: Plan) -> list[Scene]:
    """A scene for each bank; the owners of its boxes are numbers of the problem's buffers. All have the same span of time."""
    check_fits(problem, plan)
    start = min((buffer.lower for buffer in problem.buffers), default=0)
    end = max((buffer.upper for buffer in problem.buffers), default=1)
    found = []
    for bank, memory in enumerate(problem.banks):
        numbers = [number for number, at in enumerate(plan.banks) if at == bank]
        inside = packing.Problem(
            name=memory.name,
            capacity=memory.capacity,
            buffers=tuple(
                packing.Buffer(
                    id=problem.buffers[number].id,
                    lower=problem.buffers[number].lower,
                    upper=problem.buffers[number].upper,
                    size=problem.taken(number, bank),
                )
                for number in numbers
            ),
        )
        offsets = tuple(plan.offsets[number] for number in numbers)
        scene = build_scene(inside, packing_plan.Plan(problem=inside.digest, objective=0, offsets=offsets))
        boxes = tuple(replace(box, owner=numbers[box.owner]) for box in scene.boxes)
        found.append(replace(scene, boxes=boxes, start=start, end=end))
    return found
