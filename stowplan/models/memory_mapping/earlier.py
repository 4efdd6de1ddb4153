"""A hint for one version of a program from a hint for an earlier one, as a build sees them: most steps are the same.

Steps are matched by what they use (:mod:`stowplan.models.memory_mapping.earlier_steps`). What has no counterpart is left open,
with a confidence of 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.models.earlier import carried, trust
from stowplan.models.hint import Hint, check, plan_of
from stowplan.models.memory_mapping.earlier_plan import carried_plan
from stowplan.models.memory_mapping.earlier_steps import matched_steps, paired_uses
from stowplan.models.memory_mapping.hint import FAST, KEEP, PLACE, hint
from stowplan.models.memory_mapping.problem import Problem


def transferred(problem: Problem, earlier: Problem, given: Hint) -> Hint:
    """The hint for a problem that a hint for an earlier version of it stands for.

    Parameters
    ----------
    problem
        What is to be solved.
    earlier
        The version that the hint is for.
    given
        With values, for ``earlier``; a plan that it has is valid, and goes along as far as it is one for the problem.

    Raises
    ------
    InputError, UsageError
        The hint is not for the earlier version.
    """
    check(earlier, given)
    known = {access: number for number, access in enumerate(_accesses(earlier))}
    before = matched_steps(problem, earlier)
    numbers: list[int | None] = []
    tensors: dict[int, dict[int, int]] = {}
    for tensor, step in _accesses(problem):
        if before[step] >= 0 and step not in tensors:
            # Of several uses of a tensor the first one counts.
            pairs = paired_uses(problem, step, earlier, before[step])
            uses, theirs = problem.steps[step].uses, earlier.steps[before[step]].uses
            tensors[step] = {uses[place].tensor: theirs[other].tensor for place, other in reversed(pairs)}
        old = tensors.get(step, {}).get(tensor)
        numbers.append(None if old is None else known.get((old, before[step])))
    plan = plan_of(given)
    fast, keep, place = (carried(given, name, numbers, 0.5) for name in (FAST, KEEP, PLACE))
    return hint(
        problem,
        fast,
        keep,
        place=place if PLACE in given.values else (),
        confidence=trust(given, numbers),
        plan=None if plan is None else carried_plan(problem, earlier, plan, before),
        source=given.source,
    )


def _accesses(problem: Problem) -> Iterator[tuple[int, int]]:
    """Tensor and step of every access, in the order of a hint's values."""
    steps: list[dict[int, None]] = [{} for _ in problem.tensors]
    for index, step in enumerate(problem.steps):
        for use in step.uses:
            steps[use.tensor][index] = None
    for tensor, used in enumerate(steps):
        for step_index in used:
            yield tensor, step_index
