"""The offset table of an operator order."""

from __future__ import annotations

from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for each tensor that is ever live, in the problem's order, with times as places in the plan's order.

    A view stands where its base does, as long as that. The plan is valid for the problem.
    """
    structure = build(problem)
    begins, ends = structure.lives(plan.order)
    lives = {
        int(tensor): (int(begin), int(end))
        for tensor, begin, end, is_there in zip(structure.tensor, begins, ends, structure.is_there, strict=True)
        if is_there
    }
    rows = (
        OffsetRow(
            name=tensor.id,
            offset=plan.offsets[number],
            size=tensor.size,
            alignment=tensor.alignment,
            start=lives[problem.base[number]][0],
            end=lives[problem.base[number]][1],
        )
        for number, tensor in enumerate(problem.tensors)
        if problem.base[number] in lives
    )
    return make_table("operator_order", problem, plan, {"arena": None}, rows)
