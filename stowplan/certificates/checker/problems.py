"""What problems may say: the table ``problems.toml``. Anything else is refused.

A rule under which there are more plans is a new field of a problem, or a new value of one: a proof that knows nothing of it
would show nothing.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from stowplan.certificates.checker.reading import Fields, expect

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
