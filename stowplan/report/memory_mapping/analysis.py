"""What a plan gains and where the time goes: tensors by saving, steps by latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem, Step

Limit = Literal["compute", "fast memory", "slow memory", "its floor"]


@dataclass(frozen=True)
class TensorUse:
    """What fast memory does for one tensor."""

    tensor: int
    saving_ps: int
    """What the program would lose if this tensor alone were served from slow memory, stalls aside."""
    fast_uses: int
    uses: int
    residencies: int
    copies: int


@dataclass(frozen=True)
class StepTime:
    """Latency of one step over all its runs."""

    step: int
    latency_ps: int
    all_slow_ps: int
    floor_ps: int
    limit: Limit
    """What bounds it: ``slow memory`` where another placement could make it faster; at its floor, ``compute`` where a term
    without memory traffic is the largest, ``fast memory`` where one with traffic is, ``its floor`` where a table hides it."""


def analyse_tensors(problem: Problem, plan: Plan) -> list[TensorUse]:
    """Every tensor with a fast use, the largest saving first."""
    saving: Counter[int] = Counter()
    fast_uses: Counter[int] = Counter()
    uses = Counter(problem.tensor_of_use)
    for step, served in zip(problem.steps, _served(problem, plan), strict=True):
        if not any(served):
            continue
        latency = step.latency_ps(served)
        for tensor in dict.fromkeys(use.tensor for use, is_fast in zip(step.uses, served, strict=True) if is_fast):
            without = [is_fast and use.tensor != tensor for use, is_fast in zip(step.uses, served, strict=True)]
            saving[tensor] += step.weight * (step.latency_ps(without) - latency)
            fast_uses[tensor] += sum(served) - sum(without)
    residencies = Counter(residency.tensor for residency in plan.residencies)
    copies = Counter(copy.tensor for copy in plan.copies)
    rows = [
        TensorUse(tensor, saving[tensor], fast_uses[tensor], uses[tensor], residencies[tensor], copies[tensor])
        for tensor in saving
    ]
    return sorted(rows, key=lambda row: (-row.saving_ps, row.tensor))


def analyse_steps(problem: Problem, plan: Plan | None) -> list[StepTime]:
    """Every step, the longest (over all its runs) first; without a plan everything is slow."""
    rows = []
    for index, (step, served) in enumerate(zip(problem.steps, _served(problem, plan), strict=True)):
        latency, floor = step.latency_ps(served), step.floor_ps
        rows.append(
            StepTime(
                step=index,
                latency_ps=step.weight * latency,
                all_slow_ps=step.weight * step.latency_ps([False] * len(served)),
                floor_ps=step.weight * floor,
                limit="slow memory" if latency > floor else _limit_at_floor(step, latency),
            )
        )
    return sorted(rows, key=lambda row: (-row.latency_ps, row.step))


def _served(problem: Problem, plan: Plan | None) -> Iterator[Sequence[bool]]:
    """For each step, which of its uses fast memory serves."""
    fast = set() if plan is None else set(plan.fast_uses)
    return problem.by_step([use in fast for use in range(problem.use_count)])


def _limit_at_floor(step: Step, latency: int) -> Limit:
    if step.table is not None:
        return "its floor"
    without_traffic = (piece.base_ps for piece in step.pieces if not any(piece.slow_ps) and not any(piece.fast_ps))
    return "compute" if latency in without_traffic else "fast memory"
