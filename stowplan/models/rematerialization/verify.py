"""Says whether a plan of rematerialization is valid, its added cost and its peak, without any solver.

Written from docs/reference/rematerialization.md alone; it shares no code with structure, bounds, models or heuristics.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from stowplan.models import verification
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem

Code = Literal[
    "wrong_problem",
    "unknown_operator",
    "never_runs",
    "runs_again",
    "too_early",
    "wrong_objective",
    "wrong_peak",
    "over_limit",
]

Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


@dataclass
class _Instance:
    """The bytes that one run of an operator gave to one tensor, or those of an input."""

    tensor: int
    begin: int
    """Run that wrote it; -1 for inputs."""
    last: int
    """Last run that needs it; the number of runs where it stays to the end."""
    is_needed: bool


def verify(problem: Problem, plan: Plan) -> Verification:
    """The rules that a plan breaks, its added cost and its peak in bytes.

    Parameters
    ----------
    plan
        Any that decodes; what is malformed is a violation, not an error.

    Returns
    -------
    Verification
        Of each rule the first place where it is broken; the figure ``peak``, which decides between plans of one added cost,
        where nothing is read that is not there. What the plan itself states must be what is recomputed.
    """
    violations = verification.of_problem(problem, plan)
    unknown = [(at, op) for at, op in enumerate(plan.sequence) if not 0 <= op < len(problem.ops)]
    if unknown:
        at, op = unknown[0]
        text = f"run {at} is of operator {op}, expected 0 to {len(problem.ops) - 1}"
        violations.append(Violation("unknown_operator", text))
        return Verification(tuple(violations), None)
    _check_counts(problem, plan, violations)
    cost = sum(problem.ops[op].cost for op in plan.sequence) - sum(op.cost for op in problem.ops)
    if plan.objective != cost:
        violations.append(Violation("wrong_objective", f"the plan says an added cost of {plan.objective}, it is {cost}"))
    _check_precedences(problem, plan, violations)
    live = _live_bytes(problem, plan, violations)
    if live is None:
        return Verification(tuple(violations), cost)
    peak = max(live, default=0)
    if plan.peak != peak:
        violations.append(Violation("wrong_peak", f"the plan says a peak of {plan.peak} bytes, it is {peak}"))
    if problem.limit is not None and peak > problem.limit:
        at = next(at for at, live_bytes in enumerate(live) if live_bytes > problem.limit)
        name = problem.ops[plan.sequence[at]].id
        text = f"{live[at]} bytes are live at run {at} ({name}), the limit is {problem.limit}"
        violations.append(Violation("over_limit", text))
    return Verification(tuple(violations), cost, {"peak": peak}, tie_break=peak)


def live_bytes(problem: Problem, plan: Plan) -> tuple[int, ...]:
    """Bytes that are live while each run takes place; empty where something is read that is not there."""
    return tuple(_live_bytes(problem, plan, []) or ())


def _check_counts(problem: Problem, plan: Plan, violations: list[Violation]) -> None:
    counts = Counter(plan.sequence)
    missing = [op.id for number, op in enumerate(problem.ops) if not counts[number]]
    if missing:
        violations.append(Violation("never_runs", f"operator {missing[0]} never runs"))
    seen: set[int] = set()
    for at, op in enumerate(plan.sequence):
        if op in seen and problem.ops[op].once:
            violations.append(Violation("runs_again", f"operator {problem.ops[op].id} runs again at run {at}, it may run once"))
            return
        seen.add(op)


def _check_precedences(problem: Problem, plan: Plan, violations: list[Violation]) -> None:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, op in enumerate(plan.sequence):
        first.setdefault(op, at)
        last[op] = at
    for one, other in problem.precedences:
        if one in last and other in first and last[one] > first[other]:
            text = f"operator {problem.ops[one].id} runs at run {last[one]}, after {problem.ops[other].id} at {first[other]}"
            violations.append(Violation("too_early", text))
            return


def _live_bytes(problem: Problem, plan: Plan, violations: list[Violation]) -> list[int] | None:
    """Bytes that are live at each run; None, and a violation, where something is read that is not there."""
    tensors = problem.tensors
    written = {tensor for op in problem.ops for tensor in op.writes}

    def source(tensor: int) -> int:
        """A view that nobody writes is its base."""
        while tensor not in written and (base := tensors[tensor].alias_of) is not None:
            tensor = base
        return tensor

    instances = {tensor: _Instance(tensor, -1, -1, False) for tensor in problem.inputs if source(tensor) == tensor}
    every = list(instances.values())
    takers: list[list[tuple[_Instance, int]]] = []
    for at, number in enumerate(plan.sequence):
        op = problem.ops[number]
        bases = {write: base for write in op.writes if (base := tensors[write].alias_of) is not None}
        for tensor in (*op.reads, *(base for base in bases.values() if source(base) not in op.writes)):
            instance = instances.get(source(tensor))
            if instance is None:
                text = f"run {at} ({op.id}) needs tensor {tensors[tensor].id}, which no run before it writes"
                violations.append(Violation("too_early", text))
                return None
            instance.last, instance.is_needed = at, True
        takers.append([(instances[source(operand)], tensors[result].size) for operand, result in op.in_place])
        for tensor in op.writes:
            if tensor not in bases:
                instances[tensor] = _Instance(tensor, at, at, True)
                every.append(instances[tensor])
        waiting = list(bases)
        while waiting:
            # A view of what this very run writes comes after it.
            tensor = next(tensor for tensor in waiting if source(bases[tensor]) not in waiting)
            waiting.remove(tensor)
            instances[tensor] = instances[source(bases[tensor])]
            instances[tensor].last = max(instances[tensor].last, at)
    end = len(plan.sequence)
    for tensor in (*problem.outputs, *(() if problem.free_inputs else problem.inputs)):
        if source(tensor) in instances:
            stays = instances[source(tensor)]
            stays.last, stays.is_needed = end, True
    change = [0] * (end + 1)
    for each in every:
        if each.is_needed:
            change[max(0, each.begin)] += tensors[each.tensor].size
            change[min(end, each.last + 1)] -= tensors[each.tensor].size
    live = []
    total = 0
    for at in range(end):
        total += change[at]
        live.append(total - sum(size for operand, size in takers[at] if operand.last == at))
    return live
