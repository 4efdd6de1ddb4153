"""What two bank mappings do differently."""

from __future__ import annotations

from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.plan_diff import Part, Values, compare_parts


def diff(problem: Problem, first: Plan, second: Plan) -> tuple[Part, ...]:
    """Tensors spread otherwise or no longer on chip, operators computed otherwise, and copies; both plans are valid."""

    def tensors(plan: Plan) -> dict[int, Values]:
        own = zip(problem.tensors, plan.layouts, plan.on_chip, strict=True)
        return {at: {"layout": tensor.layout_name(layout), "on_chip": stays} for at, (tensor, layout, stays) in enumerate(own)}

    def operators(plan: Plan) -> dict[int, Values]:
        return {at: {"option": option} for at, option in enumerate(plan.options)}

    def copies(plan: Plan) -> dict[BankCopy, Values]:
        return {
            each: {
                "layout": problem.tensors[each.tensor].layout_name(each.layout),
                "before": problem.operators[each.before].name,
            }
            for each in plan.copies
        }

    return (
        compare_parts("tensor", tensors(first), tensors(second), lambda at: problem.tensors[at].name),
        compare_parts("operator", operators(first), operators(second), lambda at: problem.operators[at].name),
        compare_parts("copy", copies(first), copies(second), lambda each: problem.tensors[each.tensor].name),
    )
