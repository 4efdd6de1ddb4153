"""What is guessed of a problem's best plan: values of its decisions, or a whole plan. One file format for all kinds.

A hint guides searches and exact models. It proves nothing and forbids nothing: whatever it says, plans are verified.

A hint for an earlier version of a program says something of the version at hand, since most steps are the same. Steps are
compared by what they are, their *signature*, and by the signatures around them, as in the colour refinement of Weisfeiler and
Leman 1968. First those that agree far around are matched, then those that agree less far. So steps may be renamed and
reordered, as compilers do when a program changes elsewhere. Where several agree alike, their order decides, and where there
are not as many of them in both, their names before it.
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

#: Decisions with a lower confidence than this are left to whoever follows a hint.
TRUST = 0.5

#: Characters of a name in a message.
NAME = 40


class Hint(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Values in [0, 1] for the decisions of a problem, or a plan, or both.

    Which decisions a kind has, and in which order, its :class:`HintValues` say.
    :func:`check_hint` says whether a hint fits a problem.
    """

    kind: str
    """Kind of the problem."""
    problem: str
    """Digest of the problem that it is for."""
    values: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """By the name of each sort of decision: a value in [0, 1] for every decision of that sort. Some may be left out."""
    confidence: tuple[float, ...] = ()
    """How far to trust the values, in [0, 1], a number for every place in the lists of values; empty for full trust."""
    plan: dict[str, Any] | None = None
    """A plan of the kind, as in its files."""
    source: str = ""
    """Who says so, for people."""
    format: str = FORMAT
    version: int = VERSION


P = TypeVar("P", bound=ProblemDocument[PlanDocument])
Q = TypeVar("Q", bound=PlanDocument)


@dataclass(frozen=True)
class HintValues(Generic[P, Q]):
    """The values that hints for problems of a kind may have."""

    counts: Callable[[P], Mapping[str, int]]
    """``(problem)`` to the number of values by their names."""
    of_plan: Callable[[P, Q], Hint]
    """``(problem, plan)`` to a hint for what the plan decides."""
    transferred: Callable[[P, P, Hint], Hint]
    """``(problem, earlier problem, its hint)`` to a hint for the problem, where steps are known again."""
    optional: tuple[str, ...] = ()
    """Names that may be left out."""


def of_values(
    problem: Any, values: Mapping[str, Sequence[float]], *, confidence: Sequence[float], plan: Any, source: str
) -> Hint:
    """A hint for a problem of any kind; :func:`check_hint` says whether it fits. ``plan`` is a plan of the kind, or None."""
    return Hint(
        kind=kinds.of_problem(problem).name,
        problem=problem.digest,
        values={name: tuple(map(float, row)) for name, row in values.items()},
        confidence=tuple(map(float, confidence)),
        plan=None if plan is None else msgspec.json.decode(msgspec.json.encode(plan)),
        source=source,
    )


def check_hint(problem: Any, hint: Hint, known: HintValues[Any, Any] | None) -> None:
    """Check that a hint is one for this problem; the validity of its plan is not looked at.

    Parameters
    ----------
    problem
        Of any kind.
    hint
        Anything that was read as a hint.
    known
        The values that hints for this kind may have; None where they have none.

    Raises
    ------
    InputError
        It is for another kind or problem, says nothing, or has values of a wrong name, number or range.
    UsageError
        It has values, and the kind takes only plans as hints.
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
    """The plan of a hint, decoded; None where it has none. Raises InputError where it is no plan of the hint's kind."""
    if hint.plan is None:
        return None
    return kinds.by_name(hint.kind).plan.decode(msgspec.json.encode(hint.plan))


def _check_values(hint: Hint, counts: Mapping[str, int], optional: Sequence[str]) -> None:
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
    if len(values) != count:
        raise InputError(f"found {len(values)} numbers, expected {count}", place=place)
    for number, value in enumerate(values):
        # Not a number is in no range.
        if not 0.0 <= value <= 1.0:
            shown = f"{value:g}" if math.isfinite(value) else "no finite number"
            raise InputError(f"found {shown}, expected a number from 0 to 1", place=f"{place}[{number}]")


def longest_ascending(values: Sequence[int]) -> list[int]:
    """Places of a longest ascending subsequence of unlike values, ascending."""
    ends: list[int] = []
    places: list[int] = []
    before: list[int | None] = []
    for at, value in enumerate(values):
        length = bisect_left(ends, value)
        ends[length : length + 1] = [value]
        places[length : length + 1] = [at]
        before.append(places[length - 1] if length else None)
    tails: list[int] = []
    last = places[-1] if places else None
    while last is not None:
        tails.append(last)
        last = before[last]
    return tails[::-1]


#: How far around steps are compared at first, in steps.
AROUND = 4

#: Pairs of steps that are compared at most to align what lies between two that are known.
MOST_PAIRS = 4_000_000


class Steps(NamedTuple):
    """The steps of one version, in their order."""

    names: Sequence[str]
    signatures: Sequence[Hashable]
    """What each is."""
    coarse: Sequence[Hashable]
    """What of that must agree at least, for those that are left in the end."""
    sources: Sequence[Sequence[int]]
    """For each the steps that it takes something from, by number, in the order of its operands; -1 for what is none."""


