"""What problems check of themselves when they are made."""

from __future__ import annotations

from collections.abc import Iterable

from stowplan.errors import InputError


def expect(holds: bool, place: str, found: object, expected: str) -> None:
    """Raise :class:`~stowplan.errors.InputError` at a place of a problem where a rule does not hold."""
    if not holds:
        raise InputError(f"found {found}, expected {expected}", place=place)


def expect_range(place: str, field: str, value: int, least: int, below: int) -> None:
    """Raise InputError where a field is not in ``[least, below)``."""
    if not least <= value < below:
        raise InputError(f"found {field} {value}, expected {least} to {below - 1}", place=place)


def expect_unique(names: Iterable[str], where: str, what: str = "id") -> None:
    """Raise InputError where two of a list have one name."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise InputError(
                f"found the {what} {name!r} twice, expected every {what} once", place=f"{where}[{number}] ({name})"
            )
        seen.add(name)
