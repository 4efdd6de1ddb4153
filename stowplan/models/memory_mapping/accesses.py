"""The sequence of accesses of each tensor, and the boundaries at which its residencies and copies may begin and end.

Exact models, heuristics and hints of memory mapping use these sequences. A *residency* is one stay of a tensor in fast memory,
and *boundary* ``t`` is the moment before step ``t``. A tensor has one *access* for each step that uses it, and *gaps* between
the accesses. Gap ``j`` is the time before access ``j``, and the last gap comes after the last access, so a tensor with ``k``
accesses has ``k + 1`` gaps. Every decision of memory mapping is made at an access (serve it from fast memory or not) or in a
gap (stay resident, leave, copy in, copy out).

Loops and asynchronous operations restrict boundaries (rules ``loop_partial`` and ``in_flight`` of
``docs/reference/memory-mapping.md``):

* A copy neither starts nor ends strictly inside a loop.
* A residency neither starts nor ends strictly inside a loop that its tensor is *outside* of, that is, enters or leaves.
* A tensor that is *internal* to a loop, that is, used only there, is never copied.
* A tensor that an asynchronous operation uses is resident during the whole operation or not at all, and no copy-in of the
  tensor runs during it.

A use is *fast* if it is served from fast memory. Nothing here raises an error for a valid problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from stowplan.models.memory_mapping.problem import InFlight, Loop, Problem

IntArray = npt.NDArray[np.int64]


class Access(msgspec.Struct, frozen=True, gc=False):
    """One step that uses a tensor: that reads it, writes it, or updates it in place."""

    step: int
    """Number of the step."""
    read: int | None
    """Number of the reading use in the program's sequence of uses; None if the step does not read the tensor."""
    write: int | None
    """Number of the writing use; None if the step does not write the tensor."""

    @property
    def is_pure_write(self) -> bool:
        """Whether the step overwrites the tensor without reading it, so that a residency may begin here without a copy."""
        return self.read is None

    @property
    def uses(self) -> tuple[int, ...]:
        """Numbers of the one or two uses."""
        return tuple(use for use in (self.read, self.write) if use is not None)


class Boundaries:
    """The boundaries of a program with ``T`` steps, ``0 … T``, that are *free*, that is, not strictly inside one of the given
    loops.

    ``free[t]`` says whether boundary ``t`` is free, ``next[t]`` is the first free boundary ``>= t``, and ``prev[t]`` is the
    last one ``<= t``. All arrays have shape ``[T + 1]``.
    """

    def __init__(self, horizon: int, loops: Sequence[Loop]):
        depth = np.zeros(horizon + 2, dtype=np.int64)
        for loop in loops:
            if loop.end - loop.start > 1:
                depth[loop.start + 1] += 1
                depth[loop.end] -= 1
        self.free: npt.NDArray[np.bool_] = np.cumsum(depth)[: horizon + 1] == 0
        index = np.arange(horizon + 1)
        self.prev: IntArray = np.maximum.accumulate(np.where(self.free, index, 0))
        self.next: IntArray = np.minimum.accumulate(np.where(self.free, index, horizon)[::-1])[::-1]


