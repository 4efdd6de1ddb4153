"""What all forms share: strict reading of whole numbers and lists, the digest, the bound of a sum, and limits of searches.

Only the standard library. What is malformed raises :class:`MalformedError`, what shows no claim :class:`UnprovenError`.

What problems may say is the table ``problems.toml``; anything else is refused. A rule under which there are more plans is a new
field of a problem, or a new value of one: a proof that knows nothing of it would show nothing.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
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


#: Kinds of problems, and of each what its document may say.
KNOWN: dict[str, Fields] = tomllib.loads(Path(__file__).with_name("problems.toml").read_text(encoding="utf-8"))

#: Numbers of a problem are smaller: bytes, picoseconds and clocks have 64 bits.
TOO_LARGE = 2**64

#: Values of each word for whole numbers, and types of each other word.
NUMBERS = {"natural": range(TOO_LARGE), "positive": range(1, TOO_LARGE), "whole": range(-TOO_LARGE, TOO_LARGE)}
TYPES: dict[str, tuple[type, ...]] = {"text": (str,), "flag": (bool,), "number": (int, float)}

#: At the end of a field's name: it may be null.
NULLABLE = "?"


def check_known(value: Any, known: Any, place: str) -> None:
    """Raise MalformedError where a value is not what the table has for its place."""
    if isinstance(known, dict):
        _check_object(value, known, place)
    elif isinstance(known, list):
        expect(isinstance(value, list), place, type(value).__name__, "a list")
        for number, part in enumerate(value):
            check_known(part, known[0], f"{place}[{number}]")
    elif known in NUMBERS:
        expect(type(value) is int and value in NUMBERS[known], place, value, f"a {known} number below {TOO_LARGE}")
    elif known in TYPES:
        expect(type(value) in TYPES[known], place, value, f"a {known}")
    else:
        # The value itself, or one of several words.
        expect(type(value) is type(known) and str(value) in str(known).split(" | "), place, value, str(known))


def _check_object(value: Any, known: Fields, place: str) -> None:
    """Every field is in the table, and null only where it may be."""
    expect(isinstance(value, dict), place, type(value).__name__, "an object")
    names = {name.removesuffix(NULLABLE): name for name in known}
    for name, part in value.items():
        expect(name in names, place, f"the field {name!r}, which the checker does not know", f"one of {', '.join(names)}")
        may_be_null = names[name].endswith(NULLABLE)
        if part is not None or not may_be_null:
            check_known(part, known[names[name]], f"{place}.{name}")
