"""Latency of steps, reduced to what matters, and as linear terms over "this use is fast" that never exceed it.

The largest of several affine pieces is bounded by each of them: exact for 0/1 values wherever latency is minimised. A table
is bounded by its convex hull where it is short. Else it is bounded by the hull of its least entries over some of its uses and
by affine functions that lie under all of its entries. No entry need be less than another: fast memory may make a step slower.
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

#: Uses whose subsets get a column each, at most: fewer leave gaps where tables are far from affine, more are hardly tighter.
MAX_HULL_USES = 5


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + sum(gain[u] for u fast)``, in ps; ``gain`` is negative where fast memory helps."""

    constant: int
    gain: tuple[int, ...]

    def least(self) -> int:
        """Least value over all choices."""
        return self.constant + sum(min(0, gain) for gain in self.gain)

    def most(self) -> int:
        """Largest value over all choices."""
        return self.constant + sum(max(0, gain) for gain in self.gain)

    def less(self, other: Affine) -> Affine:
        """Their difference."""
        return Affine(self.constant - other.constant, tuple(a - b for a, b in zip(self.gain, other.gain, strict=True)))


@dataclass(frozen=True, slots=True)
class StepLatency:
    """Latency of one run of a step: the largest of ``pieces``, or ``table`` over ``table_uses``."""

    pieces: tuple[Affine, ...]
    table_uses: tuple[int, ...] = ()
    table: tuple[int, ...] = ()

    @staticmethod
    def of(step: Step) -> StepLatency:
        """Latency of the step, without the pieces that never decide it."""
        if step.table is not None:
            return StepLatency((), step.table.uses, step.table.latency_ps)
        return StepLatency(_undominated([_affine(piece) for piece in step.pieces]))

    def may_gain(self, use: int) -> bool:
        """Whether the step can run faster with its ``use``-th use fast, for some choice of the others."""
        if self.table:
            return any(change < 0 for change in self._changes(use))
        return any(piece.gain[use] < 0 for piece in self.pieces)

    def never_loses(self, use: int) -> bool:
        """Whether the step runs no slower with its ``use``-th use fast, whatever the others do."""
        if self.table:
            return all(change <= 0 for change in self._changes(use))
        return all(piece.gain[use] <= 0 for piece in self.pieces)

    def most_gained(self, use: int) -> int:
        """The most that the step runs faster with its ``use``-th use fast, over all choices of the others; at least 0."""
        gains = [-change for change in self._changes(use)] if self.table else [-piece.gain[use] for piece in self.pieces]
        return max([0, *gains])

    def possible(self, may_be_fast: Sequence[bool]) -> tuple[Affine, ...]:
        """The pieces that may decide the latency where only some uses may be fast; the others are slow."""
        return _undominated(
            [Affine(p.constant, tuple(g if m else 0 for g, m in zip(p.gain, may_be_fast, strict=True))) for p in self.pieces]
        )

    def _changes(self, use: int) -> list[int]:
        if use not in self.table_uses:
            return []
        return marginals(self.table, self.table_uses.index(use))

    def add_to(self, program: Program, fast: Sequence[Sequence[int]], weight: int) -> tuple[int, list[tuple[int, int]]]:
        """``weight`` times a lower bound of the latency, as a constant and terms over columns.

        ``fast[i]`` lists columns whose sum says whether the i-th use is fast; an empty one is slow for certain.
        """
        if self.table:
            return self._add_table(program, fast, weight)
        pieces = self.possible([bool(columns) for columns in fast])
        if len(pieces) == 1:
            return weight * pieces[0].constant, _scaled(pieces[0].gain, fast, weight)
        return _largest(program, pieces, fast, weight)

    def _add_table(self, program: Program, fast: Sequence[Sequence[int]], weight: int) -> tuple[int, list[tuple[int, int]]]:
        table = open_entries(self.table, [bool(fast[use]) for use in self.table_uses])
        columns = [fast[use] for use in self.table_uses if fast[use]]
        if len(columns) <= MAX_HULL_USES:
            return 0, _hull(program, table, columns, weight)
        # More entries than columns are wanted: affine functions of all uses, and the hull over those that decide most.
        constant, terms = _largest(program, affine_lower_bounds(table), columns, weight, table)
        bits = hull_bits(table)
        hull = _hull(program, least_over(table, bits), [columns[bit] for bit in bits], 1)
        program.add_row([(terms[0][0], 1), *((column, -value) for column, value in hull)], 0)
        return constant, terms


class Savings:
    """What fast memory can save: latencies of all steps, and what they say of uses and tensors."""

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
        """Whether the step of this use runs no slower with it fast, whatever its other uses do."""
        return self._never_loses[use]

    def is_candidate(self, sequence: TensorAccesses) -> bool:
        """Whether the tensor fits into fast memory and some step may gain from it.

        Any other tensor may as well stay in slow memory: no step gets slower, and its copies and its place are saved.
        """
        return sequence.size <= self._capacity and self._may_gain[sequence.tensor]