@dataclass(frozen=True)
class TensorAccesses:
    """Accesses of one tensor in step order, and the boundaries at which its residencies may begin and end."""

    tensor: int
    """Number of the tensor."""
    size: int
    """Size of the tensor in bytes."""
    accesses: tuple[Access, ...]
    """The accesses in step order."""
    is_input: bool
    """Whether slow memory holds the tensor's content before the program starts."""
    is_output: bool
    """Whether slow memory must hold the tensor's content when the program ends."""
    may_copy: bool
    """Whether the tensor may be copied; false for a tensor internal to a loop."""
    uniform: bool
    """Whether all uses must be fast or all slow. This is so if the problem has ``alias_rule="uniform"`` and the tensor stands
    for several tensors of the program that share their place (its ``members``)."""
    horizon: int
    """Number of steps of the program."""
    residency: Boundaries
    """Free boundaries for this tensor's residencies."""
    copy: Boundaries
    """Free boundaries for copies, the same for all tensors."""
    in_flight: Sequence[InFlight] = ()
    """Asynchronous operations that use this tensor, each with its first step and the step after its last one."""

    def __len__(self) -> int:
        """The number of accesses."""
        return len(self.accesses)

    @cached_property
    def last_write(self) -> tuple[int, ...]:
        """``last_write[j]`` is the access that wrote the content that the tensor has in gap ``j``; -1 for the initial
        content."""
        latest, result = -1, []
        for number, access in enumerate(self.accesses):
            result.append(latest)
            if access.write is not None:
                latest = number
        result.append(latest)
        return tuple(result)

    def gap(self, j: int) -> tuple[int, int]:
        """The first boundary of gap ``j``, right after access ``j - 1``, and the last one, right before access ``j``. The first
        gap begins with the program, and the last one ends with it."""
        first = self.accesses[j - 1].step + 1 if j else 0
        last = self.accesses[j].step if j < len(self.accesses) else self.horizon
        return first, last

    def is_glued(self, j: int) -> bool:
        """Whether the tensor must be resident at both accesses around gap ``j`` or at neither of them.

        This is so if no boundary of the gap is free, or if an asynchronous operation uses the tensor during the gap.
        """
        first, last = self.gap(j)
        is_held = any(use.start < first and last < use.end for use in self.in_flight)
        return 0 < j < len(self.accesses) and (is_held or int(self.residency.next[first]) > last)

    def released(self, boundary: int) -> int:
        """The first boundary at which a copy may start after the asynchronous operations that use the tensor and end by
        ``boundary``; 0 if there are none."""
        return int(self.copy.next[max((use.end for use in self.in_flight if use.end <= boundary), default=0)])

    def may_begin_by_write(self, j: int) -> bool:
        """Whether a residency may begin with access ``j`` without a copy: the access is a pure write at a free boundary."""
        access = self.accesses[j]
        return access.is_pure_write and bool(self.residency.free[access.step]) and not self.is_glued(j)

    def is_dead(self, j: int) -> bool:
        """Whether it is useless to stay resident throughout gap ``j``.

        This is so after the last access, and if access ``j`` overwrites the tensor and can begin a residency itself.
        """
        return j == len(self.accesses) or self.may_begin_by_write(j)

    def is_tied(self, j: int) -> bool:
        """Whether access ``j`` must be served from the same memory as other accesses, because of a loop that writes the tensor
        or of an asynchronous operation."""
        first, last = j, j
        while self.is_glued(first):
            first -= 1
        while self.is_glued(last + 1):
            last += 1
        if any(use.start <= self.accesses[j].step < use.end for use in self.in_flight):
            return True
        return first < last and any(access.write is not None for access in self.accesses[first : last + 1])

    def version_start(self, j: int) -> int:
        """The first boundary at which the content of gap ``j`` exists: right after the last write before the gap, or 0."""
        write = self.last_write[j]
        return self.accesses[write].step + 1 if write >= 0 else 0

    def next_write(self, j: int) -> int:
        """First access at or after access ``j`` that writes the tensor; the number of accesses if there is none."""
        return next((n for n in range(j, len(self.accesses)) if self.accesses[n].write is not None), len(self.accesses))

    def copy_in_window(self, j: int, *, in_flight: bool = False) -> tuple[int, int] | None:
        """Earliest start and latest end of a copy-in that ends in gap ``j``, or None if there can be no such copy.

        Without ``in_flight``, the copy also starts in the gap. With it, the copy starts before access ``j - 1``, which is then
        a read that is served from slow memory. Such a copy may start right after the content was written.
        """
        if not self.may_copy or j == len(self.accesses) or self.is_dead(j) or self.is_glued(j):
            return None
        if self.last_write[j] < 0 and not self.is_input:
            return None
        if in_flight and (j == 0 or self.accesses[j - 1].write is not None):
            return None
        first, last = self.gap(j)
        end, released = int(self.copy.prev[last]), self.released(last)
        if end < first or (in_flight and released >= first):
            return None
        start = int(self.copy.next[max(self.version_start(j), released) if in_flight else first])
        return (start, end) if start <= end else None

    def copy_out_window(self, j: int) -> tuple[int, int] | None:
        """Earliest start and latest end of a copy-out of the content in gap ``j`` that is complete before access ``j``; None if
        there can be no such copy."""
        if not self.may_copy:
            return None
        start = int(self.copy.next[self.version_start(j)])
        end = int(self.copy.prev[self.gap(j)[1]])
        return (start, end) if start <= end else None


