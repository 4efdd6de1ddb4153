"""The verifier of bank mapping: checks all rules of a plan and recomputes the bytes that it moves.

It is written from docs/reference/bank-mapping.md alone, uses no solver, and shares no code with models or heuristics.

A *layout* is a number that says how a tensor is spread over the banks: along the dimension of this number, or not at all (-1).
Numbers from the tensor's rank on are its *views*, which are rearranged copies of some of its elements.
"""

from __future__ import annotations

from typing import Literal

from stowplan import verification
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem

#: The rules that a plan can break; docs/reference/bank-mapping.md explains each of them.
Code = Literal[
    "wrong_problem",
    "wrong_count",
    "wrong_objective",
    "unknown_option",
    "unknown_layout",
    "wrong_layout",
    "missing_copy",
    "late_copy",
    "early_copy",
    "duplicate_copy",
    "pointless_copy",
    "copy_off_chip",
    "over_capacity",
]


Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


def verify(problem: Problem, plan: Plan) -> Verification:
    """Check a plan against all rules of bank mapping.

    The objective that the plan states must equal the recomputed one.

    Parameters
    ----------
    plan
        Any plan that could be decoded. If its content makes no sense, that is a violation, not an exception.

    Returns
    -------
    Verification
        All violations found, and the objective, which is the weighted sum of the figures ``copied_bytes`` (between banks) and
        ``off_chip_bytes`` (to and from main memory). If entries of the plan are missing or refer to something that does not
        exist, there is no objective and there are no figures.
    """
    violations = verification.of_problem(problem, plan)
    shape = _shape(problem, plan)
    if shape:
        return Verification((*violations, *shape), None)
    first_reader = _layouts_read(problem, plan)
    violations += _written(problem, plan)
    violations += _copies(problem, plan, first_reader)
    violations += _space(problem, plan)
    copied = sum(_bytes(problem, copy.tensor, copy.layout) for copy in plan.copies)
    moved = _off_chip_bytes(problem, plan)
    objective = problem.copy_weight * copied + problem.off_chip_weight * moved
    if plan.objective != objective:
        violations.append(Violation("wrong_objective", f"the plan says {plan.objective}, it moves {objective}"))
    return Verification(tuple(violations), objective, {"copied_bytes": copied, "off_chip_bytes": moved})


def _bytes(problem: Problem, tensor: int, layout: int) -> int:
    """Size in bytes of a tensor, or of one of its views, in a layout."""
    stored = problem.tensors[tensor]
    return stored.bytes if layout < len(stored.shape) else stored.views[layout - len(stored.shape)].bytes


def _shape(problem: Problem, plan: Plan) -> list[Violation]:
    """The entries that are missing or refer to something that does not exist, as violations."""
    violations = []
    counts = (
        ("options", len(plan.options), len(problem.operators)),
        ("layouts", len(plan.layouts), len(problem.tensors)),
        ("on_chip", len(plan.on_chip), len(problem.tensors)),
    )
    for field, count, expected in counts:
        if count != expected:
            violations.append(Violation("wrong_count", f"{count} {field}, expected {expected}"))
    for number, (option, operator) in enumerate(zip(plan.options, problem.operators, strict=False)):
        if not 0 <= option < len(operator.options):
            message = f"operator {operator.name} has option {option} of {len(operator.options)}"
            violations.append(Violation("unknown_option", message, {"operators": (number,)}))
    for number, (layout, tensor) in enumerate(zip(plan.layouts, problem.tensors, strict=False)):
        if not -1 <= layout < len(tensor.shape):
            violations.append(Violation("unknown_layout", f"tensor {tensor.name} has layout {layout}", {"tensors": (number,)}))
    for copy in plan.copies:
        if not 0 <= copy.tensor < len(problem.tensors):
            violations.append(Violation("unknown_layout", f"a copy is of tensor number {copy.tensor}"))
            continue
        tensor = problem.tensors[copy.tensor]
        if not -1 <= copy.layout < len(tensor.shape) + len(tensor.views):
            message = f"a copy makes layout {copy.layout} of tensor {tensor.name}"
            violations.append(Violation("unknown_layout", message, {"tensors": (copy.tensor,)}))
    return violations


def _layouts_read(problem: Problem, plan: Plan) -> list[dict[int, int]]:
    """For each tensor, the layouts in which operators read it, each with the first such operator."""
    first_reader: list[dict[int, int]] = [{} for _ in problem.tensors]
    for number, operator in enumerate(problem.operators):
        chosen = operator.options[plan.options[number]]
        for at, tensor in enumerate(operator.reads):
            first_reader[tensor].setdefault(chosen[at], number)
    return first_reader


