"""Hints: guesses of a problem's best plan, in one file format for all kinds of problems.

A hint has a whole plan, or a value for each decision of a certain sort, such as whether a tensor is in fast memory, or both. A
value is a number in [0, 1] that says how likely the decision is. Hints guide the searches and exact models of a ``solve`` call.
They prove nothing and forbid nothing, and every plan is verified regardless of hints.

*Transfer between versions.* A hint for an earlier version of a program is useful for the current version, since most steps are
the same. Steps are matched by what they do, their *signature*, and by the signatures of the steps around them, as in the colour
refinement of Weisfeiler and Leman (1968). Steps whose wider surroundings agree are matched first, then those with smaller
common surroundings. Steps may therefore be renamed and reordered, as compilers do when a program changes elsewhere. If several
steps agree equally well, they are matched in their order. If one version has more of these steps than the other, steps of the
same name are matched first.

Functions raise no errors except those that they document.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from stowplan import kinds
from stowplan.document import Document, PlanDocument, ProblemDocument
from stowplan.errors import InputError, UsageError, brief

FORMAT = "stowplan.hint"
VERSION = 1

#: Searches that follow a hint ignore the values of decisions whose confidence (:attr:`Hint.confidence`) is lower than this.
TRUST = 0.5

#: Largest number of characters of a name in a message.
NAME = 40


class Hint(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Values in [0, 1] for the decisions of a problem, or a plan, or both.

    The :class:`HintValues` of a kind say which sorts of decisions there are; the kind's module ``hint`` defines their order.
    :func:`check_hint` says whether a hint fits a problem.
    """

    kind: str
    """Name of the kind of problem."""
    problem: str
    """Digest of the problem that the hint is for."""
    values: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """For each sort of decision, by its name: a value in [0, 1] for every decision of this sort. Some sorts may be omitted."""
    confidence: tuple[float, ...] = ()
    """How reliable the values are: a number in [0, 1] for each index; empty for full confidence. Values of different sorts at
    the same index belong to the same object of the problem, for example to one instruction of a loop body, and share the number
    at this index. The list is as long as the longest list of values that the problem may have."""
    plan: dict[str, Any] | None = None
    """A plan of the kind, in the form of its JSON files."""
    source: str = ""
    """Origin of the hint, for people."""
    format: str = FORMAT
    version: int = VERSION


P = TypeVar("P", bound=ProblemDocument[PlanDocument])
Q = TypeVar("Q", bound=PlanDocument)


@dataclass(frozen=True)
class HintValues(Generic[P, Q]):
    """The lists of values that hints for problems of a kind may have, and functions that create hints."""

    counts: Callable[[P], Mapping[str, int]]
    """``counts(problem)`` maps the name of each sort of decision to the number of its values."""
    of_plan: Callable[[P, Q], Hint]
    """``of_plan(problem, plan)`` returns a hint with the decisions of the plan."""
    transferred: Callable[[P, P, Hint], Hint]
    """``transferred(problem, earlier, hint)`` turns a hint for an earlier version of the problem into one for the problem. It
    matches the steps of the two versions."""
    optional: tuple[str, ...] = ()
    """Names of the sorts of decision whose values a hint may omit."""


def of_values(
    problem: Any, values: Mapping[str, Sequence[float]], *, confidence: Sequence[float], plan: Any, source: str
) -> Hint:
    """Build a hint for a problem of any kind without checking it (:func:`check_hint` does).

    ``plan`` is a plan of the kind or None; an empty ``confidence`` means full confidence; ``source`` names the origin of the
    hint, for people. Raises UsageError if ``problem`` is not a problem.
    """
    return Hint(
        kind=kinds.of_problem(problem).name,
        problem=problem.digest,
        values={name: tuple(map(float, row)) for name, row in values.items()},
        confidence=tuple(map(float, confidence)),
        plan=None if plan is None else msgspec.json.decode(msgspec.json.encode(plan)),
        source=source,
    )


