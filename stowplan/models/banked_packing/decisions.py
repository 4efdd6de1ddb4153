"""What a banked packing decides: bank and offset of its buffers."""

from __future__ import annotations

from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.decisions import Decision, Values
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table


def _buffers(problem: Problem, plan: Plan) -> dict[int, Values]:
    places = zip(plan.banks, plan.offsets, strict=True)
    return {at: {"bank": problem.banks[bank].name, "offset": offset} for at, (bank, offset) in enumerate(places)}


DECISIONS = (Decision("buffer", lambda problem, at: problem.buffers[at].id, _buffers),)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for each buffer, in the problem's order, and an arena for each bank; the plan is valid for the problem."""
    rows = (
        OffsetRow(
            name=buffer.id,
            offset=offset,
            size=problem.taken(number, bank),
            alignment=problem.step(number, bank),
            start=buffer.lower,
            end=buffer.upper,
            arena=bank,
        )
        for number, (buffer, bank, offset) in enumerate(zip(problem.buffers, plan.banks, plan.offsets, strict=True))
    )
    return make_table("banked_packing", problem, plan, {bank.name: bank.capacity for bank in problem.banks}, rows)