def _written(problem: Problem, plan: Plan) -> list[Violation]:
    """The operators that write a tensor in another layout than its own, as violations."""
    violations = []
    for number, operator in enumerate(problem.operators):
        chosen = operator.options[plan.options[number]]
        for at, tensor in enumerate(operator.writes, len(operator.reads)):
            if chosen[at] != plan.layouts[tensor]:
                name = problem.tensors[tensor].name
                message = f"operator {operator.name} writes {name} in layout {chosen[at]}, its own is {plan.layouts[tensor]}"
                violations.append(Violation("wrong_layout", message, {"operators": (number,), "tensors": (tensor,)}))
    return violations


def _copies(problem: Problem, plan: Plan, first_reader: list[dict[int, int]]) -> list[Violation]:
    """The copies that are duplicate, useless, impossible, too late, too early or missing, as violations.

    ``first_reader`` is the result of :func:`_layouts_read`.
    """
    violations = []
    last_write: dict[int, int] = {}
    for number, operator in enumerate(problem.operators):
        for tensor in operator.writes:
            last_write[tensor] = number
    copied_at: dict[tuple[int, int], int] = {}
    for copy in plan.copies:
        key = (copy.tensor, copy.layout)
        name = problem.tensors[copy.tensor].name
        described = f"the copy of {name} to layout {copy.layout}"
        if key in copied_at:
            violations.append(Violation("duplicate_copy", f"{described} is made twice", {"tensors": (copy.tensor,)}))
        if not plan.on_chip[copy.tensor]:
            violations.append(
                Violation("copy_off_chip", f"{described} is of a tensor that is not on chip", {"tensors": (copy.tensor,)})
            )
        if copy.layout == plan.layouts[copy.tensor] or copy.layout not in first_reader[copy.tensor]:
            violations.append(
                Violation("pointless_copy", f"{described} is one that nothing needs", {"tensors": (copy.tensor,)})
            )
        elif copy.before > first_reader[copy.tensor][copy.layout]:
            first = first_reader[copy.tensor][copy.layout]
            message = f"{described} is made before operator {copy.before}, after operator {first} reads it"
            violations.append(Violation("late_copy", message, {"operators": (first,), "tensors": (copy.tensor,)}))
        first_moment = last_write[copy.tensor] + 1 if copy.tensor in last_write else 0
        if not first_moment <= copy.before:
            message = f"{described} is made before operator {copy.before}, before all of it is written"
            violations.append(Violation("early_copy", message, {"tensors": (copy.tensor,)}))
        copied_at[key] = copy.before
    for tensor, layouts in enumerate(first_reader):
        if not plan.on_chip[tensor]:
            continue
        for layout, first in layouts.items():
            if layout != plan.layouts[tensor] and (tensor, layout) not in copied_at:
                message = f"operator {problem.operators[first].name} reads {problem.tensors[tensor].name} in layout {layout}"
                violations.append(
                    Violation(
                        "missing_copy",
                        f"{message}, its own is {plan.layouts[tensor]}",
                        {"operators": (first,), "tensors": (tensor,)},
                    )
                )
    return violations


def _space(problem: Problem, plan: Plan) -> list[Violation]:
    """The operators at which the tensors on chip do not fit, as violations.

    A tensor and its copies count from the first to the last use of the tensor.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, operator in enumerate(problem.operators):
        for tensor in (*operator.reads, *operator.writes):
            first.setdefault(tensor, number)
            last[tensor] = number
    change = [0] * (len(problem.operators) + 1)
    for tensor in first:
        if plan.on_chip[tensor]:
            change[first[tensor]] += problem.tensors[tensor].bytes
            change[last[tensor] + 1] -= problem.tensors[tensor].bytes
    for copy in plan.copies:
        if copy.tensor in first:
            change[first[copy.tensor]] += _bytes(problem, copy.tensor, copy.layout)
            change[last[copy.tensor] + 1] -= _bytes(problem, copy.tensor, copy.layout)
    violations = []
    load = 0
    for number, operator in enumerate(problem.operators):
        load += change[number]
        if load > problem.capacity:
            message = f"{load} bytes on chip at operator {operator.name}, more than the capacity of {problem.capacity}"
            violations.append(Violation("over_capacity", message, {"operators": (number,)}))
    return violations


def _off_chip_bytes(problem: Problem, plan: Plan) -> int:
    """The number of bytes that are moved to and from main memory.

    A tensor in main memory is written once and loaded by every access. Of the tensors on chip, inputs are loaded once and
    outputs are stored once.
    """
    total = 0
    read: set[int] = set()
    written: set[int] = set()
    for operator in problem.operators:
        for tensor, size in zip(operator.reads, operator.read_bytes, strict=True):
            read.add(tensor)
            if not plan.on_chip[tensor]:
                total += size
        written.update(operator.writes)
    for number, stored in enumerate(problem.tensors):
        if number in written:
            total += stored.bytes if stored.is_output or not plan.on_chip[number] else 0
        elif number in read and plan.on_chip[number]:
            total += stored.bytes
    return total
