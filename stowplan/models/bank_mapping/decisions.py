"""What a bank mapping decides: layouts and stays of its tensors, options of its operators, and copies."""

from __future__ import annotations

from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.decisions import Decision, Values


def _tensors(problem: Problem, plan: Plan) -> dict[int, Values]:
    own = zip(problem.tensors, plan.layouts, plan.on_chip, strict=True)
    return {at: {"layout": tensor.layout_name(layout), "on_chip": stays} for at, (tensor, layout, stays) in enumerate(own)}


def _operators(problem: Problem, plan: Plan) -> dict[int, Values]:
    return {at: {"option": option} for at, option in enumerate(plan.options)}


def _copies(problem: Problem, plan: Plan) -> dict[BankCopy, Values]:
    return {
        each: {"layout": problem.tensors[each.tensor].layout_name(each.layout), "before": problem.operators[each.before].name}
        for each in plan.copies
    }


DECISIONS = (
    Decision("tensor", lambda problem, at: problem.tensors[at].name, _tensors),
    Decision("operator", lambda problem, at: problem.operators[at].name, _operators),
    Decision("copy", lambda problem, copy: problem.tensors[copy.tensor].name, _copies),
)
