"""Strict reading of problems and certificates: whole numbers and lists, nothing twice, no surprises; and the digest.

Only the standard library. What is malformed raises :class:`MalformedError`, what shows no claim :class:`UnprovenError`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn

#: Nothing in a certificate is larger: sums stay cheap whatever a file says.
LARGEST = 1 << 200


class MalformedError(Exception):
    """The file is not what it should be; the text says where, what was found, and what was expected."""


class UnprovenError(Exception):
    """The proof does not show what is claimed; the text says where it fails."""


def parse(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object; raises MalformedError for all else, also for a field that is there twice and numbers that are none."""

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"found {name}, expected a number")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("found a field twice, expected each once")
        return found

    try:
        found = json.loads(data.decode("utf-8"), parse_constant=no_constant, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{what}: no JSON that can be read: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise MalformedError(f"{what}: found no JSON object, expected one")
    return found


def digest(problem: dict[str, Any]) -> str:
    """Hex SHA-256 of a problem's document in canonical form.

    That is JSON with sorted keys, without spaces, escaped to ASCII; without ``name`` and ``notes``, which say nothing of plans.
    """
    rules = {key: value for key, value in problem.items() if key not in ("name", "notes")}
    return hashlib.sha256(json.dumps(rules, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Part:
    """An object of a certificate, read field by field; every field must be read by :meth:`end`."""

    def __init__(self, value: object, place: str):
        if not isinstance(value, dict):
            raise MalformedError(f"{place}: found {type(value).__name__}, expected an object")
        self._value, self._place, self._left = value, place, set(value)

    def get(self, name: str, default: object = ...) -> Any:
        """A field; raises MalformedError where it is missing and has no default."""
        if name not in self._value and default is ...:
            raise MalformedError(f"{self._place}.{name}: missing")
        self._left.discard(name)
        return self._value.get(name, default)

    def whole(self, name: str, least: int = 0, default: object = ...) -> int:
        """A whole number."""
        return whole(self.get(name, default), f"{self._place}.{name}", least)

    def rows(self, name: str, width: int, least: int = 0) -> list[list[int]]:
        """A list of lists of so many whole numbers; none where the field is missing."""
        return [numbers(row, f"{self._place}.{name}", least, width) for row in listed(self.get(name, []), name)]

    def list(self, name: str, least: int = 0, length: int | None = None) -> list[int]:
        """A list of whole numbers; zeros where the field is missing and the length known."""
        return numbers(self.get(name, [0] * (length or 0)), f"{self._place}.{name}", least, length)

    def end(self) -> None:
        """Raise MalformedError where there are fields that nothing asked for."""
        if self._left:
            raise MalformedError(f"{self._place}: found the unknown field {min(self._left)[:40]!r}")


def whole(value: object, place: str, least: int = 0, most: int = LARGEST) -> int:
    """A whole number of at least ``least`` and at most ``most``."""
    if type(value) is not int or not least <= value <= most:
        raise MalformedError(f"{place}: found {str(value)[:40]}, expected a whole number of at least {least}")
    return value


def listed(value: object, place: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise MalformedError(f"{place}: found {type(value).__name__}, expected a list")
    return value


def numbers(value: object, place: str, least: int = 0, length: int | None = None) -> list[int]:
    """A list of whole numbers, of a length where that is given."""
    found = listed(value, place)
    if length is not None and len(found) != length:
        raise MalformedError(f"{place}: found {len(found)} numbers, expected {length}")
    return [whole(each, place, least) for each in found]


def pick(sequence: list[Any], number: int, place: str) -> Any:
    """An element by its number."""
    if not 0 <= number < len(sequence):
        raise MalformedError(f"{place}: found the number {number}, expected 0 to {len(sequence) - 1}")
    return sequence[number]


def need(holds: bool, place: str, text: str) -> None:
    """Raise UnprovenError where a proof does not hold."""
    if not holds:
        raise UnprovenError(f"{place}: {text}")
