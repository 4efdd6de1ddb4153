"""Offsets of values in fast memory, from the text of XLA's buffer assignment.

XLA dumps one line a value, ``value: <90 fusion.5{1} @3> (size=524288,offset=48234496): f32[...]``; the number after ``@`` is
the memory space. Everything else in the text is skipped, so that a whole dump and one cut down to its values both do.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from stowplan import files
from stowplan.errors import InputError
from stowplan.frontends.hlo.placed import FAST_SPACE
from stowplan.frontends.hlo.shape import excerpt

_VALUE = re.compile(
    r"\s*value: <[0-9]+ ([\w.\-]+(?:\{[0-9,]*\})?)(?: \(phi\))? @([0-9]{1,9})> \(size=([0-9]{1,15}),offset=([0-9]{1,15})\)"
)
_SUFFIX = re.compile(r"(?:\.hlo)?(?:\.txt)?(?:\.gz)?$")


class Placement(NamedTuple):
    """Where XLA put a value in fast memory, in bytes."""

    offset: int
    size: int


def find_offsets(plan_path: str | Path) -> Path:
    """``NAME.fastmem.txt.gz`` or ``NAME.fastmem.txt`` beside ``NAME.hlo.txt.gz``.

    Raises
    ------
    InputError
        Neither is there.
    """
    plan = Path(plan_path)
    stem = _SUFFIX.sub("", plan.name)
    for ending in (".fastmem.txt.gz", ".fastmem.txt"):
        found = plan.with_name(stem + ending)
        if found.is_file():
            return found
    raise InputError(
        f"found no offsets beside it, expected {stem}.fastmem.txt or {stem}.fastmem.txt.gz (values of XLA's buffer assignment)",
        source=plan,
    )


def read_offsets(path: str | Path) -> dict[str, Placement]:
    """Placement of each value in fast memory, by ``"instruction"`` or ``"instruction{index}"``.

    Raises
    ------
    InputError
        The file cannot be read, has no values at all, or a line that is no value or places one twice; the message names it.
    """
    placements: dict[str, Placement] = {}
    values = 0
    for number, line in enumerate(files.read_text(path).splitlines(), start=1):
        if not line.lstrip().startswith("value:"):
            continue
        match = _VALUE.match(line)
        if match is None:
            raise InputError(
                f"found {excerpt(line.strip())}, expected value: <number name @space> (size=...,offset=...)",
                source=path,
                place=f"line {number}",
            )
        values += 1
        name, space, size, offset = match.groups()
        if int(space) != FAST_SPACE:
            continue
        placement = Placement(int(offset), int(size))
        if placements.setdefault(name, placement) != placement:
            raise InputError(f"found {name} at a second place", source=path, place=f"line {number}")
    if not values:
        raise InputError("found no values, expected lines such as value: <number name @3> (size=...,offset=...)", source=path)
    return placements
