"""A memory-mapping problem as flat tables, for the compiled heuristics.

A *use* is the read or write of one tensor by one step. Heuristics decide about *accesses*. An access is all uses of a tensor by
one step. There are two exceptions. If a tensor lives outside a loop, all of its uses in the loop are one access, because the
rules keep such a tensor in fast memory for the whole loop or not at all. If an asynchronous operation reads or writes a tensor,
all uses of the tensor from the start to the end of the operation are one access. An *asynchronous operation* starts in one step
and ends in a later one. A *boundary* is the moment before a step or after the last one. A *residency* is the stay of a tensor
in fast memory from one boundary to another. Steps, tensors and uses have the numbers that they have in the problem. A *channel*
is a copy engine, which makes one copy after the other. Times and latencies are in picoseconds (ps).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Column, filled
from stowplan.models.memory_mapping.accesses import Boundaries, internal_loops, residency_boundaries
from stowplan.models.memory_mapping.problem import Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A field ``first_*`` is the index of a row's first entry in another table. The row's entries end where those of the next row
# begin, so tables with such fields have one row more than there are items.


class StepRow:
    """A step; the row after the last step stands for the end of the program.

    The latency of a step is the maximum of several *pieces*, each of which is a sum of a base and a term for each use.
    """

    weight: int
    """How often the step runs."""
    floor: int
    """The least latency of the step over all choices of the uses that fast memory serves, times its weight (ps)."""
    first_use: int
    """The first use of the step."""
    first_term: int
    """The first term of the step in ``Data.terms``. Each piece has one term for its base, then one for each use of the step."""
    table: int
    """Index of the step's first latency in ``Data.table``; -1 if the step has no latency table."""
    table_use: int
    """Index in ``Data.table`` from which on it lists the uses that the latency table depends on. Each is a position among the
    uses of the step."""
    table_uses: int
    """Number of uses that the latency table depends on."""
    down: int
    """Of the boundaries up to the one before this step, the last at which copies may begin or end."""
    up: int
    """Of the boundaries from the one before this step on, the first at which copies may begin or end."""


class TermRow:
    """A term of a piece (ps); for the base of a piece, both fields are equal."""

    slow: int
    """The time that the use adds if it is served from slow memory (ps)."""
    fast: int
    """The time that the use adds if it is served from fast memory (ps)."""


class TensorRow:
    """A tensor; the row after the last tensor has only ``first_access``."""

    bytes: int
    """Size in bytes, rounded up to the alignment."""
    copy_in: int
    """Duration of a copy from slow to fast memory (ps)."""
    copy_out: int
    """Duration of a copy from fast to slow memory (ps)."""
    is_input: int
    """1 if the tensor has content before the program starts; otherwise 0."""
    is_output: int
    """1 if the content of the tensor is needed after the program ends; otherwise 0."""
    can_copy: int
    """0 if the tensor may not be copied, because it is internal to a loop: all of its uses are in the loop, and it is neither
    an input nor an output. Otherwise 1."""
    uniform: int
    """1 if the tensor must be in fast memory throughout and at one offset, or not at all; otherwise 0."""
    first_access: int
    """The first access of the tensor."""


class AccessRow:
    """An access: the uses of a tensor in the steps ``[low, high)``. The row after the last access has only ``first_use``."""

    low: int
    """First step of the access."""
    high: int
    """Step after the last step of the access."""
    reads: int
    """1 if the access needs the content that the tensor had before; otherwise 0."""
    writes: int
    """1 if the access writes the tensor; otherwise 0."""
    defines: int
    """1 if a residency may begin with the access, because it writes a whole new version; otherwise 0."""
    first_use: int
    """Index of the access's first entry in ``Data.access_uses``."""
    released: int
    """Boundary from which on a copy-in for the access may start: the end of the last asynchronous operation before it that held
    the tensor; 0 if there is none."""
    written: int
    """Boundary after the last write of the access; 0 if it does not write."""


