"""The verifier of operator order: checks all rules of a plan, and recomputes its peak and the size of its arena.

It steps through the order of the operators and counts the live bytes. It is written from docs/reference/operator-order.md
alone, uses no solver, and shares no code with structure, bounds, models or heuristics.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from stowplan import verification
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.overlaps import overlaps

#: The rules that a plan can break; docs/reference/operator-order.md explains each of them.
Code = Literal[
    "wrong_problem",
    "wrong_order",
    "wrong_count",
    "too_early",
    "wrong_objective",
    "wrong_arena",
    "negative_offset",
    "misaligned",
    "view_moved",
    "overlap",
]

Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


def verify(problem: Problem, plan: Plan) -> Verification:
    """Check a plan against all rules of operator order.

    The peak and the arena that the plan states must equal the recomputed ones, since people read them.

    Parameters
    ----------
    plan
        Any plan that could be decoded. If its content makes no sense, that is a violation, not an exception.

    Returns
    -------
    Verification
        All violations found, but at most :data:`~stowplan.models.overlaps.MOST_OVERLAPS` overlaps. The peak in bytes is the
        ``objective``; it is None if the order does not contain every operator exactly once. The size of the arena in bytes is
        the ``tie_break`` and ``figures["arena"]``: of two plans with the same peak, the one with the smaller arena is
        preferred. The figure is missing if the number of offsets is wrong.
    """
    violations = verification.of_problem(problem, plan)
    is_order = sorted(plan.order) == list(range(len(problem.ops)))
    if not is_order:
        text = f"the order has {len(plan.order)} entries, expected each of the {len(problem.ops)} operators once"
        violations.append(Violation("wrong_order", text))
    has_offsets = len(plan.offsets) == len(problem.tensors)
    if not has_offsets:
        violations.append(Violation("wrong_count", f"{len(plan.offsets)} offsets for {len(problem.tensors)} tensors"))
    arena = _check_offsets(problem, plan, violations) if has_offsets else None
    peak = None
    if is_order:
        _check_precedences(problem, plan, violations)
        peak = _run(problem, plan, violations, has_offsets)
        if plan.objective != peak:
            violations.append(Violation("wrong_objective", f"the plan says {plan.objective} bytes, its peak is {peak}"))
    # No plan has an arena below its peak, so an arena of that size is the smallest for this objective.
    is_least = peak is not None and (arena or 0) <= peak
    figures = {} if arena is None else {"arena": arena}
    return Verification(tuple(violations), peak, figures, tie_break=arena or 0, is_tie_break_least=is_least)


def _root(problem: Problem, tensor: int) -> int:
    """The tensor whose bytes this one shares, over any number of views; itself if it has bytes of its own."""
    while (base := problem.tensors[tensor].alias_of) is not None:
        tensor = base
    return tensor


def _ever_live(problem: Problem) -> set[int]:
    """Tensors with bytes of their own that some operator reads or writes, or that must stay to the end."""
    used = {tensor for op in problem.ops for tensor in (*op.reads, *op.writes)} | set(problem.outputs)
    if not problem.free_inputs:
        used |= set(problem.inputs)
    return {_root(problem, tensor) for tensor in used}


def _check_offsets(problem: Problem, plan: Plan, violations: list[Violation]) -> int:
    """Check the rules of offsets that do not depend on time; returns the size of the arena in bytes."""
    arena = 0
    live = _ever_live(problem)
    for number, (tensor, offset) in enumerate(zip(problem.tensors, plan.offsets, strict=True)):
        if offset < 0:
            violations.append(Violation("negative_offset", f"tensor {tensor.id} is at offset {offset}"))
        base = _root(problem, number)
        if base != number:
            if offset != plan.offsets[base]:
                text = f"tensor {tensor.id} is at offset {offset}, its base {problem.tensors[base].id} at {plan.offsets[base]}"
                violations.append(Violation("view_moved", text))
            continue
        if offset % tensor.alignment:
            violations.append(
                Violation("misaligned", f"tensor {tensor.id} is at offset {offset}, not a multiple of {tensor.alignment}")
            )
        if number in live:
            arena = max(arena, offset + tensor.size)
    if plan.arena != arena:
        violations.append(Violation("wrong_arena", f"the plan says {plan.arena} bytes of memory, its tensors take {arena}"))
    return arena


def _check_precedences(problem: Problem, plan: Plan, violations: list[Violation]) -> None:
    """Check that every tensor is written before it is read or viewed, and that the precedences hold."""
    written = set(problem.inputs)
    position = {op: at for at, op in enumerate(plan.order)}
    results = {tensor for op in problem.ops for tensor in op.writes}
    for number in plan.order:
        op = problem.ops[number]
        needed = set(op.reads)
        for tensor in op.writes:
            base = problem.tensors[tensor].alias_of
            if base is not None:
                needed.add(base)
        for tensor in sorted(needed):
            at: int | None = tensor
            while at is not None and at not in written and at not in results:
                # A view that no operator writes exists as soon as its base does.
                at = problem.tensors[at].alias_of
            if at is None or at not in written:
                violations.append(
                    Violation("too_early", f"operator {op.id} runs before {problem.tensors[tensor].id} is written")
                )
        written.update(op.writes)
    for first, second in problem.precedences:
        if position[first] > position[second]:
            text = f"operator {problem.ops[second].id} runs before {problem.ops[first].id}"
            violations.append(Violation("too_early", text))


def _run(problem: Problem, plan: Plan, violations: list[Violation], has_offsets: bool) -> int:
    """Step through the order, count live bytes, and report tensors that overlap; returns the peak in bytes."""
    tensors = problem.tensors
    root = [_root(problem, number) for number in range(len(tensors))]
    # For each tensor with bytes of its own: the position in the order at which it is written, and the last position at which it
    # or one of its views is read or written. Inputs have no first position, since they exist from the start.
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, number in enumerate(plan.order):
        op = problem.ops[number]
        last |= {root[tensor]: at for tensor in (*op.reads, *op.writes)}
        first |= {tensor: at for tensor in op.writes if root[tensor] == tensor}
    stays = {root[tensor] for tensor in (*problem.outputs, *(() if problem.free_inputs else problem.inputs))}
    last |= dict.fromkeys(stays, len(plan.order))
    # An input that no operator reads, and that need not be kept to the end, is never live.
    read_inputs = {root[tensor] for tensor in problem.inputs} & set(last)
    ending: dict[int, list[int]] = defaultdict(list)
    for tensor, when in last.items():
        ending[when].append(tensor)
    live = peak = sum(tensors[tensor].size for tensor in read_inputs)
    replaced: set[int] = set()
    for at, number in enumerate(plan.order):
        op = problem.ops[number]
        reused = [(root[operand], result) for operand, result in op.in_place if last[root[operand]] == at]
        live += sum(tensors[tensor].size for tensor in op.writes if root[tensor] == tensor)
        peak = max(peak, live - sum(tensors[source].size for source, _ in reused))
        live -= sum(tensors[tensor].size for tensor in ending[at])
        if has_offsets:
            # An operator that works in place gives its result exactly the operand's bytes, or bytes of its own.
            replaced |= {source for source, result in reused if plan.offsets[source] == plan.offsets[result]}
    if has_offsets:
        # The operator at position p of the order writes its results at time 2 p. A tensor is live until 2 p + 1 if this
        # operator is the last to need it, but only until 2 p if a result of the operator takes over its bytes.
        boxes = (
            (
                -1 if tensor in read_inputs else 2 * first[tensor],
                2 * end + (tensor not in replaced),
                plan.offsets[tensor],
                plan.offsets[tensor] + tensors[tensor].size,
                tensor,
            )
            for tensor, end in last.items()
        )
        for pair in overlaps(boxes):
            one, two = sorted(tensors[number].id for number in pair)
            violations.append(Violation("overlap", f"tensors {one} and {two} share bytes while both are live"))
    return peak
