"""Latencies of steps for exact models: simplified, and as linear lower bounds in the variables "this use is fast".

A *use* is a read or a write of one tensor by one step. It is fast if it is served from fast memory, otherwise slow. The latency
of a step is the maximum of several affine functions (*pieces*), or an entry of a table that has a latency for each subset of
its uses. The maximum of pieces is bounded from below by each of them, which is exact for 0/1 values if the latency is
minimized. A short table is bounded by its convex hull. A long table is bounded by the convex hull over some of its uses, with
the least entry over the others, and by affine functions that lie below all entries. Tables need not be monotone: a fast use may
make a step slower. Nothing here raises an error for valid arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stowplan.models.memory_mapping.accesses import TensorAccesses
from stowplan.models.memory_mapping.problem import Piece, Problem, Step

if TYPE_CHECKING:
    from stowplan.models.mip.matrix import Program

#: Largest number of uses of a table for which the convex hull is modelled, with a column for each subset. A smaller number is
#: less tight for tables that are far from affine, and a larger one hardly helps.
MAX_HULL_USES = 5


@dataclass(frozen=True, slots=True)
class Affine:
    """The function ``constant + sum(gain[u] for u fast)`` of the fast uses of a step, in ps."""

    constant: int
    """Value if all uses are slow."""
    gain: tuple[int, ...]
    """Change of the value for each use that is fast; negative if fast memory helps."""

    def least(self) -> int:
        """Smallest value over all choices of fast uses."""
        return self.constant + sum(min(0, gain) for gain in self.gain)

    def most(self) -> int:
        """Largest value over all choices of fast uses."""
        return self.constant + sum(max(0, gain) for gain in self.gain)

    def less(self, other: Affine) -> Affine:
        """This function minus another one."""
        return Affine(self.constant - other.constant, tuple(a - b for a, b in zip(self.gain, other.gain, strict=True)))


@dataclass(frozen=True, slots=True)
class StepLatency:
    """Latency of one run of a step in ps: the largest of ``pieces``, or an entry of ``table``."""

    pieces: tuple[Affine, ...]
    """Affine functions of the fast uses; empty if there is a table."""
    table_uses: tuple[int, ...] = ()
    """Positions, in the step's list of uses, of the uses that the table is about."""
    table: tuple[int, ...] = ()
    """Latency for each subset of ``table_uses``, in the form of :class:`~stowplan.models.memory_mapping.problem.Table`."""

    @staticmethod
    def of(step: Step) -> StepLatency:
        """The latency of a step, without pieces that are never the largest."""
        if step.table is not None:
            return StepLatency((), step.table.uses, step.table.latency_ps)
        return StepLatency(_undominated([_affine(piece) for piece in step.pieces]))

    def may_gain(self, use: int) -> bool:
        """Whether making the ``use``-th use fast makes the step faster, for some choice of the other uses."""
        if self.table:
            return any(change < 0 for change in self._changes(use))
        return any(piece.gain[use] < 0 for piece in self.pieces)

    def never_loses(self, use: int) -> bool:
        """Whether making the ``use``-th use fast never makes the step slower, for all choices of the other uses."""
        if self.table:
            return all(change <= 0 for change in self._changes(use))
        return all(piece.gain[use] <= 0 for piece in self.pieces)

    def most_gained(self, use: int) -> int:
        """The largest saving in ps from making the ``use``-th use fast, over all choices of the other uses; at least 0."""
        gains = [-change for change in self._changes(use)] if self.table else [-piece.gain[use] for piece in self.pieces]
        return max([0, *gains])

    def possible(self, may_be_fast: Sequence[bool]) -> tuple[Affine, ...]:
        """The pieces that can be the largest if only some uses may be fast and all other uses are slow."""
        return _undominated(
            [Affine(p.constant, tuple(g if m else 0 for g, m in zip(p.gain, may_be_fast, strict=True))) for p in self.pieces]
        )

    def _changes(self, use: int) -> list[int]:
        """The changes of a table's entries when the ``use``-th use becomes fast; empty if the table is not about this use."""
        if use not in self.table_uses:
            return []
        return marginals(self.table, self.table_uses.index(use))

    def add_to(self, program: Program, fast: Sequence[Sequence[int]], weight: int) -> tuple[int, list[tuple[int, int]]]:
        """Add a lower bound on the latency, multiplied by ``weight`` (how often the step runs), to a linear program.

        ``fast[i]`` lists the columns whose sum says whether the i-th use is fast; with an empty list the use is slow.

        Returns
        -------
        tuple
            The bound as a constant and terms (column, coefficient), in ps.
        """
        if self.table:
            return self._add_table(program, fast, weight)
        pieces = self.possible([bool(columns) for columns in fast])
        if len(pieces) == 1:
            return weight * pieces[0].constant, _scaled(pieces[0].gain, fast, weight)
        return _largest(program, pieces, fast, weight)

    def _add_table(self, program: Program, fast: Sequence[Sequence[int]], weight: int) -> tuple[int, list[tuple[int, int]]]:
        """Add rows and columns for a latency table; returns a constant and terms whose sum is a bound on the latency."""
        table = open_entries(self.table, [bool(fast[use]) for use in self.table_uses])
        columns = [fast[use] for use in self.table_uses if fast[use]]
        if len(columns) <= MAX_HULL_USES:
            return 0, _hull(program, table, columns, weight)
        # The table has too many entries to give each a column. Use affine bounds in all uses, and the hull over the most
        # important ones.
        constant, terms = _largest(program, affine_lower_bounds(table), columns, weight, table)
        bits = hull_bits(table)
        hull = _hull(program, least_over(table, bits), [columns[bit] for bit in bits], 1)
        program.add_row([(terms[0][0], 1), *((column, -value) for column, value in hull)], 0)
        return constant, terms


