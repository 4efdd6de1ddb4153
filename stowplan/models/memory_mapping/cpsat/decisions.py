"""The decisions of a plan that the complete CP-SAT model represents: those at accesses and in gaps, and the order of copies.

An *access* is a step that uses a tensor, and the *gaps* of a tensor lie between its accesses
(:mod:`stowplan.models.memory_mapping.accesses`). Offsets are not among the decisions (``offsets``). The hint for a plan and the
plan of a solution both go through these decisions. Nothing here raises an error for valid arguments.

A *residency* is one stay of a tensor in fast memory, and a *boundary* is the moment before a step. An access is *fast* if it is
served from fast memory, otherwise *slow*. Where the documentation of a list begins with a word in brackets, the list has an
entry for each of these things.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stowplan.models.memory_mapping.accesses import TensorAccesses
from stowplan.models.memory_mapping.copy_engine import CopyWindow, Moments, play, step_durations
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem

Direction = Literal["in", "out"]


@dataclass(slots=True)
class CopyOut:
    """A copy-out of the content that an access wrote."""

    start: int
    """Boundary at which it is queued."""
    until: int
    """Boundary up to which the copy needs the residency of the tensor. The residency ends there or later."""


@dataclass(slots=True)
class TensorDecisions:
    """The decisions for one tensor.

    The tensor is *landed* if it is resident with its content. While it is copied in, it is not landed yet.
    """

    landed: list[bool]
    """[accesses] whether the tensor is landed at the access."""
    fast: list[bool]
    """[accesses] whether the access is served from fast memory."""
    keep: list[bool]
    """[accesses] whether the tensor is landed throughout the gap before the access; for the first access, whether it is
    preloaded."""
    copy_in: dict[int, int] = field(default_factory=dict)
    """For each access before which a copy-in is complete: the boundary at which the copy is queued."""
    copy_out: dict[int, CopyOut] = field(default_factory=dict)
    """For each access whose written content is copied out: the copy-out."""

    @staticmethod
    def all_slow(count: int) -> TensorDecisions:
        """The decisions to keep a tensor with ``count`` accesses out of fast memory."""
        return TensorDecisions([False] * count, [False] * count, [False] * count)


@dataclass(frozen=True, slots=True)
class CopyKey:
    """Identifies a copy in :class:`Decisions`."""

    tensor: int
    """Number of the tensor."""
    direction: Direction
    """``in`` for a copy to fast memory, ``out`` for a copy back."""
    access: int
    """Number of the access before which a copy-in is complete, or whose written content a copy-out saves."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A residency during the steps ``[start, end)``, without its offset."""

    tensor: int
    """Number of the tensor."""
    start: int
    """First step."""
    end: int
    """First step after the residency."""
    preloaded: bool
    """Whether the tensor is in fast memory before the program starts."""
    first: int
    """First access at which the tensor is landed."""
    last: int
    """Last access at which the tensor is landed."""


@dataclass
class Decisions:
    """The decisions for all tensors, and the copies in queue order."""

    problem: Problem
    """The problem that the decisions are for."""
    sequences: Sequence[TensorAccesses]
    """Access sequences of its tensors."""
    tensors: list[TensorDecisions]
    """Decisions for each tensor."""
    queue: list[CopyKey]
    """The copies in the order in which they are queued."""

    def stays(self) -> list[Stay]:
        """All residencies, by tensor and start."""
        return [
            stay for sequence, chosen in zip(self.sequences, self.tensors, strict=True) for stay in _stays(sequence, chosen)
        ]

    def window(self, key: CopyKey) -> CopyWindow:
        """Window and duration of a copy."""
        sequence, chosen = self.sequences[key.tensor], self.tensors[key.tensor]
        tensor = self.problem.tensors[key.tensor]
        if key.direction == "in":
            end = int(sequence.copy.prev[sequence.accesses[key.access].step])
            return CopyWindow(chosen.copy_in[key.access], end, tensor.copy_in_ps)
        end = copy_out_end(sequence, chosen, key.access)
        return CopyWindow(chosen.copy_out[key.access].start, end, tensor.copy_out_ps)

    def fast_uses(self) -> list[bool]:
        """[uses] whether each use of the program is fast."""
        fast = [False] * self.problem.use_count
        for sequence, chosen in zip(self.sequences, self.tensors, strict=True):
            for access, is_fast in zip(sequence.accesses, chosen.fast, strict=True):
                for use in access.uses:
                    fast[use] = is_fast
        return fast

    def moments(self) -> Moments:
        """Returns the times that the copy engine computes. If stalls are forbidden, it assumes that each step takes its least
        latency over all choices of fast uses."""
        problem = self.problem
        waits = problem.stalls == "allowed"
        durations = step_durations(problem, self.fast_uses()) if waits else problem.floors_ps
        return play([self.window(key) for key in self.queue], durations, waits=waits, channels=problem.channels)

    def objective_ps(self) -> int:
        """Objective of the plan in ps."""
        if self.problem.stalls == "allowed":
            return self.moments().left[-1]
        return sum(step_durations(self.problem, self.fast_uses()))

    def plan(self, offsets: Sequence[int]) -> Plan:
        """The plan with these offsets in bytes, one for each of :meth:`stays`."""
        copies = []
        for key in self.queue:
            window = self.window(key)
            copies.append(Copy(key.tensor, key.direction, window.start, window.end))
        residencies = [
            Residency(stay.tensor, stay.start, stay.end, offset, stay.preloaded)
            for stay, offset in zip(self.stays(), offsets, strict=True)
        ]
        return Plan(
            problem=self.problem.digest,
            program=self.problem.name,
            target=self.problem.target,
            objective=self.objective_ps(),
            residencies=tuple(sorted(residencies, key=lambda item: (item.start, item.tensor))),
            copies=tuple(copies),
            fast_uses=tuple(use for use, fast in enumerate(self.fast_uses()) if fast),
        )


def copy_out_end(sequence: TensorAccesses, chosen: TensorDecisions, write: int) -> int:
    """The boundary at which the copy-out of the content of access ``write`` must be complete.

    This is the boundary before the first slow read of this content. If the part of the residency that the copy needs ends
    earlier, it is the end of this part.
    """
    end = chosen.copy_out[write].until
    for j in range(write + 1, min(sequence.next_write(write + 1) + 1, len(sequence))):
        if sequence.accesses[j].read is not None and not chosen.fast[j]:
            end = min(end, int(sequence.copy.prev[sequence.accesses[j].step]))
    return end


def _stays(sequence: TensorAccesses, chosen: TensorDecisions) -> Iterator[Stay]:
    """The residencies of one tensor, by start."""
    count = len(sequence)
    first = 0
    while first < count:
        if not chosen.landed[first]:
            first += 1
            continue
        last = first
        while last + 1 < count and chosen.landed[last + 1] and chosen.keep[last + 1]:
            last += 1
        preloaded = first == 0 and chosen.keep[0]
        start = 0 if preloaded else chosen.copy_in.get(first, sequence.accesses[first].step)
        end = int(sequence.residency.next[sequence.accesses[last].step + 1])
        end = max([end, *(out.until for write, out in chosen.copy_out.items() if first <= write <= last)])
        yield Stay(sequence.tensor, start, end, preloaded, first, last)
        first = last + 1