class UseRow:
    """A use that belongs to an access."""

    use: int
    """Number of the use in the problem."""
    step: int
    """The step that makes the use."""


class Data(NamedTuple):
    """The tables of a problem, which never change. There are T steps, N tensors, U uses and A accesses."""

    horizon: int
    """T, the number of steps."""
    capacity: int
    """Bytes of fast memory, rounded down to the alignment."""
    channels: int
    """Number of channels that make copies."""
    max_preloads: int
    """Number of residencies that may begin with the program, without a copy."""
    stalls_allowed: int
    """1 if steps may wait for copies; otherwise 0."""
    steps: Sequence[StepRow]
    """[T + 1] the steps."""
    terms: Sequence[TermRow]
    """The terms of all pieces."""
    table: Ints
    """The latencies (ps) of each step that has a latency table, followed by the uses that the table depends on."""
    tensors: Sequence[TensorRow]
    """[N + 1] the tensors."""
    accesses: Sequence[AccessRow]
    """[A + 1] the accesses, sorted by tensor, then by step."""
    access_uses: Sequence[UseRow]
    """[U] the uses, sorted by access."""


#: A capacity larger than the memory of any program, in bytes, with which sums still fit in 64 bits.
MOST_CAPACITY = 1 << 60


def build(problem: Problem) -> Data:
    """Build the tables of a problem, which takes about 2 us for each use. It raises no errors."""
    align = problem.alignment
    tensors = problem.tensors
    inner = internal_loops(problem)
    steps, terms, table = _steps(problem)
    accesses, access_uses, first_access = _accesses(problem, inner)
    return Data(
        horizon=problem.horizon,
        capacity=min(problem.capacity, MOST_CAPACITY) // align * align,
        channels=problem.channels,
        max_preloads=problem.max_preloads,
        stalls_allowed=int(problem.stalls == "allowed"),
        steps=filled(StepRow, problem.horizon + 1, steps),
        terms=filled(TermRow, len(terms["slow"]), terms),
        table=np.array(table, np.int64),
        tensors=filled(
            TensorRow,
            len(tensors) + 1,
            {
                "bytes": [-(-tensor.size // align) * align for tensor in tensors],
                "copy_in": [tensor.copy_in_ps for tensor in tensors],
                "copy_out": [tensor.copy_out_ps for tensor in tensors],
                "is_input": [tensor.is_input for tensor in tensors],
                "is_output": [tensor.is_output for tensor in tensors],
                "can_copy": inner < 0,
                "uniform": [problem.alias_rule == "uniform" and len(tensor.members) > 1 for tensor in tensors],
                "first_access": first_access,
            },
        ),
        accesses=filled(AccessRow, len(accesses["first_use"]), accesses),
        access_uses=filled(UseRow, problem.use_count, access_uses),
    )


Columns = dict[str, Column]
"""The columns of a table, by the name of the field."""


def _steps(problem: Problem) -> tuple[Columns, Columns, list[int]]:
    """Returns the columns of the steps and of the terms, and the latency tables."""
    steps = problem.steps
    boundaries = Boundaries(problem.horizon, problem.loops)
    pieces = [piece for step in steps for piece in step.pieces]
    table: list[int] = []
    table_columns: dict[str, list[int]] = {"table": [], "table_use": [], "table_uses": []}
    for step in steps:
        table_columns["table"].append(-1 if step.table is None else len(table))
        table += () if step.table is None else step.table.latency_ps
        table_columns["table_use"].append(len(table))
        table += () if step.table is None else step.table.uses
        table_columns["table_uses"].append(0 if step.table is None else len(step.table.uses))
    columns: Columns = {
        "weight": [step.weight for step in steps],
        "floor": problem.floors_ps,
        "first_use": problem.first_use,
        "first_term": [*accumulate((len(step.pieces) * (1 + len(step.uses)) for step in steps), initial=0)],
        "down": boundaries.prev,
        "up": boundaries.next,
        **table_columns,
    }
    slow = [*chain.from_iterable((piece.base_ps, *piece.slow_ps) for piece in pieces)]
    fast = [*chain.from_iterable((piece.base_ps, *piece.fast_ps) for piece in pieces)]
    return columns, {"slow": slow, "fast": fast}, table


def _accesses(problem: Problem, inner: Ints) -> tuple[Columns, Columns, Ints]:
    """Returns the columns of the accesses and of their uses, and the first access of each tensor.

    ``inner`` [N] has for each tensor the innermost loop to which it is internal; -1 for none.
    """
    tensors, horizon = len(problem.tensors), problem.horizon
    owner = np.array(problem.tensor_of_use, np.int64)
    # From here on, uses are sorted by tensor, then by step.
    order = np.argsort(owner, kind="stable")
    owner, step = owner[order], np.array(problem.step_of_use, np.int64)[order]
    is_output = np.array([use.is_output for step in problem.steps for use in step.uses], np.bool_)[order]
    # The steps of the access of each use are those of the outermost loop that the tensor is outside of, or the step itself.
    low, high = step.copy(), step + 1
    for loop in np.unique(inner) if problem.loops else ():
        free, affected = residency_boundaries(problem, int(loop)), inner[owner] == loop
        low[affected], high[affected] = free.prev[step[affected]], free.next[step[affected] + 1]
    # The uses of a tensor during an asynchronous operation that holds it are one access; no copy-in may overlap it.
    is_held, released = np.zeros(len(owner), np.bool_), np.zeros(len(owner), np.int64)
    for operation in sorted(problem.in_flight, key=lambda operation: operation.end):
        of_tensor = slice(*np.searchsorted(owner, (operation.tensor, operation.tensor + 1)))
        affected = (low[of_tensor] < operation.end) & (high[of_tensor] > operation.start)
        low[of_tensor][affected], high[of_tensor][affected], is_held[of_tensor][affected] = (
            min(low[of_tensor][affected]),
            max(high[of_tensor][affected]),
            True,
        )
    for operation in sorted(problem.in_flight, key=lambda operation: operation.end):
        of_tensor = slice(*np.searchsorted(owner, (operation.tensor, operation.tensor + 1)))
        released[of_tensor][low[of_tensor] >= operation.end] = operation.end
    new = np.ones(len(owner), np.bool_)
    new[1:] = (np.diff(owner) != 0) | (np.diff(low) != 0)
    access, first_use = np.cumsum(new) - 1, np.flatnonzero(new)
    # If the start of such an operation writes the tensor anew, later reads of the operation need no content from before.
    at_start = is_held & (step == low)
    kinds = (~is_output, is_output, at_start & ~is_output, at_start & is_output)
    reads, writes, reads_first, begins = (np.bincount(access[kind], minlength=len(first_use)) > 0 for kind in kinds)
    begins &= ~reads_first
    reads &= ~begins
    of_access, low, high = owner[new], low[new], high[new]
    # A residency may begin with the write of a whole new version, but not inside a loop that the tensor lives outside of.
    single = np.zeros(horizon + 1, np.bool_)
    single[[loop.start for loop in problem.loops if loop.end == loop.start + 1]] = True
    is_new_step = new.copy()
    is_new_step[1:] |= np.diff(step) != 0
    recurs = np.bincount(owner[is_new_step], minlength=tensors) > 1
    outside = np.array([tensor.is_input or tensor.is_output for tensor in problem.tensors], np.bool_) | recurs
    defines = writes & ~reads & ((high == low + 1) | begins) & ~(single[low] & outside[of_access])
    columns: Columns = {"low": low, "high": high, "reads": reads, "writes": writes, "defines": defines}
    written = np.zeros(len(low), np.int64)
    np.maximum.at(written, access[is_output], step[is_output] + 1)
    columns |= {"released": released[new], "written": written}
    first_access = np.searchsorted(of_access, np.arange(tensors + 1))
    return columns | {"first_use": np.append(first_use, len(owner))}, {"use": order, "step": step}, first_access
