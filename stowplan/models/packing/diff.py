"""What two packings do differently."""

from __future__ import annotations

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.models.plan_diff import Part, Values, compare_parts


def diff(problem: Problem, first: Plan, second: Plan) -> tuple[Part, ...]:
    """Buffers with another offset; both plans are valid for the problem."""

    def buffers(plan: Plan) -> dict[int, Values]:
        return {at: {"offset": offset} for at, offset in enumerate(plan.offsets)}

    return (compare_parts("buffer", buffers(first), buffers(second), lambda at: problem.buffers[at].id),)
