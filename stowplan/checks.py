"""Checks that problems apply to their own fields when they are created."""

from __future__ import annotations

from collections.abc import Iterable

from stowplan.errors import InputError


def expect(holds: bool, place: str, found: object, expected: str) -> None:
    """Raises :class:`~stowplan.errors.InputError` if a rule does not hold. ``place`` names the part of the problem."""
    if not holds:
        raise InputError(f"found {found}, expected {expected}", place=place)


def expect_range(place: str, field: str, value: int, least: int, below: int) -> None:
    """Raises InputError if the value of a field is not in ``[least, below)``."""
    if not least <= value < below:
        raise InputError(f"found {field} {value}, expected {least} to {below - 1}", place=place)


def expect_unique(names: Iterable[str], where: str, what: str = "id") -> None:
    """Raises InputError if two entries of the list ``where`` have the same name; ``what`` is the word for a name."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise InputError(
                f"found the {what} {name!r} twice, expected every {what} once", place=f"{where}[{number}] ({name})"
            )
        seen.add(name)
