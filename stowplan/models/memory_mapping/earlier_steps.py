"""Steps of a program, and their uses, as those of an earlier version of it.

Most are known again by what they use and what is around them (:mod:`stowplan.models.earlier`). A change may alter steps all
through a program, as another rule for updates does, which the compiler fuses with gradients: what is left is known by its
place between steps that are known, where most of its bytes are the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from stowplan.models.earlier import Steps, aligned, matched
from stowplan.models.memory_mapping.problem import Problem, Step

#: What a step is, but for its name: its opcode, and size and role of each use.
Signature = tuple[str, tuple[tuple[int, bool], ...]]

#: Part of the bytes that two steps use which must be the same in size and role.
ALIKE = 0.5


def matched_steps(problem: Problem, earlier: Problem) -> list[int]:
    """For each step of a problem the step of an earlier version that it was, -1 for none; shape ``[T]``."""
    found = matched(_steps(problem), _steps(earlier))
    likeness = _Likeness(problem, earlier)
    return aligned(found, len(earlier.steps), likeness, ALIKE)


def paired_uses(problem: Problem, step: int, earlier: Problem, before: int) -> list[tuple[int, int]]:
    """Places of the uses of a step, and of the step that it was, that are the same use.

    Where both have as many of each role in the same order, by place; else the first of a size and role is the first of these,
    and so on.
    """
    mine, theirs = (_signature(each, each.steps[number])[1] for each, number in ((problem, step), (earlier, before)))
    if [is_output for _, is_output in mine] == [is_output for _, is_output in theirs]:
        return [(place, place) for place in range(len(mine))]
    places: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for place in reversed(range(len(theirs))):
        places[theirs[place]].append(place)
    return [(place, places[use].pop()) for place, use in enumerate(mine) if places[use]]


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


class _Likeness:
    """How alike two steps are: of the bytes that the larger one uses, the part that both have in uses of one size and role."""

    def __init__(self, problem: Problem, earlier: Problem):
        self._signatures = [[_signature(each, step) for step in each.steps] for each in (problem, earlier)]
        self._known: dict[tuple[Signature, Signature], float] = {}

    def __call__(self, step: int, before: int) -> float:
        pair = self._signatures[0][step], self._signatures[1][before]
        found = self._known.get(pair)
        if found is None:
            found = self._known[pair] = _likeness(*pair)
        return found


def _likeness(one: Signature, other: Signature) -> float:
    if one[0] != other[0]:
        return 0.0
    mine, theirs = Counter(one[1]), Counter(other[1])
    most = max(sum(size * count for (size, _), count in each.items()) for each in (mine, theirs))
    return sum(size * count for (size, _), count in (mine & theirs).items()) / most if most else 0.0
