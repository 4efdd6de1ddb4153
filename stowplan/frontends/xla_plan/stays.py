"""Stays of tensors in XLA's fast memory, the arrays of XLA's module, and their offsets.

A *stay* is a period in which XLA has a tensor in fast memory. *Boundary* ``t`` is the moment before step ``t`` of the original
program. Offsets are in the text of XLA's buffer assignment, with one line for each value:
``value: <90 fusion.5{1} @3> (size=524288,offset=48234496): f32[...]``. The number after ``@`` is the memory space. All other
lines are ignored, so that a complete dump and a shortened one are both accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from stowplan import files
from stowplan.errors import InputError
from stowplan.frontends.hlo.shape import excerpt
from stowplan.hardware.targets import CMEM


class Source(StrEnum):
    """How a value came into fast memory."""

    DEFINED = "defined"
    """A step wrote it there."""
    COPIED = "copied"
    """It was copied there from slow memory."""
    PRELOADED = "preloaded"
    """It is there before the program starts (cross-program prefetch)."""


@dataclass(slots=True, eq=False)
class Eviction:
    """A copy to slow memory."""

    start: int
    """The boundary at which it starts."""
    end: int
    """The boundary at which it ends."""
    sequence: int
    """Its position among all copies."""


@dataclass(slots=True, eq=False)
class Stay:
    """A period in which a tensor is in fast memory. Boundaries and steps are those of the original program."""

    tensor: int | None
    """Number of the tensor; None if it is not known."""
    size: int
    """Size in bytes."""
    offset: int
    """Offset in fast memory in bytes."""
    source: Source
    """How the tensor came into fast memory."""
    starts: list[int]
    """Boundaries at which its copy, or each slice of it, starts; if a step defines the value, the number of the step."""
    sequence: int
    """Position of the copy, or of its first slice, among all copies."""
    arrived: int
    """Boundary at which the copy is complete."""
    end: int
    """Boundary after the last use from fast memory, or at the end of the last eviction."""
    uses: set[int] = field(default_factory=set)
    """Numbers of the uses that it serves."""
    evictions: list[Eviction] = field(default_factory=list)
    """Its copies to slow memory."""
    fault: str | None = None
    """The reason why no residency (a stay in a plan of stowplan) can express it; None if a residency can."""
    parts: tuple[Stay, ...] = ()
    """The slices in which it was copied, each as a stay; empty if it was copied as a whole."""
    stands_for: tuple[int, int] | None = None
    """For a copy that replaces a step, the boundary at which the copy starts, and the number of the use that writes the result;
    otherwise None."""
    merged: Stay | None = None
    """The stay of which this one is a part; None if it is no part of another one."""

    def whole(self) -> Stay:
        """The outermost stay of which this one is a part; in most cases itself."""
        stay = self
        while stay.merged is not None:
            stay = stay.merged
        return stay

    def absorb(self, later: Stay) -> None:
        """Merges the stay ``later`` into this one.

        ``later`` is the stay of the value that a loop passes to its next iteration, and this one is the stay of the value with
        which an iteration begins.
        """
        if later is self:
            return
        if later.offset != self.offset or later.tensor != self.tensor:
            self.fault = "a loop carries it from one place to another"
        self.fault = self.fault or later.fault
        self.end = max(self.end, later.end)
        self.uses |= later.uses
        self.evictions += later.evictions
        later.merged = self


class Array(NamedTuple):
    """An array of XLA's module."""

    tensor: int | None
    """Number of the tensor of the program that it is; None if that is not known."""
    stay: Stay | None = None
    """Its stay; None if it is in slow memory."""


#: A line for a value, and the extensions of a module's path.
_VALUE = re.compile(
    r"\s*value: <[0-9]+ ([\w.\-]+(?:\{[0-9,]*\})?)(?: \(phi\))? @([0-9]{1,9})> \(size=([0-9]{1,15}),offset=([0-9]{1,15})\)"
)
_SUFFIX = re.compile(r"(?:\.hlo)?(?:\.txt)?(?:\.gz)?$")


class Placement(NamedTuple):
    """The place that XLA has given to a value in fast memory."""

    offset: int
    """Offset in bytes."""
    size: int
    """Size in bytes."""


def find_offsets(plan_path: str | Path) -> Path:
    """The path of the file ``NAME.fastmem.txt.gz`` or ``NAME.fastmem.txt`` in the folder of ``NAME.hlo.txt.gz``.

    ``plan_path`` is the path of XLA's module, and may also lack the extensions ``.hlo``, ``.txt`` and ``.gz``.

    Raises
    ------
    InputError
        Neither file exists.
    """
    plan = Path(plan_path)
    stem = _SUFFIX.sub("", plan.name)
    for ending in (".fastmem.txt.gz", ".fastmem.txt"):
        path = plan.with_name(stem + ending)
        if path.is_file():
            return path
    raise InputError(
        f"found no offsets beside it, expected {stem}.fastmem.txt or {stem}.fastmem.txt.gz (values of XLA's buffer assignment)",
        source=plan,
    )


def read_offsets(path: str | Path, fast_space: int = CMEM) -> dict[str, Placement]:
    """Reads the placement of each value in fast memory, by its name ``"instruction"`` or ``"instruction{index}"``.

    ``fast_space`` is the number of the memory space of fast memory; values in other spaces are ignored.

    Raises
    ------
    InputError
        The file cannot be read or has no values, a line is not valid, or a value has two placements; the message names the
        line.
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
        if int(space) != fast_space:
            continue
        placement = Placement(int(offset), int(size))
        if placements.setdefault(name, placement) != placement:
            raise InputError(f"found {name} at a second place", source=path, place=f"line {number}")
    if not values:
        raise InputError("found no values, expected lines such as value: <number name @3> (size=...,offset=...)", source=path)
    return placements
