"""What two banked packings do differently."""

from __future__ import annotations

from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.plan_diff import Part, Values, compare_parts


def diff(problem: Problem, first: Plan, second: Plan) -> tuple[Part, ...]:
    """Buffers with another bank or offset; both plans are valid for the problem."""

    def buffers(plan: Plan) -> dict[int, Values]:
        places = zip(plan.banks, plan.offsets, strict=True)
        return {at: {"bank": problem.banks[bank].name, "offset": offset} for at, (bank, offset) in enumerate(places)}

    return (compare_parts("buffer", buffers(first), buffers(second), lambda at: problem.buffers[at].id),)
