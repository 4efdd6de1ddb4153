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
from stowplan.models.memory_mapping.problem import Loop, Problem

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
    tensors = problem.tensors
    align = problem.alignment
    grouped = problem.alias_rule == "uniform"
    spans = _Spans(problem)
    steps, terms, table = _steps(problem, spans)
    uses = _uses_of(problem)
    internal = [
        spans.internal(tensor.is_input or tensor.is_output, [at for at, *_ in of])
        for tensor, of in zip(tensors, uses, strict=True)
    ]
    accesses, access_uses, first_access = _accesses(spans, uses, internal)
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
            len(tensors) + 1,
            {
                "bytes": [-(-tensor.size // align) * align for tensor in tensors],
                "copy_in": [tensor.copy_in_ps for tensor in tensors],
                "copy_out": [tensor.copy_out_ps for tensor in tensors],
                "is_input": [int(tensor.is_input) for tensor in tensors],
                "is_output": [int(tensor.is_output) for tensor in tensors],
                "can_copy": [int(not loops) for loops in internal],
                "uniform": [int(grouped and len(tensor.members) > 1) for tensor in tensors],
                "first_access": first_access,
            },
        ),
        accesses=filled(AccessRow, len(accesses["first_use"]), accesses),
        access_uses=filled(UseRow, problem.use_count, access_uses),
    )


Columns = dict[str, list[int]]


def _steps(problem: Problem, spans: _Spans) -> tuple[Columns, Columns, list[int]]:
    """Columns of the steps and of the terms, and the tables."""
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
        "down": spans.down,
        "up": spans.up,
        **at,
    }
    return columns, {"slow": slow, "fast": fast}, table


def _uses_of(problem: Problem) -> list[list[tuple[int, int, bool]]]:
    """Step, number and kind of the uses of each tensor."""
    uses: list[list[tuple[int, int, bool]]] = [[] for _ in problem.tensors]
    number = 0
    for index, step in enumerate(problem.steps):
        for use in step.uses:
            uses[use.tensor].append((index, number, use.is_output))
            number += 1
    return uses


def _accesses(
    spans: _Spans, uses: list[list[tuple[int, int, bool]]], internal: list[int]
) -> tuple[Columns, Columns, list[int]]:
    """Columns of the accesses and of their uses, and the first access of each tensor."""
    first_access = [0]
    found: Columns = {"low": [], "high": [], "reads": [], "writes": [], "defines": [], "first_use": []}
    listed: Columns = {"use": [], "step": []}
    for of, loops in zip(uses, internal, strict=True):
        for step, number, is_output in of:
            low, high = spans.span(step, loops)
            if len(found["low"]) == first_access[-1] or found["low"][-1] != low:
                row = {"low": low, "high": high, "reads": 0, "writes": 0, "first_use": len(listed["use"])}
                for name, value in row.items():
                    found[name].append(value)
            found["writes" if is_output else "reads"][-1] = 1
            listed["use"].append(number)
            listed["step"].append(step)
        for access in range(first_access[-1], len(found["low"])):
            # A whole new version may begin a residency where it is written, but not inside a loop around it.
            low, whole = found["low"][access], found["writes"][access] and not found["reads"][access]
            found["defines"].append(int(whole and found["high"][access] == low + 1 and spans.free_of(low, loops)))
        first_access.append(len(found["low"]))
    found["first_use"].append(len(listed["use"]))
    return found, listed, first_access


class _Spans:
    """Where loops let residencies and copies begin and end."""

    def __init__(self, problem: Problem):
        horizon = problem.horizon
        # Loops around each step, outermost first.
        self.around: list[list[Loop]] = [[] for _ in range(horizon)]
        for loop in sorted(problem.loops, key=lambda loop: (loop.start, -loop.end)):
            for step in range(loop.start, loop.end):
                self.around[step].append(loop)
        inside = [False] * (horizon + 1)
        for loop in problem.loops:
            inside[loop.start + 1 : loop.end] = [True] * (loop.end - loop.start - 1)
        self.down = list(range(horizon + 1))
        self.up = list(range(horizon + 1))
        for boundary in range(1, horizon + 1):
            if inside[boundary]:
                self.down[boundary] = self.down[boundary - 1]
        for boundary in range(horizon - 1, -1, -1):
            if inside[boundary]:
                self.up[boundary] = self.up[boundary + 1]

    def internal(self, is_external: bool, steps: list[int]) -> int:
        """How many loops the tensor is internal to: the common prefix of the loops around its uses."""
        if is_external or not steps:
            return 0
        first, last = self.around[steps[0]], self.around[steps[-1]]
        depth = 0
        while depth < min(len(first), len(last)) and first[depth] is last[depth]:
            depth += 1
        return depth

    def span(self, step: int, internal: int) -> tuple[int, int]:
        """Steps an access at ``step`` stands for: the outermost loop that the tensor is outside of, or the step."""
        loops = self.around[step]
        return (loops[internal].start, loops[internal].end) if len(loops) > internal else (step, step + 1)

    def free_of(self, step: int, internal: int) -> bool:
        """Whether no loop that the tensor is outside of contains the step."""
        return len(self.around[step]) <= internal