def matched(later: Steps, earlier: Steps) -> list[int]:
    """For each step the step of the earlier version that it was, each at most once, -1 for none; shape ``[steps]``.

    Matched steps agree in ``coarse`` at least.
    """
    matches = [-1] * len(later.names)
    free = set(range(len(earlier.names)))
    known: dict[Hashable, int] = {}
    readers = [_readers(steps) for steps in (later, earlier)]
    for begins in ((later.signatures, earlier.signatures), (later.coarse, earlier.coarse)):
        rounds = [_rounds(*side, known) for side in zip((later, earlier), begins, readers, strict=True)]
        for here, there in zip(*rounds, strict=True):
            _match(matches, free, here, there, later, earlier)
    return matches


def aligned(matches: Sequence[int], count: int, likeness: Callable[[int, int], float], least: float) -> list[int]:
    """``found`` with more of the steps known, by their order.

    Steps that are known and in the same order in both versions divide them into stretches. Within a stretch, those left are
    paired in their order so that their likeness is largest in sum (as sequences are aligned by Needleman and Wunsch 1970).

    Parameters
    ----------
    found
        For each step that of the earlier version, -1 for none; shape ``[steps]``.
    count
        Steps of the earlier version.
    likeness
        Of a step and one of the earlier version, from 0 to 1.
    least
        Pairs that are less alike are none.
    """
    result = list(matches)
    taken = {*matches}
    olds, news = in_order({old: new for new, old in enumerate(matches) if old >= 0})
    for old, next_old, new, next_new in zip([-1, *olds], [*olds, count], [-1, *news], [*news, len(matches)], strict=True):
        mine = [step for step in range(new + 1, next_new) if matches[step] < 0]
        theirs = [step for step in range(old + 1, next_old) if step not in taken]
        if mine and theirs and len(mine) * len(theirs) <= MOST_PAIRS:
            alike = np.array([[likeness(one, other) for other in theirs] for one in mine])
            for row, column in _best_pairs(np.where(alike < least, 0.0, alike)):
                result[mine[row]] = theirs[column]
    return result


def in_order(later: dict[int, int]) -> tuple[list[int], list[int]]:
    """Earlier and later steps of as many pairs as are in the same order in both."""
    pairs = sorted(later.items())
    kept = [pairs[at] for at in longest_ascending([new for _, new in pairs])]
    return [old for old, _ in kept], [new for _, new in kept]


def carried(given: Hint, name: str, numbers: Sequence[int | None], otherwise: float) -> list[float]:
    """Values of a hint at these places in its lists; ``otherwise`` where there is no place, or the hint lacks the name."""
    values = given.values.get(name)
    return [otherwise if values is None or number is None else values[number] for number in numbers]


def trust(given: Hint, numbers: Sequence[int | None]) -> list[float]:
    """The hint's confidence at these places; 0 where there is none."""
    return [0.0 if number is None else given.confidence[number] if given.confidence else 1.0 for number in numbers]


def _rounds(steps: Steps, begin: Sequence[Hashable], readers: list[list[int]], known: dict[Hashable, int]) -> list[list[int]]:
    """Colours of the steps, those that see furthest first; the same in both versions, by ``known``."""
    rounds = [[known.setdefault(one, len(known)) for one in begin]]
    for _ in range(AROUND):
        rounds.append(_refined(rounds[-1], steps, readers, known))
    return rounds[::-1]


def _readers(steps: Steps) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in steps.names]
    for number, sources in enumerate(steps.sources):
        for source in {*sources} - {-1}:
            readers[source].append(number)
    return readers


def _refined(colours: list[int], steps: Steps, readers: list[list[int]], known: dict[Hashable, int]) -> list[int]:
    """Colours that agree where those of sources and readers agree, too."""
    refined = []
    for number, colour in enumerate(colours):
        sources = tuple(-1 if source < 0 else colours[source] for source in steps.sources[number])
        around = (colour, sources, tuple(sorted(colours[reader] for reader in readers[number])))
        refined.append(known.setdefault(around, len(known)))
    return refined


def _match(matches: list[int], free: set[int], here: list[int], there: list[int], later: Steps, earlier: Steps) -> None:
    """Match what is still free by one round's colours."""
    groups: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, colour in enumerate(here):
        if matches[number] < 0:
            groups[colour][0].append(number)
    for number in sorted(free):
        groups[there[number]][1].append(number)
    for mine, theirs in groups.values():
        if len(mine) != len(theirs):
            by_name = {earlier.names[number]: number for number in theirs}
            for number in mine:
                matches[number] = by_name.pop(later.names[number], -1)
            mine = [number for number in mine if matches[number] < 0]
            theirs = sorted(by_name.values())
        for number, other in zip(mine, theirs, strict=False):
            matches[number] = other
    free.difference_update(matches)


def _best_pairs(alike: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[tuple[int, int]]:
    """Rows and columns, both ascending, of the largest sum; those of 0 are left out."""
    rows, columns = alike.shape
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