def check_hint(problem: Any, hint: Hint, known: HintValues[Any, Any] | None) -> None:
    """Check that a hint is for this problem. The validity of its plan is not checked.

    Parameters
    ----------
    problem
        A problem of any kind.
    hint
        A hint, which may have any content.
    known
        The lists of values that hints for this kind may have; None if its hints can only have a plan.

    Raises
    ------
    InputError
        The hint is for another kind or problem, is empty, or has values with a wrong name, number or range.
    UsageError
        The hint has values, but the kind supports only plans as hints; or ``problem`` is not a problem.
    """
    kind = kinds.of_problem(problem)
    if hint.kind != kind.name:
        raise InputError(f"found a hint for {brief(hint.kind, NAME)}, expected one for {kind.name}", place="kind")
    if hint.problem != problem.digest:
        named, expected = brief(hint.problem, NAME), brief(problem.digest, NAME)
        raise InputError(f"found a hint for the problem {named}, expected {expected}", place="problem")
    if not hint.values and hint.plan is None:
        raise InputError("found neither values nor a plan, expected one of them", place="values")
    if not hint.values:
        if hint.confidence:
            raise InputError("found confidences without values, expected none", place="confidence")
        return
    if known is None:
        raise UsageError(f"found values as a hint for {kind.title}, expected a plan: that kind takes no values")
    _check_values(hint, known.counts(problem), known.optional)


def plan_of(hint: Hint) -> Any:
    """Decode the plan of a hint; None if the hint has no plan.

    Raises
    ------
    InputError
        The plan does not have the format of plans of the hint's kind.
    UsageError
        There is no kind of the name that the hint states.
    """
    if hint.plan is None:
        return None
    return kinds.by_name(hint.kind).plan.decode(msgspec.json.encode(hint.plan))


def _check_values(hint: Hint, counts: Mapping[str, int], optional: Sequence[str]) -> None:
    """Raise InputError if names, numbers or ranges of a hint's values are wrong."""
    required = {*counts} - {*optional}
    if not required <= {*hint.values} <= {*counts}:
        named, expected = ", ".join(hint.values), ", ".join(name for name in counts if name in required)
        more = f" and perhaps {', '.join(optional)}" if optional else ""
        raise InputError(f"found values named {brief(named, NAME)}, expected {expected}{more}", place="values")
    for name, values in hint.values.items():
        _check_list(f"values.{name}", values, counts[name])
    if hint.confidence:
        _check_list("confidence", hint.confidence, max(counts.values()))


def _check_list(place: str, values: tuple[float, ...], count: int) -> None:
    """Raise InputError if a list has a wrong length, or a number that is not in [0, 1]."""
    if len(values) != count:
        raise InputError(f"found {len(values)} numbers, expected {count}", place=place)
    for number, value in enumerate(values):
        # This comparison is also false for NaN.
        if not 0.0 <= value <= 1.0:
            shown = f"{value:g}" if math.isfinite(value) else "no finite number"
            raise InputError(f"found {shown}, expected a number from 0 to 1", place=f"{place}[{number}]")


def longest_ascending(values: Sequence[int]) -> list[int]:
    """The indices of a longest strictly ascending subsequence, ascending; empty if there are no values."""
    last_values: list[int] = []
    last_indices: list[int] = []
    predecessors: list[int | None] = []
    for at, value in enumerate(values):
        length = bisect_left(last_values, value)
        last_values[length : length + 1] = [value]
        last_indices[length : length + 1] = [at]
        predecessors.append(last_indices[length - 1] if length else None)
    # last_values[n] is the smallest value that ends an ascending subsequence of n + 1 values, and last_indices[n] its index.
    indices: list[int] = []
    last = last_indices[-1] if last_indices else None
    while last is not None:
        indices.append(last)
        last = predecessors[last]
    return indices[::-1]