class Savings:
    """The latencies of all steps, and which uses and tensors can save time by fast memory."""

    def __init__(self, problem: Problem):
        self._capacity = problem.capacity
        self.latencies = [StepLatency.of(step) for step in problem.steps]
        self._never_loses: list[bool] = []
        self._may_gain = [False] * len(problem.tensors)
        for step, latency in zip(problem.steps, self.latencies, strict=True):
            for place, use in enumerate(step.uses):
                self._never_loses.append(latency.never_loses(place))
                self._may_gain[use.tensor] |= latency.may_gain(place)

    def never_loses(self, use: int) -> bool:
        """Whether making this use fast never makes its step slower, for all choices of the step's other uses."""
        return self._never_loses[use]

    def is_candidate(self, sequence: TensorAccesses) -> bool:
        """Whether the tensor fits into fast memory and some step could become faster by having it there.

        All other tensors can stay in slow memory: no step becomes slower, and they need no copies and no fast memory.
        """
        return sequence.size <= self._capacity and self._may_gain[sequence.tensor]


def marginals(table: Sequence[int], bit: int) -> list[int]:
    """The changes of the latency when use ``bit`` of a table becomes fast, one for every choice of the other uses."""
    return [table[mask | 1 << bit] - value for mask, value in enumerate(table) if not mask >> bit & 1]


def open_entries(table: Sequence[int], is_open: Sequence[bool]) -> list[int]:
    """The entries of a table for the uses that may be fast, as ``is_open`` says; all other uses are slow."""
    never = sum(1 << bit for bit, use_is_open in enumerate(is_open) if not use_is_open)
    return [value for mask, value in enumerate(table) if not mask & never]


def hull_bits(table: Sequence[int]) -> list[int]:
    """The bits of the :data:`MAX_HULL_USES` uses that change the entries of a table most on average, ascending."""
    bits = range(len(table).bit_length() - 1)
    order = sorted(bits, key=lambda bit: (-sum(map(abs, marginals(table, bit))), bit))
    return sorted(order[:MAX_HULL_USES])


def least_over(table: Sequence[int], bits: Sequence[int]) -> list[int]:
    """A table over some of the uses of ``table``, given by their bits. Each entry is the least latency over all choices of the
    other uses."""
    least = [max(table)] * (1 << len(bits))
    for mask, value in enumerate(table):
        at = sum(1 << place for place, bit in enumerate(bits) if mask >> bit & 1)
        least[at] = min(least[at], value)
    return least


