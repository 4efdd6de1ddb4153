"""Says whether an operator-order plan is valid, its peak and its arena: a run through the order, without any solver.

Written from docs/reference/operator-order.md alone; it shares no code with structure, bounds, models or heuristics.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from stowplan.models import outcome
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem

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

#: Overlaps listed at most: where all tensors lie at 0, their pairs fill any memory.
MOST_OVERLAPS = 10_000


Violation = outcome.Violation[Code]


@dataclass(frozen=True)
class Verification(outcome.Verification[Violation]):
    """What was found."""

    peak: int | None
    """Recomputed peak in bytes; None where the plan's order is not one of all operators."""
    arena: int | None
    """Recomputed arena in bytes; None where it has not one offset for each tensor."""


def verify(problem: Problem, plan: Plan) -> Verification:
    """All rules a plan breaks, its peak and its arena in bytes.

    Parameters
    ----------
    plan
        Any that decodes; what is malformed is a violation, not an error.

    Returns
    -------
    Verification
        Violations, peak and arena. What the plan itself states must be these: people read it.
    """
    found: list[Violation] = []
    if plan.problem != problem.digest:
        found.append(Violation("wrong_problem", f"the plan is for problem {plan.problem[:12]}, not {problem.digest[:12]}"))
    is_order = sorted(plan.order) == list(range(len(problem.ops)))
    if not is_order:
        text = f"the order has {len(plan.order)} entries, expected each of the {len(problem.ops)} operators once"
        found.append(Violation("wrong_order", text))
    has_offsets = len(plan.offsets) == len(problem.tensors)
    if not has_offsets:
        found.append(Violation("wrong_count", f"{len(plan.offsets)} offsets for {len(problem.tensors)} tensors"))
    arena = _check_offsets(problem, plan, found) if has_offsets else None
    peak = None
    if is_order:
        _check_precedences(problem, plan, found)
        peak = _run(problem, plan, found, has_offsets)
        if plan.objective != peak:
            found.append(Violation("wrong_objective", f"the plan says {plan.objective} bytes, its peak is {peak}"))
    return Verification(tuple(found), peak, arena)


def _root(problem: Problem, tensor: int) -> int:
    """The tensor whose bytes this one has."""
    while (base := problem.tensors[tensor].alias_of) is not None:
        tensor = base
    return tensor


def _ever_live(problem: Problem) -> set[int]:
    """Tensors with bytes of their own that some operator reads or writes, or that stay."""
    used = {tensor for op in problem.ops for tensor in (*op.reads, *op.writes)} | set(problem.outputs)
    if not problem.free_inputs:
        used |= set(problem.inputs)
    return {_root(problem, tensor) for tensor in used}


def _check_offsets(problem: Problem, plan: Plan, found: list[Violation]) -> int:
    """Rules that hold at every moment; returns the arena."""
    arena = 0
    live = _ever_live(problem)
    for number, (tensor, offset) in enumerate(zip(problem.tensors, plan.offsets, strict=True)):
        if offset < 0:
            found.append(Violation("negative_offset", f"tensor {tensor.id} is at offset {offset}"))
        base = _root(problem, number)
        if base != number:
            if offset != plan.offsets[base]:
                text = f"tensor {tensor.id} is at offset {offset}, its base {problem.tensors[base].id} at {plan.offsets[base]}"
                found.append(Violation("view_moved", text))
            continue
        if offset % tensor.alignment:
            found.append(
                Violation("misaligned", f"tensor {tensor.id} is at offset {offset}, not a multiple of {tensor.alignment}")
            )
        if number in live:
            arena = max(arena, offset + tensor.size)
    if plan.arena != arena:
        found.append(Violation("wrong_arena", f"the plan says {plan.arena} bytes of memory, its tensors take {arena}"))
    return arena


def _check_precedences(problem: Problem, plan: Plan, found: list[Violation]) -> None:
    """Whatever an operator reads, or has a view of, has been written; fixed precedences hold."""
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
                # A view that nobody writes is there as soon as its base is.
                at = problem.tensors[at].alias_of
            if at is None or at not in written:
                found.append(Violation("too_early", f"operator {op.id} runs before {problem.tensors[tensor].id} is written"))
        written.update(op.writes)
    for first, second in problem.precedences:
        if position[first] > position[second]:
            text = f"operator {problem.ops[second].id} runs before {problem.ops[first].id}"
            found.append(Violation("too_early", text))


