"""A memory-mapping problem as flat arrays, for the compiled heuristics.

The unit of decision is the *access*: everything a tensor undergoes at one step, or, for a tensor from outside a loop, in the
whole of that loop, because the rules make such a tensor fast for all of the loop or for none of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.models.memory_mapping.problem import Loop, Problem

Ints = NDArray[np.int64]

# What happens in an access.
READS, WRITES, DEFINES = 1, 2, 4

# Columns of Data.steps ...
WEIGHT, FLOOR, STEP_USE, STEP_PIECE, STEP_TABLE, STEP_TABLE_USE = range(6)
# ... of Data.pieces and Data.terms ...
BASE, TERM = range(2)
SLOW, FAST = range(2)
# ... of Data.tensors ...
SIZE, COPY_IN, COPY_OUT, IS_INPUT, IS_OUTPUT, CAN_COPY, UNIFORM, ACCESS = range(8)
# ... of Data.accesses ...
LOW, HIGH, FLAGS, ACCESS_USE = range(4)
# ... and of Data.snap.
DOWN, UP = range(2)


class Data(NamedTuple):
    """Read-only tables of int64. A column that points into another table holds the first of a row's entries there.

    The next row holds the first entry after them, so these tables have one row more than there are things. The tables are
    few and wide because every array of a tuple is passed on its own to each compiled function, which takes long to compile.
    """

    horizon: int
    capacity: int
    channels: int
    max_preloads: int
    stalls_allowed: int
    steps: Ints
    """[T + 1, 6]: weight, weighted least latency (ps), first use, piece, table entry (-1: none), table use."""
    pieces: Ints
    """[P + 1, 2]: base (ps), first term."""
    terms: Ints
    """[., 2]: slow and fast term (ps) of one use in one piece; a piece's terms follow its step's uses."""
    table_uses: Ints
    """[.]: positions in the step's uses."""
    table: Ints
    """[.]: latencies (ps)."""
    use_step: Ints
    """[U]: step of each use."""
    tensors: Ints
    """[N + 1, 8]: bytes rounded up to the alignment, copy in (ps), copy out (ps), program input, program output, may be
    copied (not internal to a loop), must be fast throughout and in one place or not at all, first access."""
    accesses: Ints
    """[A + 1, 4]: first step, one past the last step, what happens, first use."""
    access_uses: Ints
    """[.]: uses of the accesses."""
    snap: Ints
    """[T + 1, 2]: the latest boundary not after this one, and the earliest not before, at which copies may begin or end."""


def build(problem: Problem) -> Data:
    """Arrays of ``problem``; takes some 20 us a use."""
    steps, tensors = problem.steps, problem.tensors
    use_ptr, piece_ptr, term_ptr, table_use_ptr = [0], [0], [0], [0]
    piece_base: list[int] = []
    slow_term: list[int] = []
    fast_term: list[int] = []
    table: list[int] = []
    table_ptr: list[int] = []
    table_uses: list[int] = []
    use_step: list[int] = []
    uses_of: list[list[tuple[int, int, bool]]] = [[] for _ in tensors]
    for index, step in enumerate(steps):
        for use in step.uses:
            uses_of[use.tensor].append((index, len(use_step), use.is_output))
            use_step.append(index)
        use_ptr.append(len(use_step))
        for piece in step.pieces:
            piece_base.append(piece.base_ps)
            slow_term.extend(piece.slow_ps)
            fast_term.extend(piece.fast_ps)
            term_ptr.append(len(slow_term))
        piece_ptr.append(len(piece_base))
        table_ptr.append(-1 if step.table is None else len(table))
        if step.table is not None:
            table.extend(step.table.latency_ps)
            table_uses.extend(step.table.uses)
        table_use_ptr.append(len(table_uses))

    spans = _Spans(problem)
    access_ptr, access_use_ptr = [0], [0]
    low: list[int] = []
    high: list[int] = []
    flags: list[int] = []
    access_uses: list[int] = []
    can_copy: list[int] = []
    for tensor, uses in zip(tensors, uses_of, strict=True):
        internal = spans.internal(tensor.is_input or tensor.is_output, [at for at, _, _ in uses])
        can_copy.append(0 if internal else 1)
        first = len(low)
        for at, number, is_output in uses:
            begin, end = spans.span(at, internal)
            if len(low) == first or low[-1] != begin:
                low.append(begin)
                high.append(end)
                flags.append(0)
                access_use_ptr.append(len(access_uses))
            flags[-1] |= WRITES if is_output else READS
            access_uses.append(number)
            access_use_ptr[-1] = len(access_uses)
        for access in range(first, len(low)):
            # A whole new version may begin a residency where it is written, but not inside a loop around it.
            if flags[access] == WRITES and high[access] == low[access] + 1 and spans.free_of(low[access], internal):
                flags[access] |= DEFINES
        access_ptr.append(len(low))

    grouped = problem.alias_rule == "uniform"
    align = problem.alignment
    size = [-(-tensor.size // align) * align for tensor in tensors]
    return Data(
        horizon=problem.horizon,
        capacity=problem.capacity // align * align,
        channels=problem.channels,
        max_preloads=problem.max_preloads,
        stalls_allowed=int(problem.stalls == "allowed"),
        steps=_table(
            [step.weight for step in steps],
            [step.weight * step.floor_ps for step in steps],
            use_ptr,
            piece_ptr,
            table_ptr,
            table_use_ptr,
        ),
        pieces=_table(piece_base, term_ptr),
        terms=_table(slow_term, fast_term),
        table_uses=np.array(table_uses, np.int64),
        table=np.array(table, np.int64),
        use_step=np.array(use_step, np.int64),
        tensors=_table(
            size,
            [tensor.copy_in_ps for tensor in tensors],
            [tensor.copy_out_ps for tensor in tensors],
            [int(tensor.is_input) for tensor in tensors],
            [int(tensor.is_output) for tensor in tensors],
            can_copy,
            [int(grouped and len(tensor.members) > 1) for tensor in tensors],
            access_ptr,
        ),
        accesses=_table(low, high, flags, access_use_ptr),
        access_uses=np.array(access_uses, np.int64),
        snap=_table(spans.down, spans.up),
    )


def _table(*columns: list[int]) -> Ints:
    """Columns side by side, short ones filled up with zeros."""
    table = np.zeros((max(map(len, columns)), len(columns)), np.int64)
    for number, column in enumerate(columns):
        table[: len(column), number] = column
    return table


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
