"""The offset table of a memory mapping."""

from __future__ import annotations

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for each residency, in the plan's order; a tensor may have several. The plan is valid for the problem."""
    rows = (
        OffsetRow(
            name=problem.tensors[each.tensor].name,
            offset=each.offset,
            size=problem.tensors[each.tensor].size,
            alignment=problem.alignment,
            start=each.start,
            end=each.end,
        )
        for each in plan.residencies
    )
    return make_table("memory_mapping", problem, plan, {"fast_memory": problem.capacity}, rows)