def _run(problem: Problem, plan: Plan, found: list[Violation], has_offsets: bool) -> int:
    """Go through the order, keep what is live, list bytes that two tensors share; returns the peak."""
    root = [_root(problem, number) for number in range(len(problem.tensors))]
    last: dict[int, int] = {}
    writes: dict[int, list[int]] = defaultdict(list)
    position = {op: at for at, op in enumerate(plan.order)}
    for number, op in enumerate(problem.ops):
        for tensor in (*op.reads, *op.writes):
            last[root[tensor]] = max(last.get(root[tensor], -1), position[number])
        for tensor in op.writes:
            if root[tensor] == tensor:
                writes[number].append(tensor)
    stays = {root[tensor] for tensor in problem.outputs}
    stays |= set() if problem.free_inputs else {root[tensor] for tensor in problem.inputs}
    end = len(plan.order)
    for tensor in stays:
        last[tensor] = end
    arena = _Arena(problem, plan, found) if has_offsets else None
    ending: dict[int, list[int]] = defaultdict(list)
    for tensor, when in last.items():
        ending[when].append(tensor)
    live = peak = 0

    def begin(tensor: int) -> None:
        nonlocal live
        live += problem.tensors[tensor].size
        if arena is not None:
            arena.begin(tensor)

    def finish(tensor: int) -> None:
        nonlocal live
        live -= problem.tensors[tensor].size
        if arena is not None:
            arena.finish(tensor)

    # Inputs that nobody reads and nobody keeps are never there.
    for tensor in sorted({root[each] for each in problem.inputs} & set(last)):
        begin(tensor)
    peak = live
    for at, number in enumerate(plan.order):
        saved, gone = 0, set()
        for operand, result in problem.ops[number].in_place:
            source = root[operand]
            if last[source] == at:
                saved += problem.tensors[source].size
                # The result takes the operand's bytes: exactly those, or bytes of its own.
                if has_offsets and plan.offsets[source] == plan.offsets[result]:
                    gone.add(source)
        live_now = live + sum(problem.tensors[tensor].size for tensor in writes[number]) - saved
        peak = max(peak, live_now)
        for tensor in sorted(gone):
            finish(tensor)
        for tensor in writes[number]:
            begin(tensor)
        for tensor in ending[at]:
            if tensor not in gone:
                finish(tensor)
    return peak


class _Arena:
    """What stands where at a moment, by offset."""

    def __init__(self, problem: Problem, plan: Plan, found: list[Violation]):
        self._problem, self._offsets, self._found = problem, plan.offsets, found
        self._live: list[tuple[int, int]] = []
        self._count = 0
        self._widest = 0
        """Size of the largest that has overlapped something."""

    def begin(self, tensor: int) -> None:
        size = self._problem.tensors[tensor].size
        if size == 0:
            return
        key = (self._offsets[tensor], tensor)
        at = bisect_left(self._live, key)
        above = below = at
        while above < len(self._live) and self._live[above][0] < key[0] + size:
            above += 1
        # A lower one that reaches further than its neighbour overlaps that neighbour: there has been an overlap before.
        while below > 0 and (below == at or self._live[below - 1][0] + self._widest > key[0]):
            below -= 1
        others = [other for offset, other in self._live[below:above] if offset + self._problem.tensors[other].size > key[0]]
        for other in others:
            if self._count < MOST_OVERLAPS:
                one, two = sorted((self._problem.tensors[tensor].id, self._problem.tensors[other].id))
                self._found.append(Violation("overlap", f"tensors {one} and {two} share bytes while both are live"))
                self._count += 1
            self._widest = max(self._widest, size, self._problem.tensors[other].size)
        insort(self._live, key)

    def finish(self, tensor: int) -> None:
        if self._problem.tensors[tensor].size:
            del self._live[bisect_left(self._live, (self._offsets[tensor], tensor))]