def affine_lower_bounds(table: Sequence[int]) -> list[Affine]:
    """Three affine functions that lie below all entries of a table of ``2**k`` latencies.

    The first is exact if all uses are slow, and the second if all are fast. The third is a least-squares fit that is lowered
    until it lies below all entries.
    """
    bits = range(len(table).bit_length() - 1)
    changes = [marginals(table, bit) for bit in bits]
    from_slow = Affine(table[0], tuple(min(change) for change in changes))
    most = tuple(max(change) for change in changes)
    from_fast = Affine(table[-1] - sum(most), most)
    masks = np.arange(len(table))
    chosen = np.stack([np.ones(len(table)), *((masks >> bit & 1).astype(float) for bit in bits)], axis=1)
    fit = np.linalg.lstsq(chosen, np.array(table, dtype=float), rcond=None)[0]
    gain = tuple(round(float(value)) for value in fit[1:])
    # Errors of the fit and of rounding do no harm, since the constant is lowered until no entry lies below the function.
    constant = min(value - sum(g for bit, g in enumerate(gain) if mask >> bit & 1) for mask, value in enumerate(table))
    return [from_slow, from_fast, Affine(constant, gain)]


def _affine(piece: Piece) -> Affine:
    """The same function as a constant for all uses slow and the change by each fast use."""
    gains = tuple(fast - slow for slow, fast in zip(piece.slow_ps, piece.fast_ps, strict=True))
    return Affine(piece.base_ps + sum(piece.slow_ps), gains)


def _undominated(pieces: Sequence[Affine]) -> tuple[Affine, ...]:
    """The pieces without those that never exceed some other piece; of equal pieces, the last one is retained."""
    undominated: list[Affine] = []
    for number, piece in enumerate(pieces):
        if all(piece.less(other).most() > 0 for other in (*undominated, *pieces[number + 1 :])):
            undominated.append(piece)
    return tuple(undominated)


def _hull(program: Program, table: Sequence[int], columns: Sequence[Sequence[int]], weight: int) -> list[tuple[int, int]]:
    """Add a column for each entry of a table, which together choose a convex combination of the entries.

    Returns the terms of ``weight`` times the chosen value.
    """
    hull = [program.column(1, integer=False) for _ in table]
    program.add_row([(column, 1) for column in hull], 1, 1)
    for bit, parts in enumerate(columns):
        chosen = [(column, 1) for mask, column in enumerate(hull) if mask >> bit & 1]
        program.add_row(chosen + [(part, -1) for part in parts], 0, 0)
    return [(column, weight * value) for column, value in zip(hull, table, strict=True) if value]


def _largest(
    program: Program, pieces: Sequence[Affine], fast: Sequence[Sequence[int]], weight: int, table: Sequence[int] = (0,)
) -> tuple[int, list[tuple[int, int]]]:
    """Add a column that is at least as large as each of the pieces, and as the least entry of a table.

    Coefficients are reduced such that no single use lowers a piece below the step's least latency. This changes nothing for 0/1
    values and makes the relaxation tighter for fractions. Returns a constant of 0, and ``weight`` times the column as terms.
    """
    floor = max(0, min(table), *(piece.least() for piece in pieces))
    column = program.column(max(*table, *(piece.most() for piece in pieces)), lower=floor, integer=False)
    for piece in pieces:
        gain_of: dict[tuple[int, ...], int] = {}
        for gain, parts in zip(piece.gain, fast, strict=True):
            if gain and parts:
                gain_of[tuple(parts)] = gain_of.get(tuple(parts), 0) + gain
        highest = piece.constant + sum(max(0, gain) for gain in gain_of.values())
        terms = [(part, -max(gain, min(0, floor - highest))) for parts, gain in gain_of.items() for part in parts]
        if highest > floor:
            program.add_row([(column, 1), *terms], piece.constant)
    return 0, [(column, weight)]


def _scaled(gains: Sequence[int], fast: Sequence[Sequence[int]], weight: int) -> list[tuple[int, int]]:
    """Terms for ``weight`` times the gains of the fast uses."""
    return [(column, weight * gain) for gain, parts in zip(gains, fast, strict=True) if gain for column in parts]
