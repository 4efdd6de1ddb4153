"""What two operator orders do differently."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.plan_diff import Part, Values, compare_parts


def diff(problem: Problem, first: Plan, second: Plan) -> tuple[Part, ...]:
    """Operators that moved, with their positions, and tensors with another offset; both plans are valid for the problem.

    As few operators as can be are said to have moved: the order of all others is the same in both plans, though where one
    goes from the front to the back, everything behind it has another position.
    """
    position = {op: at for at, op in enumerate(second.order)}
    stay = _longest_ascending([position[op] for op in first.order])
    kept = {op for at, op in enumerate(first.order) if at in stay}

    def operators(plan: Plan) -> dict[int, Values]:
        return {op: {} if op in kept else {"position": at} for at, op in enumerate(plan.order)}

    def tensors(plan: Plan) -> dict[int, Values]:
        return {at: {"offset": offset} for at, offset in enumerate(plan.offsets)}

    return (
        compare_parts("operator", operators(first), operators(second), lambda op: problem.ops[op].id),
        compare_parts("tensor", tensors(first), tensors(second), lambda at: problem.tensors[at].id),
    )


def _longest_ascending(values: Sequence[int]) -> set[int]:
    """Places of a longest ascending subsequence of unlike values."""
    ends: list[int] = []
    places: list[int] = []
    before: list[int | None] = []
    for at, value in enumerate(values):
        length = bisect_left(ends, value)
        ends[length : length + 1] = [value]
        places[length : length + 1] = [at]
        before.append(places[length - 1] if length else None)
    found: set[int] = set()
    last = places[-1] if places else None
    while last is not None:
        found.add(last)
        last = before[last]
    return found
