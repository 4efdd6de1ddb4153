"""What two packings do differently."""

from __future__ import annotations

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.models.plan_diff import Part, compare_parts


def diff(problem: Problem, first: Plan, second: Plan) -> tuple[Part, ...]:
    """Buffers with another offset; both plans are valid for the problem."""
    before, after = ({at: {"offset": offset} for at, offset in enumerate(plan.offsets)} for plan in (first, second))
    return (compare_parts("buffer", before, after, lambda at: problem.buffers[at].id),)
