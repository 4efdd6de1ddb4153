"""Strict reading of problems and certificates: whole numbers and lists, nothing twice, no surprises; and the digest.

Only the standard library. What is malformed raises :class:`MalformedError`, what shows no claim :class:`UnprovenError`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

#: No number of a certificate is larger: common denominators of thousands of fractions are smaller, and sums stay cheap.
LARGEST = 2**200

#: Looks of a search at an operator, a pair of buffers or a place: about a second of them.
LOOKS = 1_500_000

Fields = dict[str, Any]

#: Fields of problems that no plan depends on.
UNRELATED = ("name", "notes", "choices")


class MalformedError(Exception):
    """The file is not what it should be; the text says where, what was found, and what was expected."""


class UnprovenError(Exception):
    """The proof does not show what is claimed; the text says where it fails."""


def expect(holds: bool, place: str, found: object, expected: str) -> None:
    """Raise MalformedError where a file is not what it should be."""
    if not holds:
        raise MalformedError(f"{place}: found {' '.join(str(found)[:60].split())}, expected {expected}")


def need(holds: bool, place: str, text: str) -> None:
    """Raise UnprovenError where a proof does not hold."""
    if not holds:
        raise UnprovenError(f"{place}: {text}")


def parse(data: bytes, what: str) -> Fields:
    """A JSON object; raises MalformedError for all else, also for a field that is there twice and numbers that are none."""
    try:
        found = json.loads(data.decode("utf-8"), parse_constant=int, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{what}: no JSON that can be read: {str(error)[:200]}") from None
    expect(isinstance(found, dict), what, type(found).__name__, "an object")
    return dict(found)


def _once(pairs: list[tuple[str, Any]]) -> Fields:
    found = dict(pairs)
    expect(len(found) == len(pairs), "a field", "it twice", "each once")
    return found


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
    found = part.get(name, [])
    expect(isinstance(found, list), name, type(found).__name__, "a list")
    return [*found]


def numbers(part: Fields, name: str, least: int = 0, length: int | None = None) -> list[int]:
    """A list of whole numbers, of a length where that is given; zeros where the field is missing."""
    found = listed(part, name) if name in part else [0] * (length or 0)
    expect(length in (None, len(found)), name, f"{len(found)} numbers", f"{length}")
    return [whole({name: each}, name, least) for each in found]


def rows(part: Fields, name: str, width: int | None = None, least: int = 0) -> list[list[int]]:
    """A list of lists of so many whole numbers, where that is given; empty where the field is missing."""
    return [numbers({name: row}, name, least, width) for row in listed(part, name)]


def rounded_up(total: int, unit: int) -> int | None:
    """A bound of ``total / unit``; None where the unit is 0: then more than nothing shows that nothing fits."""
    need(unit > 0 or total > 0, "proof", "everything fits, as far as this shows")
    return int(-(-total // unit)) if unit else None


def walk(waiting: list[Any], cost: Callable[[Any], int], looks: int = LOOKS) -> Iterator[Any]:
    """All of a list that grows while it is walked, the latest first; raises UnprovenError where it costs too many looks."""
    while waiting:
        need(looks > 0, "proof", "the search takes too long")
        looks -= cost(waiting[-1])
        yield waiting.pop()
