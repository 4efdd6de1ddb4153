"""What a packing decides: the offsets of its buffers."""

from __future__ import annotations

from stowplan.models.decisions import Decision, Values
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem


def _buffers(problem: Problem, plan: Plan) -> dict[int, Values]:
    return {at: {"offset": offset} for at, offset in enumerate(plan.offsets)}


DECISIONS = (Decision("buffer", lambda problem, at: problem.buffers[at].id, _buffers),)


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