#: Number of rounds of refinement. At first, steps are compared alone. After each round, the comparison also includes the
#: producers of the operands, and the readers of the results, of all steps that it included before.
AROUND = 4

#: Largest number of pairs of steps that are compared in order to align the steps between two matched ones. The table of their
#: similarities then has at most 32 MB.
MOST_PAIRS = 4_000_000


class Steps(NamedTuple):
    """The steps of one version of a program, in their order."""

    names: Sequence[str]
    """Name of each step."""
    signatures: Sequence[Hashable]
    """Description of each step without its name."""
    coarse: Sequence[Hashable]
    """A coarser description of each step. Two steps whose signatures differ can be matched only if their coarse descriptions
    agree."""
    sources: Sequence[Sequence[int]]
    """For each step, the numbers of the steps that produce its operands, in the operands' order; -1 if no step does."""


def matched(later: Steps, earlier: Steps) -> list[int]:
    """For each step of the later version, the number of the matched step of the earlier one, or -1; shape ``[steps]``.

    No earlier step is matched twice, and matched steps agree in their signature or in their coarse description.
    """
    matches = [-1] * len(later.names)
    free = set(range(len(earlier.names)))
    colour_of: dict[Hashable, int] = {}
    readers = [_readers(steps) for steps in (later, earlier)]
    for descriptions in ((later.signatures, earlier.signatures), (later.coarse, earlier.coarse)):
        rounds = [_rounds(*side, colour_of) for side in zip((later, earlier), descriptions, readers, strict=True)]
        for later_colours, earlier_colours in zip(*rounds, strict=True):
            _match(matches, free, later_colours, earlier_colours, later, earlier)
    return matches


def aligned(matches: Sequence[int], count: int, likeness: Callable[[int, int], float], least: float) -> list[int]:
    """Match steps that are still unmatched to similar ones, in the order of the steps.

    Matched steps that are in the same order in both versions divide the versions into stretches. Within a stretch, the
    unmatched steps are paired in their order such that the sum of their similarities is largest (sequence alignment by
    Needleman and Wunsch, 1970). A stretch with more than :data:`MOST_PAIRS` pairs is left as it is.

    Parameters
    ----------
    matches
        For each step, the matched step of the earlier version, or -1; shape ``[steps]``.
    count
        Number of steps of the earlier version.
    likeness
        A function that returns the similarity, from 0 to 1, of a step and a step of the earlier version.
    least
        Smallest similarity of a pair.

    Returns
    -------
    list of int
        The extended matches, in the form of ``matches``.
    """
    result = list(matches)
    matched_steps = {*matches}
    olds, news = in_order({old: new for new, old in enumerate(matches) if old >= 0})
    for old, next_old, new, next_new in zip([-1, *olds], [*olds, count], [-1, *news], [*news, len(matches)], strict=True):
        mine = [step for step in range(new + 1, next_new) if matches[step] < 0]
        theirs = [step for step in range(old + 1, next_old) if step not in matched_steps]
        if mine and theirs and len(mine) * len(theirs) <= MOST_PAIRS:
            alike = np.array([[likeness(one, other) for other in theirs] for one in mine])
            for row, column in _best_pairs(np.where(alike < least, 0.0, alike)):
                result[mine[row]] = theirs[column]
    return result


def in_order(later: dict[int, int]) -> tuple[list[int], list[int]]:
    """Choose as many matches as possible such that the matched steps are in the same order in both versions.

    Parameters
    ----------
    later
        The matched step of the later version for steps of the earlier version, ``{earlier: later}``.

    Returns
    -------
    tuple of two lists
        The earlier steps and the later steps of the chosen matches, both ascending.
    """
    pairs = sorted(later.items())
    ordered = [pairs[at] for at in longest_ascending([new for _, new in pairs])]
    return [old for old, _ in ordered], [new for _, new in ordered]