def accesses_of(problem: Problem) -> list[list[Access]]:
    """The accesses of every tensor of the problem in step order, ``[tensors][accesses]``."""
    accesses: list[list[Access]] = [[] for _ in problem.tensors]
    number = 0
    for index, step in enumerate(problem.steps):
        reads: dict[int, int] = {}
        writes: dict[int, int] = {}
        for use in step.uses:
            (writes if use.is_output else reads)[use.tensor] = number
            number += 1
        for tensor in {**reads, **writes}:
            accesses[tensor].append(Access(index, reads.get(tensor), writes.get(tensor)))
    return accesses


def access_sequences(problem: Problem) -> tuple[TensorAccesses, ...]:
    """The access sequence of every tensor of the problem, in the order of ``problem.tensors``."""
    by_tensor = accesses_of(problem)
    inner: list[int] = internal_loops(problem).tolist()
    in_flight: dict[int, list[InFlight]] = {}
    for entry in problem.in_flight:
        in_flight.setdefault(entry.tensor, []).append(entry)
    residency = {loop: residency_boundaries(problem, loop) for loop in {*inner}}
    copy = Boundaries(problem.horizon, problem.loops)
    return tuple(
        TensorAccesses(
            tensor=index,
            size=info.size,
            accesses=tuple(accesses),
            is_input=info.is_input,
            is_output=info.is_output,
            may_copy=inner[index] < 0,
            uniform=problem.alias_rule == "uniform" and len(info.members) > 1,
            horizon=problem.horizon,
            residency=residency[inner[index]],
            copy=copy,
            in_flight=in_flight.get(index, ()),
        )
        for index, (info, accesses) in enumerate(zip(problem.tensors, by_tensor, strict=True))
    )


def internal_loops(problem: Problem) -> IntArray:
    """For each tensor, the index in ``problem.loops`` of the innermost loop that it is internal to, or -1; ``[tensors]``."""
    count = len(problem.tensors)
    first, last = np.full(count, problem.horizon), np.full(count, -1)
    of, step = np.array(problem.tensor_of_use, np.int64), np.array(problem.step_of_use, np.int64)
    np.minimum.at(first, of, step)
    np.maximum.at(last, of, step)
    within = np.array([not (tensor.is_input or tensor.is_output) for tensor in problem.tensors], np.bool_) & (last >= 0)
    inner = np.full(count, -1)
    # Inner loops come later and overwrite the entries of the loops around them.
    for number, loop in sorted(enumerate(problem.loops), key=lambda numbered: (numbered[1].start, -numbered[1].end)):
        inner[within & (first >= loop.start) & (last < loop.end)] = number
    return inner


def residency_boundaries(problem: Problem, internal_to: int) -> Boundaries:
    """The free boundaries for residencies of tensors that are internal to the loop with this index (-1: to no loop).

    The loop itself and the loops around it do not restrict such residencies.
    """
    if internal_to < 0:
        return Boundaries(problem.horizon, problem.loops)
    own = problem.loops[internal_to]
    return Boundaries(problem.horizon, [loop for loop in problem.loops if loop.start > own.start or loop.end < own.end])
