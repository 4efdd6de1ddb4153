"""What all forms share: strict reading of whole numbers and lists, the digest, the bound of a sum, and limits of searches.

Only the standard library. What is malformed raises :class:`MalformedError`, what shows no claim :class:`UnprovenError`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

State = TypeVar("State")

#: No number of a certificate is larger: common denominators of thousands of fractions are smaller, and sums stay cheap.
LARGEST = 2**200

#: Looks of a search at an operator, a pair of buffers or a place: about a second of them.
LOOKS = 1_500_000

#: Characters of what was found, and of a reader's own error, that a message shows.
SHOWN_VALUE, SHOWN_ERROR = 60, 200

#: An object of JSON: of a problem, of a certificate, or of a part of one.
Fields = dict[str, Any]

#: Fields of problems that no plan depends on.
UNRELATED = ("name", "notes", "choices")


class MalformedError(Exception):
    """The file is not what it should be; the text says where, what was found, and what was expected."""


class UnprovenError(Exception):
    """The proof does not show what is claimed; the text says where it fails."""


def expect(holds: bool, place: str, value: object, expected: str) -> None:
    """Raise MalformedError where a file is not what it should be."""
    if not holds:
        raise MalformedError(f"{place}: found {' '.join(str(value)[:SHOWN_VALUE].split())}, expected {expected}")


def need(holds: bool, place: str, text: str) -> None:
    """Raise UnprovenError where a proof does not hold."""
    if not holds:
        raise UnprovenError(f"{place}: {text}")


def parse(data: bytes, what: str) -> Fields:
    """A JSON object; raises MalformedError for all else, also for a field that is there twice and numbers that are none."""
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=int, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{what}: no JSON that can be read: {str(error)[:SHOWN_ERROR]}") from None
    expect(isinstance(document, dict), what, type(document).__name__, "an object")
    return dict(document)


def _without_repeats(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    expect(len(fields) == len(pairs), "a field", "it twice", "each once")
    return fields


def digest(problem: Fields) -> str:
    """Hex SHA-256 of a problem's document in canonical form.

    That is JSON with sorted keys, without spaces, escaped to ASCII; without what says nothing of plans, UNRELATED.
    """
    rules = {key: value for key, value in problem.items() if key not in UNRELATED}
    return hashlib.sha256(json.dumps(rules, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def whole(part: Fields, name: str, least: int = 0, default: object = None) -> int:
    """A whole number of at least ``least``."""
    value: Any = part.get(name, default)
    expect(type(value) is int and least <= value <= LARGEST, name, value, f"a whole number of at least {least}")
    return int(value)


def listed(part: Fields, name: str) -> list[Any]:
    """A list; empty where the field is missing."""
    value = part.get(name, [])
    expect(isinstance(value, list), name, type(value).__name__, "a list")
    return [*value]


def numbers(part: Fields, name: str, least: int = 0, length: int | None = None) -> list[int]:
    """A list of whole numbers, of a length where that is given; zeros where the field is missing."""
    values = listed(part, name) if name in part else [0] * (length or 0)
    expect(length in (None, len(values)), name, f"{len(values)} numbers", f"{length}")
    return [whole({name: value}, name, least) for value in values]


def rows(part: Fields, name: str, width: int | None = None, least: int = 0) -> list[list[int]]:
    """A list of lists of so many whole numbers, where that is given; empty where the field is missing."""
    return [numbers({name: row}, name, least, width) for row in listed(part, name)]


def bound_of(total: int, denominator: int) -> int | None:
    """The least whole number that is no less than ``total / denominator``.

    Where the denominator is 0, costs count nothing: then ``total > 0`` shows that nothing fits, and None is returned.
    """
    need(denominator > 0 or total > 0, "proof", "everything fits, as far as this shows")
    return int(-(-total // denominator)) if denominator else None


def walk(waiting: list[State], cost: Callable[[State], int], looks: int = LOOKS) -> Iterator[State]:
    """All states of a list that grows while it is walked, the latest first.

    Raises UnprovenError where ``cost``, summed over the states, exceeds ``looks``: a search that is cut short shows nothing.
    """
    while waiting:
        need(looks > 0, "proof", "the search takes too long")
        looks -= cost(waiting[-1])
        yield waiting.pop()
