"""A hint for one version of a program from a hint for an earlier one, as a build sees them: most steps are the same.

Steps are matched by what they use (:mod:`stowplan.models.earlier`). What has no counterpart is left open, with
a confidence of 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.models.earlier import Steps, carried, matched, trust
from stowplan.models.hint import Hint, check, plan_of
from stowplan.models.memory_mapping.earlier_plan import carried_plan
from stowplan.models.memory_mapping.hint import FAST, KEEP, PLACE, hint
from stowplan.models.memory_mapping.problem import Problem, Step

#: What a step is, but for its name: its opcode, and size and role of each use.
Signature = tuple[str, tuple[tuple[int, bool], ...]]


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
    for tensor, step in _accesses(problem):
        number = None
        if before[step] >= 0:
            # As many uses, in the same order.
            position = next(at for at, use in enumerate(problem.steps[step].uses) if use.tensor == tensor)
            number = known.get((earlier.steps[before[step]].uses[position].tensor, before[step]))
        numbers.append(number)
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


def matched_steps(problem: Problem, earlier: Problem) -> list[int]:
    """For each step of a problem the step of an earlier version that it was, -1 for none; shape ``[T]``."""
    return matched(_steps(problem), _steps(earlier))


def _accesses(problem: Problem) -> Iterator[tuple[int, int]]:
    """Tensor and step of every access, in the order of a hint's values."""
    steps: list[dict[int, None]] = [{} for _ in problem.tensors]
    for index, step in enumerate(problem.steps):
        for use in step.uses:
            steps[use.tensor][index] = None
    for tensor, used in enumerate(steps):
        for step_index in used:
            yield tensor, step_index


def _steps(problem: Problem) -> Steps:
    """A step takes from those that wrote what it uses."""
    writer = [-1] * len(problem.tensors)
    sources = []
    for number, step in enumerate(problem.steps):
        sources.append([writer[use.tensor] for use in step.uses])
        for use in step.uses:
            if use.is_output:
                writer[use.tensor] = number
    return Steps(
        [step.name for step in problem.steps],
        [_signature(problem, step) for step in problem.steps],
        [(step.opcode, tuple(use.is_output for use in step.uses)) for step in problem.steps],
        sources,
    )


def _signature(problem: Problem, step: Step) -> Signature:
    return step.opcode, tuple((problem.tensors[use.tensor].size, use.is_output) for use in step.uses)
