"""Hints for memory mapping: two values for each access of each tensor.

``fast`` says whether the access is served from fast memory, ``keep`` whether the tensor stays there from this access to its
next one. Accesses are those of :mod:`~stowplan.models.memory_mapping.accesses`: tensor by tensor, each in step order.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.accesses import TensorAccesses, access_sequences
from stowplan.models.memory_mapping.plan import Plan, Residency
from stowplan.models.memory_mapping.problem import Problem

FAST, KEEP = "fast", "keep"


def counts(problem: Problem) -> dict[str, int]:
    """How many values of each name a hint has: one for each access, that is for each pair of a step and a tensor it uses."""
    accesses = sum(len({use.tensor for use in step.uses}) for step in problem.steps)
    return {FAST: accesses, KEEP: accesses}


def hint(
    problem: Problem,
    fast: Sequence[float],
    keep: Sequence[float],
    *,
    confidence: Sequence[float] = (),
    plan: Plan | None = None,
    source: str = "",
) -> Hint:
    """A hint of these values, each of shape ``[accesses]``, for a problem."""
    return Hint(
        kind="memory_mapping",
        problem=problem.digest,
        values={FAST: tuple(map(float, fast)), KEEP: tuple(map(float, keep))},
        confidence=tuple(map(float, confidence)),
        plan=None if plan is None else msgspec.json.decode(msgspec.json.encode(plan)),
        source=source,
    )


def of_plan(problem: Problem, plan: Plan, source: str = "plan") -> Hint:
    """The values that a plan has, 0 or 1, and the plan itself.

    Parameters
    ----------
    problem
        The problem that the plan is for.
    plan
        A valid plan.
    source
        Who made it.
    """
    served = {*plan.fast_uses}
    stays: dict[int, list[Residency]] = {}
    for residency in plan.residencies:
        stays.setdefault(residency.tensor, []).append(residency)
    fast: list[float] = []
    keep: list[float] = []
    for sequence in access_sequences(problem):
        lives = stays.get(sequence.tensor, [])
        for number, access in enumerate(sequence.accesses):
            fast.append(float(all(use in served for use in access.uses)))
            keep.append(float(_stays(sequence, number, lives)))
    return hint(problem, fast, keep, plan=plan, source=source)


def _stays(sequence: TensorAccesses, number: int, lives: Sequence[Residency]) -> bool:
    """Whether one residency holds an access and the next one."""
    if number + 1 == len(sequence):
        return False
    first, last = sequence.accesses[number].step, sequence.accesses[number + 1].step
    return any(life.start <= first and last < life.end for life in lives)
