"""What a plan moves and whether it fits, by playing it step by step: apart from the verifier and the models."""

from __future__ import annotations

from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem


def cost(problem: Problem, plan: Plan) -> int | None:
    """Weighted bytes moved, or None where the plan does not fit. Layouts and copies are taken to be right."""
    size = [each.bytes for each in problem.tensors]
    users: list[list[int]] = [[] for _ in size]
    for number, operator in enumerate(problem.operators):
        for tensor in {*operator.reads, *operator.writes}:
            users[tensor].append(number)
    extra = [0] * len(size)
    copied = 0
    for copy in plan.copies:
        each = problem.tensors[copy.tensor]
        made = each.bytes if copy.layout < len(each.shape) else each.views[copy.layout - len(each.shape)].bytes
        extra[copy.tensor] += made
        copied += made
    moved = 0
    loaded: set[int] = set()
    stored: set[int] = set()
    for number, operator in enumerate(problem.operators):
        there = 0
        for tensor in range(len(size)):
            if plan.on_chip[tensor] and users[tensor] and users[tensor][0] <= number <= users[tensor][-1]:
                there += size[tensor] + extra[tensor]
        if there > problem.capacity:
            return None
        for at, tensor in enumerate(operator.reads):
            if not plan.on_chip[tensor]:
                moved += operator.read_bytes[at]
            elif problem.tensors[tensor].is_input and tensor not in loaded:
                loaded.add(tensor)
                moved += size[tensor]
        for tensor in operator.writes:
            if tensor not in stored and (problem.tensors[tensor].is_output or not plan.on_chip[tensor]):
                stored.add(tensor)
                moved += size[tensor]
    return problem.copy_weight * copied + problem.off_chip_weight * moved