def carried(given: Hint, name: str, numbers: Sequence[int | None], otherwise: float) -> list[float]:
    """Returns the values of a hint for the sort of decision ``name``, one for each index in ``numbers``. Where an index is
    None, the value is ``otherwise``. If the hint has no values of this sort, all values are ``otherwise``."""
    values = given.values.get(name)
    return [otherwise if values is None or number is None else values[number] for number in numbers]


def trust(given: Hint, numbers: Sequence[int | None]) -> list[float]:
    """Returns the confidences of a hint, one for each index in ``numbers``. Where an index is None, the confidence is 0. If the
    hint has no confidences, all other entries are 1."""
    return [0.0 if number is None else given.confidence[number] if given.confidence else 1.0 for number in numbers]


def _rounds(
    steps: Steps, descriptions: Sequence[Hashable], readers: list[list[int]], known: dict[Hashable, int]
) -> list[list[int]]:
    """The colours of the steps after each round of refinement, last round first, ``[AROUND + 1][steps]``.

    A colour is a number that stands for the description of a step and of the steps around it. ``known`` maps each description,
    and each combination of a step's colour with the colours around it, to its colour; new colours are added to it. Both
    versions share it, so that steps with equal descriptions and surroundings have the same colour in both.
    """
    rounds = [[known.setdefault(one, len(known)) for one in descriptions]]
    for _ in range(AROUND):
        rounds.append(_refined(rounds[-1], steps, readers, known))
    return rounds[::-1]


def _readers(steps: Steps) -> list[list[int]]:
    """For each step, the numbers of the steps that read its results."""
    readers: list[list[int]] = [[] for _ in steps.names]
    for number, sources in enumerate(steps.sources):
        for source in {*sources} - {-1}:
            readers[source].append(number)
    return readers


def _refined(colours: list[int], steps: Steps, readers: list[list[int]], known: dict[Hashable, int]) -> list[int]:
    """Refine colours once: two steps still have the same colour if the colours of their sources and readers agree, too."""
    refined = []
    for number, colour in enumerate(colours):
        sources = tuple(-1 if source < 0 else colours[source] for source in steps.sources[number])
        around = (colour, sources, tuple(sorted(colours[reader] for reader in readers[number])))
        refined.append(known.setdefault(around, len(known)))
    return refined


def _match(
    matches: list[int], free: set[int], later_colours: list[int], earlier_colours: list[int], later: Steps, earlier: Steps
) -> None:
    """Match unmatched steps that have the same colour in one round. ``matches`` and ``free`` are updated."""
    groups: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, colour in enumerate(later_colours):
        if matches[number] < 0:
            groups[colour][0].append(number)
    for number in sorted(free):
        groups[earlier_colours[number]][1].append(number)
    for later_group, earlier_group in groups.values():
        if len(later_group) != len(earlier_group):
            by_name = {earlier.names[number]: number for number in earlier_group}
            for number in later_group:
                matches[number] = by_name.pop(later.names[number], -1)
            later_group = [number for number in later_group if matches[number] < 0]
            earlier_group = sorted(by_name.values())
        for number, match in zip(later_group, earlier_group, strict=False):
            matches[number] = match
    free.difference_update(matches)


def _best_pairs(alike: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[tuple[int, int]]:
    """Pairs (row, column), both strictly ascending, with the largest sum of entries; pairs with entry 0 are left out."""
    rows, columns = alike.shape
    # sums[r, c] is the largest sum for the first r rows and the first c columns.
    sums = np.zeros((rows + 1, columns + 1))
    for row in range(rows):
        paired = np.maximum(sums[row, 1:], sums[row, :-1] + alike[row])
        sums[row + 1, 1:] = np.maximum.accumulate(paired)
    pairs = []
    row, column = rows, columns
    while row and column:
        if sums[row, column] == sums[row - 1, column]:
            row -= 1
        elif sums[row, column] == sums[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]
