"""A memory-mapping problem as flat tables, for the compiled heuristics.

The unit of decision is the *access*: everything a tensor undergoes at one step, or, for a tensor from outside a loop, in the
whole of that loop, because the rules make such a tensor fast for all of the loop or for none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import filled
from stowplan.models.memory_mapping.accesses import Boundaries, TensorAccesses, access_sequences
from stowplan.models.memory_mapping.problem import Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A field ``first_*`` points into another table, to the first of a row's entries there. The next row points to the first entry
# after them, so tables with such fields have one row more than there are things.


class StepRow:
    """A step; the row after the last step stands for the end of the program."""

    weight: int
    floor: int
    """Weighted least latency (ps)."""
    first_use: int
    first_term: int
    """Each piece has 1 + uses terms: its base, then one for each use."""
    table: int
    """First latency in ``Data.table``; -1 where the step has none."""
    table_use: int
    """First of the table's uses in ``Data.table``, as positions among the step's uses."""
    table_uses: int
    down: int
    """The latest boundary, not after this one, at which copies may begin or end."""
    up: int
    """The earliest such boundary, not before this one."""


class TermRow:
    """What one use adds to one piece (ps); both fields are the base where it is the base."""

    slow: int
    fast: int


class TensorRow:
    """A tensor."""

    bytes: int
    """Rounded up to the alignment."""
    copy_in: int
    copy_out: int
    is_input: int
    is_output: int
    can_copy: int
    """0 for a tensor internal to a loop."""
    uniform: int
    """1 where it must be fast throughout and in one place, or not at all."""
    first_access: int


class AccessRow:
    """What a tensor undergoes at one step, or in one loop, ``[low, high)``."""

    low: int
    high: int
    reads: int
    writes: int
    defines: int
    """1 where a residency may begin with it: it writes a whole new version, in one step."""
    first_use: int


class UseRow:
    """A use of an access."""

    use: int
    step: int


class Data(NamedTuple):
    """Tables that nothing changes. T steps, N tensors, U uses, A accesses."""

    horizon: int
    capacity: int
    channels: int
    max_preloads: int
    stalls_allowed: int
    steps: Sequence[StepRow]
    """[T + 1]"""
    terms: Sequence[TermRow]
    table: Ints
    """Latencies (ps) and uses of the steps that have tables."""
    tensors: Sequence[TensorRow]
    """[N + 1]"""
    accesses: Sequence[AccessRow]
    """[A + 1]"""
    access_uses: Sequence[UseRow]
    """[U]"""


def build(problem: Problem) -> Data:
    """Tables of ``problem``; takes some 20 us a use."""
    align = problem.alignment
    sequences = access_sequences(problem)
    steps, terms, table = _steps(problem)
    accesses, access_uses, first_access = _accesses(problem, sequences)
    return Data(
        horizon=problem.horizon,
        capacity=problem.capacity // align * align,
        channels=problem.channels,
        max_preloads=problem.max_preloads,
        stalls_allowed=int(problem.stalls == "allowed"),
        steps=filled(StepRow, problem.horizon + 1, steps),
        terms=filled(TermRow, len(terms["slow"]), terms),
        table=np.array(table, np.int64),
        tensors=filled(
            TensorRow,
            len(sequences) + 1,
            {
                "bytes": [-(-each.size // align) * align for each in sequences],
                "copy_in": [tensor.copy_in_ps for tensor in problem.tensors],
                "copy_out": [tensor.copy_out_ps for tensor in problem.tensors],
                "is_input": [int(each.is_input) for each in sequences],
                "is_output": [int(each.is_output) for each in sequences],
                "can_copy": [int(each.may_copy) for each in sequences],
                "uniform": [int(each.uniform) for each in sequences],
                "first_access": first_access,
            },
        ),
        accesses=filled(AccessRow, len(accesses["first_use"]), accesses),
        access_uses=filled(UseRow, problem.use_count, access_uses),
    )


Columns = dict[str, list[int]]


def _steps(problem: Problem) -> tuple[Columns, Columns, list[int]]:
    """Columns of the steps and of the terms, and the tables."""
    boundaries = Boundaries(problem.horizon, problem.loops)
    first_use, first_term = [0], [0]
    slow: list[int] = []
    fast: list[int] = []
    table: list[int] = []
    at: Columns = {"table": [], "table_use": [], "table_uses": []}
    for step in problem.steps:
        first_use.append(first_use[-1] + len(step.uses))
        for piece in step.pieces:
            slow += (piece.base_ps, *piece.slow_ps)
            fast += (piece.base_ps, *piece.fast_ps)
        first_term.append(len(slow))
        at["table"].append(-1 if step.table is None else len(table))
        table += () if step.table is None else step.table.latency_ps
        at["table_use"].append(len(table))
        table += () if step.table is None else step.table.uses
        at["table_uses"].append(0 if step.table is None else len(step.table.uses))
    columns = {
        "weight": [step.weight for step in problem.steps],
        "floor": [step.weight * step.floor_ps for step in problem.steps],
        "first_use": first_use,
        "first_term": first_term,
        "down": boundaries.prev.tolist(),
        "up": boundaries.next.tolist(),
        **at,
    }
    return columns, {"slow": slow, "fast": fast}, table


def _accesses(problem: Problem, sequences: Sequence[TensorAccesses]) -> tuple[Columns, Columns, list[int]]:
    """Columns of the accesses and of their uses, and the first access of each tensor."""
    single = {loop.start for loop in problem.loops if loop.end == loop.start + 1}
    first_access = [0]
    found: Columns = {"low": [], "high": [], "reads": [], "writes": [], "defines": [], "first_use": []}
    listed: Columns = {"use": [], "step": []}
    for each in sequences:
        # Steps that an access stands for: the outermost loop that the tensor is outside of, or the step.
        down, up = each.residency.prev.tolist(), each.residency.next.tolist()
        for access in each.accesses:
            low = down[access.step]
            if len(found["low"]) == first_access[-1] or found["low"][-1] != low:
                row = {"low": low, "high": up[access.step + 1], "reads": 0, "writes": 0, "first_use": len(listed["use"])}
                for name, value in row.items():
                    found[name].append(value)
            found["reads"][-1] |= access.read is not None
            found["writes"][-1] |= access.write is not None
            listed["use"] += sorted(access.uses)
            listed["step"] += [access.step] * len(access.uses)
        for number in range(first_access[-1], len(found["low"])):
            # A whole new version may begin a residency where it is written, but not inside a loop around it.
            low, whole = found["low"][number], found["writes"][number] and not found["reads"][number]
            is_inside = low in single and (each.is_input or each.is_output or len(each) > 1)
            found["defines"].append(int(whole and found["high"][number] == low + 1 and not is_inside))
        first_access.append(len(found["low"]))
    found["first_use"].append(len(listed["use"]))
    return found, listed, first_access
