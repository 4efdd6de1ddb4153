"""Hints for memory mapping: two values for each access of each tensor, and maybe a third.

``fast`` says whether the access is served from fast memory, ``keep`` whether the tensor stays there from this access to its
next one, ``place`` where it then stands, in parts of the capacity. Accesses are those of
:mod:`~stowplan.models.memory_mapping.accesses`: tensor by tensor, each in step order.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.hint import Hint, of_values
from stowplan.models.memory_mapping.accesses import TensorAccesses, access_sequences
from stowplan.models.memory_mapping.plan import Plan, Residency
from stowplan.models.memory_mapping.problem import Problem

FAST, KEEP, PLACE = "fast", "keep", "place"

#: Values that may be left out.
OPTIONAL = (PLACE,)


def counts(problem: Problem) -> dict[str, int]:
    """How many values of each name a hint has: one for each access, that is for each pair of a step and a tensor it uses."""
    accesses = sum(len({use.tensor for use in step.uses}) for step in problem.steps)
    return dict.fromkeys((FAST, KEEP, PLACE), accesses)


def hint(
    problem: Problem,
    fast: Sequence[float],
    keep: Sequence[float],
    *,
    place: Sequence[float] = (),
    confidence: Sequence[float] = (),
    plan: Plan | None = None,
    source: str = "",
) -> Hint:
    """A hint of these values, each of shape ``[accesses]``, for a problem; without ``place`` where that is empty."""
    values = {FAST: fast, KEEP: keep} | ({PLACE: place} if place else {})
    return of_values(problem, values, confidence=confidence, plan=plan, source=source)


def of_plan(problem: Problem, plan: Plan, source: str = "plan") -> Hint:
    """The values that a plan has, 0 or 1 but for places, and the plan itself.

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
    place: list[float] = []
    for sequence in access_sequences(problem):
        lives = stays.get(sequence.tensor, [])
        for number, access in enumerate(sequence.accesses):
            fast.append(float(all(use in served for use in access.uses)))
            keep.append(float(_stays(sequence, number, lives)))
            held = next((life for life in lives if life.start <= access.step < life.end), None)
            place.append(0.0 if held is None else held.offset / max(1, problem.capacity))
    return hint(problem, fast, keep, place=place, plan=plan, source=source)


def _stays(sequence: TensorAccesses, number: int, lives: Sequence[Residency]) -> bool:
    """Whether one residency holds an access and the next one."""
    if number + 1 == len(sequence):
        return False
    first, last = sequence.accesses[number].step, sequence.accesses[number + 1].step
    return any(life.start <= first and last < life.end for life in lives)
