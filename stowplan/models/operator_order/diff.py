"""What two operator orders do differently."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.longest_ascending import longest_ascending
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.plan_diff import Part, Values, compare_parts


def diff(problem: Problem, first: Plan, second: Plan) -> tuple[Part, ...]:
    """Operators that moved, with their positions, and tensors with another offset; both plans are valid for the problem.

    As few operators as can be are said to have moved: the order of all others is the same in both plans, though where one
    goes from the front to the back, everything behind it has another position.
    """
    kept = in_order(first.order, second.order)

    def operators(plan: Plan) -> dict[int, Values]:
        return {op: {} if op in kept else {"position": at} for at, op in enumerate(plan.order)}

    def tensors(plan: Plan) -> dict[int, Values]:
        return {at: {"offset": offset} for at, offset in enumerate(plan.offsets)}

    return (
        compare_parts("operator", operators(first), operators(second), lambda op: problem.ops[op].id),
        compare_parts("tensor", tensors(first), tensors(second), lambda at: problem.tensors[at].id),
    )


def in_order(first: Sequence[int], second: Sequence[int]) -> set[int]:
    """As many operators as are in the same order in both, which have all of them; the same ones whichever is the first."""
    first, second = sorted((tuple(first), tuple(second)))
    position = {op: at for at, op in enumerate(second)}
    return {first[at] for at in longest_ascending([position[op] for op in first])}