def marginals(table: Sequence[int], bit: int) -> list[int]:
    """Change of the latency when use ``bit`` becomes fast, for every choice of the others."""
    return [table[mask | 1 << bit] - value for mask, value in enumerate(table) if not mask >> bit & 1]


def open_entries(table: Sequence[int], is_open: Sequence[bool]) -> list[int]:
    """The entries of a table in which all uses that are not open are slow."""
    never = sum(1 << bit for bit, use_is_open in enumerate(is_open) if not use_is_open)
    return [value for mask, value in enumerate(table) if not mask & never]


def hull_bits(table: Sequence[int]) -> list[int]:
    """Bits of the :data:`MAX_HULL_USES` uses that change a table most in the mean, ascending."""
    bits = range(len(table).bit_length() - 1)
    order = sorted(bits, key=lambda bit: (-sum(map(abs, marginals(table, bit))), bit))
    return sorted(order[:MAX_HULL_USES])


def least_over(table: Sequence[int], bits: Sequence[int]) -> list[int]:
    """The table over some of its uses, each entry the least whatever the others do."""
    least = [max(table)] * (1 << len(bits))
    for mask, value in enumerate(table):
        at = sum(1 << place for place, bit in enumerate(bits) if mask >> bit & 1)
        least[at] = min(least[at], value)
    return least


def affine_lower_bounds(table: Sequence[int]) -> list[Affine]:
    """Affine functions under all entries of a table of ``2**k`` latencies: tight at all slow, tight at all fast, and a fit."""
    bits = range(len(table).bit_length() - 1)
    changes = [marginals(table, bit) for bit in bits]
    from_slow = Affine(table[0], tuple(min(change) for change in changes))
    most = tuple(max(change) for change in changes)
    from_fast = Affine(table[-1] - sum(most), most)
    masks = np.arange(len(table))
    chosen = np.stack([np.ones(len(table)), *((masks >> bit & 1).astype(float) for bit in bits)], axis=1)
    fit = np.linalg.lstsq(chosen, np.array(table, dtype=float), rcond=None)[0]
    gain = tuple(round(float(value)) for value in fit[1:])
    # Rounding and the fit's errors do not matter: the constant is lowered until no entry lies below.
    constant = min(value - sum(g for bit, g in enumerate(gain) if mask >> bit & 1) for mask, value in enumerate(table))
    return [from_slow, from_fast, Affine(constant, gain)]


def _affine(piece: Piece) -> Affine:
    gains = tuple(fast - slow for slow, fast in zip(piece.slow_ps, piece.fast_ps, strict=True))
    return Affine(piece.base_ps + sum(piece.slow_ps), gains)


def _undominated(pieces: Sequence[Affine]) -> tuple[Affine, ...]:
    """The pieces that somewhere exceed each of the others; of equal ones the last."""
    kept: list[Affine] = []
    for number, piece in enumerate(pieces):
        if all(piece.less(other).most() > 0 for other in (*kept, *pieces[number + 1 :])):
            kept.append(piece)
    return tuple(kept)


def _hull(program: Program, table: Sequence[int], columns: Sequence[Sequence[int]], weight: int) -> list[tuple[int, int]]:
    """``weight`` times a point of the table's convex hull, as terms: a column for each entry."""
    hull = [program.column(1, integer=False) for _ in table]
    program.add_row([(column, 1) for column in hull], 1, 1)
    for bit, parts in enumerate(columns):
        chosen = [(column, 1) for mask, column in enumerate(hull) if mask >> bit & 1]
        program.add_row(chosen + [(part, -1) for part in parts], 0, 0)
    return [(column, weight * value) for column, value in zip(hull, table, strict=True) if value]


def _largest(
    program: Program, pieces: Sequence[Affine], fast: Sequence[Sequence[int]], weight: int, table: Sequence[int] = (0,)
) -> tuple[int, list[tuple[int, int]]]:
    """A column no less than any of the pieces, nor than the least entry of a table; it may take the largest.

    No single gain counts for more than lifts its piece to the floor of the step: for 0/1 values that is the same, and for
    fractions it is tighter.
    """
    floor = max(0, min(table), *(piece.least() for piece in pieces))
    column = program.column(max(*table, *(piece.most() for piece in pieces)), lower=floor, integer=False)
    for piece in pieces:
        together: dict[tuple[int, ...], int] = {}
        for gain, parts in zip(piece.gain, fast, strict=True):
            if gain and parts:
                together[tuple(parts)] = together.get(tuple(parts), 0) + gain
        highest = piece.constant + sum(max(0, gain) for gain in together.values())
        terms = [(part, -max(gain, min(0, floor - highest))) for parts, gain in together.items() for part in parts]
        if highest > floor:
            program.add_row([(column, 1), *terms], piece.constant)
    return 0, [(column, weight)]


def _scaled(gains: Sequence[int], fast: Sequence[Sequence[int]], weight: int) -> list[tuple[int, int]]:
    return [(column, weight * gain) for gain, parts in zip(gains, fast, strict=True) if gain for column in parts]
