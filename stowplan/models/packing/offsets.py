"""The offset table of a packing."""

from __future__ import annotations

from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for each buffer, in the problem's order; the plan is valid for the problem."""
    rows = (
        OffsetRow(
            name=buffer.id,
            offset=offset,
            size=buffer.size,
            alignment=buffer.alignment,
            start=buffer.lower,
            end=buffer.upper,
        )
        for buffer, offset in zip(problem.buffers, plan.offsets, strict=True)
    )
    return make_table("packing", problem, plan, {"arena": problem.capacity}, rows)
