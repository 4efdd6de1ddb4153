"""What XLA keeps in fast memory: stays of tensors, and the arrays of its module that are in one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Source(StrEnum):
    """How a value got into fast memory."""

    DEFINED = "defined"
    COPIED = "copied"
    PRELOADED = "preloaded"


@dataclass(slots=True, eq=False)
class Eviction:
    """A copy to slow memory, from the boundary of its start to that of its end."""

    start: int
    end: int
    sequence: int


@dataclass(slots=True, eq=False)
class Stay:
    """A tensor's stay in fast memory. Boundaries and steps count the steps of the original program."""

    tensor: int | None
    size: int
    offset: int
    source: Source
    starts: list[int]
    """Boundaries at which its copy, or each slice of it, starts; for a definition the step."""
    sequence: int
    """Place of the copy, or of its first slice, among all copies."""
    arrived: int
    """Boundary at which the copy is complete."""
    end: int
    """Boundary after the last fast use, or at the end of the last eviction."""
    uses: set[int] = field(default_factory=set)
    """Numbers of the uses it serves."""
    evictions: list[Eviction] = field(default_factory=list)
    fault: str | None = None
    """Why a plan of ours cannot have it."""
    parts: tuple[Stay, ...] = ()
    """The slices it was prefetched in."""
    stands_for: tuple[int, int] | None = None
    """Of a copy that stands for the result of a step: boundary at which it starts, and number of the use that writes it."""
    merged: Stay | None = None
    """The stay that this one turned out to be a part of."""

    def whole(self) -> Stay:
        """The stay it is a part of, itself in most cases."""
        stay = self
        while stay.merged is not None:
            stay = stay.merged
        return stay

    def absorb(self, later: Stay) -> None:
        """A loop carries ``later`` back to where this stay began: they are one."""
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
    """What one array of XLA's module is: a tensor of the program, where known, and its stay where it is in fast memory."""

    tensor: int | None
    stay: Stay | None = None
