"""Functions that all forms use: strict reading of numbers and lists, the digest, rounding of a bound, and limits of searches.

This module uses only the standard library. All functions that read raise :class:`MalformedError` if the file is not valid. A
proof that does not show its claim raises :class:`UnprovenError`.

The table ``problems.toml`` lists every field and value that problems may have, and anything else is refused. A new rule that
allows more plans needs a new field, or a new value of one. The checker then refuses such problems until the rule is added to
it; otherwise it would accept proofs that ignore the rule.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

State = TypeVar("State")

#: Largest number that a certificate may contain. It leaves room for prices that are multiples of one over a large denominator,
#: and sums of numbers of this size are still computed quickly.
LARGEST = 2**200

#: Maximum number of steps of a search, which take about a second. In each step the search looks at an operator, a pair of
#: buffers, or a tile on which instructions may be placed.
LOOKS = 1_500_000

#: Messages quote at most this many characters of a value that was found, and of an error of a parser.
SHOWN_VALUE, SHOWN_ERROR = 60, 200

#: A JSON object: a problem, a certificate, or a part of one.
Fields = dict[str, Any]

#: Fields of problems that do not influence plans.
UNRELATED = ("name", "notes", "choices")


class MalformedError(Exception):
    """The file is not valid. The message says where, what was found, and what was expected."""


class UnprovenError(Exception):
    """The proof does not show the claim. The message says where it fails."""


def expect(holds: bool, place: str, value: object, expected: str) -> None:
    """Raises MalformedError unless a property of a file holds."""
    if not holds:
        raise MalformedError(f"{place}: found {' '.join(str(value)[:SHOWN_VALUE].split())}, expected {expected}")


def need(holds: bool, place: str, text: str) -> None:
    """Raises UnprovenError unless a property of a proof holds."""
    if not holds:
        raise UnprovenError(f"{place}: {text}")


def parse(data: bytes, what: str) -> Fields:
    """Parses a JSON object. Raises MalformedError for anything else, also for a repeated field and for numbers such as NaN
    and 1e999."""
    try:
        document = json.loads(data.decode("utf-8"), parse_float=_finite, parse_constant=int, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{what}: no JSON that can be read: {str(error)[:SHOWN_ERROR]}") from None
    expect(isinstance(document, dict), what, type(document).__name__, "an object")
    return dict(document)


def _finite(text: str) -> float:
    """The number of a text; one that is too large for a float is an error."""
    number = float(text)
    expect(math.isfinite(number), "a number", text, "one that a float can hold")
    return number


def _without_repeats(pairs: list[tuple[str, Any]]) -> Fields:
    """The fields of an object; a repeated field is an error."""
    fields = dict(pairs)
    expect(len(fields) == len(pairs), "a field", "it twice", "each once")
    return fields


def digest(problem: Fields) -> str:
    """SHA-256 of a problem in canonical form, in hexadecimal digits.

    The canonical form is JSON with sorted keys, without spaces, escaped to ASCII, and without the fields in UNRELATED.
    """
    rules = {key: value for key, value in problem.items() if key not in UNRELATED}
    return hashlib.sha256(json.dumps(rules, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def whole(part: Fields, name: str, least: int = 0, default: object = None) -> int:
    """Reads the whole number of a field; raises MalformedError if it is anything else, less than ``least``, or too large."""
    value: Any = part.get(name, default)
    expect(type(value) is int and least <= value <= LARGEST, name, value, f"a whole number of at least {least}")
    return int(value)


def list_field(part: Fields, name: str) -> list[Any]:
    """Reads the list of a field; empty if the field is missing."""
    value = part.get(name, [])
    expect(isinstance(value, list), name, type(value).__name__, "a list")
    return [*value]


def numbers(part: Fields, name: str, least: int = 0, length: int | None = None) -> list[int]:
    """Reads a list of whole numbers, which must have the given length if there is one; zeros if the field is missing."""
    values = list_field(part, name) if name in part else [0] * (length or 0)
    expect(length in (None, len(values)), name, f"{len(values)} numbers", f"{length}")
    return [whole({name: value}, name, least) for value in values]


def rows(part: Fields, name: str, width: int | None = None, least: int = 0) -> list[list[int]]:
    """Reads a list of lists of whole numbers, each of ``width`` numbers if that is given; empty if the field is missing."""
    return [numbers({name: row}, name, least, width) for row in list_field(part, name)]


def bound_of(total: int, denominator: int) -> int | None:
    """The smallest whole number that is at least ``total / denominator``.

    A denominator of 0 means that costs are ignored. Then ``total > 0`` shows that no plan exists, and None is returned. If it
    is not greater than 0, nothing is shown, and UnprovenError is raised.
    """
    need(denominator > 0 or total > 0, "proof", "everything fits, as far as this shows")
    return int(-(-total // denominator)) if denominator else None


def walk(waiting: list[State], cost: Callable[[State], int], looks: int = LOOKS) -> Iterator[State]:
    """Yields all states of a list to which the caller may add states meanwhile, the latest first.

    ``cost`` is the number of steps that the search takes in a state. Raises UnprovenError if the costs of the states so far add
    up to ``looks`` or more and there are further states, because an incomplete search shows nothing.
    """
    while waiting:
        need(looks > 0, "proof", "the search takes too long")
        looks -= cost(waiting[-1])
        yield waiting.pop()


#: For each kind, the fields and values that its problems may have.
KNOWN: dict[str, Fields] = tomllib.loads(Path(__file__).with_name("problems.toml").read_text(encoding="utf-8"))

#: Numbers of problems are smaller than this: bytes, picoseconds and clocks have 64 bits.
TOO_LARGE = 2**64

#: The meaning of the words that stand for values in the table: NUMBERS has the range of each word for whole numbers, and TYPES
#: has the Python types of each other word.
NUMBERS = {"natural": range(TOO_LARGE), "positive": range(1, TOO_LARGE), "whole": range(-TOO_LARGE, TOO_LARGE)}
TYPES: dict[str, tuple[type, ...]] = {"text": (str,), "flag": (bool,), "number": (int, float)}

#: A field whose name ends in this may be null.
NULLABLE = "?"


def check_schema(value: Any, schema: Any, place: str) -> None:
    """Raises MalformedError if a value does not match its entry in the table."""
    if isinstance(schema, dict):
        _check_object(value, schema, place)
    elif isinstance(schema, list):
        expect(isinstance(value, list), place, type(value).__name__, "a list")
        for number, part in enumerate(value):
            check_schema(part, schema[0], f"{place}[{number}]")
    elif schema in NUMBERS:
        expect(type(value) is int and value in NUMBERS[schema], place, value, f"a {schema} number below {TOO_LARGE}")
    elif schema in TYPES:
        expect(type(value) in TYPES[schema], place, value, f"a {schema}")
    else:
        # The entry is the value itself, or a choice of several words.
        expect(type(value) is type(schema) and str(value) in str(schema).split(" | "), place, value, str(schema))


def _check_object(value: Any, schema: Fields, place: str) -> None:
    """Checks that every field is in the table, and that it is null only if it may be."""
    expect(isinstance(value, dict), place, type(value).__name__, "an object")
    names = {name.removesuffix(NULLABLE): name for name in schema}
    for name, part in value.items():
        expect(name in names, place, f"the field {name!r}, which the checker does not know", f"one of {', '.join(names)}")
        may_be_null = names[name].endswith(NULLABLE)
        if part is not None or not may_be_null:
            check_schema(part, schema[names[name]], f"{place}.{name}")
