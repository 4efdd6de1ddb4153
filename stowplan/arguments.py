"""Checks of arguments: a value of a wrong type or out of range raises a UsageError that says what was found and expected.

The parameter ``what`` of these functions is a text for the message that describes the value, with ``{}`` where the value is
inserted: ``"a time limit of {} s"``.
"""

from __future__ import annotations

import math
import numbers
import re
from fractions import Fraction
from typing import Any

from stowplan.errors import UsageError


def whole(what: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Checks that a value is a whole number from ``least`` to ``most``, if these are given, and returns it as an int.

    Booleans and fractions are refused.

    Raises
    ------
    UsageError
        The value is anything else.
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        integer = int(value)
        if (least is None or integer >= least) and (most is None or integer <= most):
            return integer
    wanted = "" if least is None else f"at least {least}, " if most is None else f"{least} to {most}, "
    raise UsageError(f"found {what.format(show(value))}, expected {wanted}a whole number")


_SIZE = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?(?:e\+?[0-9]{1,2})?)\s*([a-z]*)\s*", re.IGNORECASE)

#: Bytes of each unit of a size, in capital letters.
_UNITS = {"": 1, "B": 1} | {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", 1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGTP", 1)}


def size(what: str, value: Any, least: int | None = None) -> int:
    """Converts a size to bytes: an int, or a text such as ``4 GiB``, ``1.5MiB``, ``1200KB`` or ``1e6``.

    A text is a number and a unit, whose letters may be upper or lower case. ``B`` or no unit means bytes; ``kB``, ``MB``,
    ``GB``, ``TB``, ``PB`` are powers of 1000, and ``KiB`` to ``PiB`` are powers of 1024. With a unit that is such a power, the
    size is rounded down to whole bytes.

    Raises
    ------
    UsageError
        The text is not a number with one of these units, or is a fraction of bytes, such as ``1.5`` or ``1.5B``. The size is
        less than ``least`` bytes. The value is neither a text nor a whole number.
    """
    if not isinstance(value, str):
        return whole(what, value, least)
    match = _SIZE.fullmatch(value)
    scale = None if match is None else _UNITS.get(match[2].upper())
    if match is None or scale is None or (scale == 1 and Fraction(match[1]).denominator > 1):
        expected = "bytes, or a number with kB, MB, GB (powers of 1000) or KiB, MiB, GiB (of 1024)"
        raise UsageError(f"found {what.format(show(value))}, expected {expected}")
    return whole(what, int(Fraction(match[1]) * scale), least)


def number(what: str, value: Any, least: float, below: float = math.inf, *, or_least: bool = True) -> float:
    """Checks that a value is a finite number from ``least`` to less than ``below``, and returns it as a float.

    If ``or_least`` is False, ``least`` itself is refused.

    Raises
    ------
    UsageError
        The value is anything else; booleans and texts are refused as well.
    """
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            real = float(value)
        except OverflowError:
            # An int that is too large for a float.
            real = math.inf
        if (real > least or (or_least and real == least)) and real < below:
            return real
    wanted = f"{'at least' if or_least else 'more than'} {least:g}{f' and less than {below:g}' if math.isfinite(below) else ''}"
    raise UsageError(f"found {what.format(show(value))}, expected {wanted}, a finite number")


def flag(what: str, value: Any) -> bool:
    """Returns a value that is True or False, and raises UsageError for any other. A text such as "no" is refused because Python
    would count it as true."""
    if isinstance(value, bool):
        return value
    raise UsageError(f"found {what.format(show(value))}, expected True or False")


def show(value: Any) -> str:
    """The ``repr`` of a value for an error message, shortened to 60 characters."""
    try:
        shown = repr(value)
    except ValueError:
        # Python does not write an int of more than 4,300 decimal digits, but writes its hexadecimal digits.
        shown = hex(value) if isinstance(value, int) else f"a {type(value).__name__} that cannot be shown"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
