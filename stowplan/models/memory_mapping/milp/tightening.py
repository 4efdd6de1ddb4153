"""Tightens the plain relaxation: rows that solutions violate (windows, cuts), and more detail about the time of copies.

A *boundary* is the moment before a step. The *accesses* of a tensor are the steps that use it, and a *gap* is the time between
two accesses (:mod:`stowplan.models.memory_mapping.accesses`). Nothing here raises an error for valid arguments.

A *window* is the time between two boundaries, and has a row: the copies that must run within the window take no more time than
the channels have there (lemma B2 of ``docs/reference/memory-mapping-models.md``). If stalls are forbidden, the time of a
channel is the least time that the steps of the window can take. If they are allowed, it is a sum of columns, including waits.
There is a window for each pair of boundaries; only those that a solution violates are added.

*Rounding cuts* come from mixed-integer rounding of rows. They are computed in whole numbers, so they hold for every plan,
whatever numerical errors a solver makes. The formula is lemma B4 (Marchand and Wolsey, "Aggregation and mixed integer rounding
to solve MIPs", 2001). Before rounding, 0/1 columns x near one are replaced by ``1 - x``, and continuous columns by their
distance from a bound.

*Detail in time* is about the memory that tensors occupy while they are copied. In the plain relaxation, a tensor can leave fast
memory before its copy-out ends, and a tensor that is copied in occupies memory only shortly before its use.
:class:`DetailedModel` distinguishes *when* a copy ends or starts. The boundaries of a gap are divided into groups: short ones
next to the access, where most copies run, and longer ones farther away. A copy-out that ends in a group keeps its tensor
resident up to the group's first boundary. A copy-in that starts in a group occupies memory from the group's last boundary on,
and must run in a shorter window (lemma B3). Memory is limited by a row for each step at which the most columns occupy it,
instead of a chain of columns of occupied units, since solvers find cover cuts in such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from stowplan.models.memory_mapping.accesses import TensorAccesses
from stowplan.models.memory_mapping.milp.model import CopyJob, RelaxationModel, TensorColumns
from stowplan.models.mip.matrix import INFINITE, FloatArray, IntArray, Rows

#: The first and the last boundary of a window.
Window = tuple[int, int]

#: Largest overlap of two windows that are added in the same round, as a fraction of their union (:func:`_diverse`).
MOST_OVERLAP = 0.6


class WindowSeparator:
    """Finds windows that a solution violates, and builds their rows. Copies that take no time are ignored."""

    def __init__(self, model: RelaxationModel):
        self.model = model
        jobs = [job for job in model.jobs if job.duration_ps]
        self._column = np.array([job.column for job in jobs], dtype=np.int64)
        self._minus = np.array([-1 if job.minus is None else job.minus for job in jobs], dtype=np.int64)
        self._release = np.array([job.release for job in jobs], dtype=np.int64)
        self._deadline = np.array([job.deadline for job in jobs], dtype=np.int64)
        self._duration = np.array([job.duration_ps for job in jobs], dtype=np.int64)
        self._channels = model.problem.channels
        self.returned: dict[Window, None] = {}
        """All windows that :meth:`find` has returned, in the order in which they were returned."""

    def find(self, values: FloatArray, *, tolerance_ps: float, limit: int) -> list[Window]:
        """Find windows that are violated and were not returned before. For each last boundary, the most violated window is
        found. Among these windows, the ``limit`` most violated ones are returned.

        Of several windows that share most of their time, only the most violated one is returned, since they are nearly
        equivalent.

        Parameters
        ----------
        values : shape ``[columns]``
            A solution of the relaxation.
        tolerance_ps
            Smallest violation in ps that counts.
        limit
            Largest number of windows.
        """
        if not len(self._column):
            return []
        share = values[self._column] - np.where(self._minus >= 0, values[self._minus], 0.0)
        active = np.flatnonzero(share > 1e-7)
        if not len(active):
            return []
        arrive, leave = self._moments(values)
        starts, place = np.unique(self._release[active], return_inverse=True)
        demand = share[active] * self._duration[active]
        order = np.argsort(self._deadline[active], kind="stable")
        ends, first = np.unique(self._deadline[active][order], return_index=True)
        # load[k] is the time that the copies take together that may start at starts[k] or later, and whose deadline is no later
        # than the current one.
        load = np.zeros(len(starts))
        offset = self._channels * arrive[starts]
        violated: list[tuple[float, int, int]] = []
        for number, end in enumerate(ends.tolist()):
            stop = first[number + 1] if number + 1 < len(ends) else len(order)
            for job in order[first[number] : stop]:
                load[: place[job] + 1] += demand[job]
            reach = int(np.searchsorted(starts, end, side="right"))
            excess = load[:reach] + offset[:reach]
            best = int(np.argmax(excess))
            violation = float(excess[best]) - self._channels * float(leave[end])
            if violation > tolerance_ps and (int(starts[best]), end) not in self.returned:
                violated.append((-violation, int(starts[best]), end))
        violated.sort()
        windows = _diverse([(start, end) for _, start, end in violated], limit)
        self.returned |= dict.fromkeys(windows)
        return windows

    def _moments(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Times in ps at which each boundary is reached and left, in a solution; shapes ``[T + 1]``."""
        model = self.model
        if not model.stall:
            floors = np.array(model.floor_until, dtype=np.float64)
            return floors, floors
        stall = values[np.array(model.stall)]
        latency = np.array([constant + sum(v * values[c] for c, v in terms) for constant, terms in model.step_terms])
        leave = np.cumsum(stall) + np.concatenate([[0.0], np.cumsum(latency)])
        return leave - stall, leave

    def rows(self, windows: Iterable[Window]) -> Rows:
        """The rows of these windows, one for each, in the same order."""
        model, rows = self.model, Rows()
        for start, end in windows:
            inside = np.flatnonzero((self._release >= start) & (self._deadline <= end))
            duration = self._duration[inside].tolist()
            terms = list(zip(self._column[inside].tolist(), duration, strict=True))
            terms += [(c, -d) for c, d in zip(self._minus[inside].tolist(), duration, strict=True) if c >= 0]
            if model.stall:
                constant, elapsed = model.elapsed(start, end)
                terms += [(column, -self._channels * value) for column, value in elapsed]
            else:
                constant = model.floor_until[end] - model.floor_until[start]
            rows.add(terms, upper=self._channels * constant)
        return rows


def _diverse(windows: list[Window], limit: int) -> list[Window]:
    """Select up to ``limit`` windows, skipping those that overlap a selected one by more than ``MOST_OVERLAP``."""
    chosen: list[Window] = []
    for start, end in windows:
        if len(chosen) == limit:
            break
        # Lengths are counted in boundaries, so that an empty window has length 1.
        if all(
            min(end, other_end) - max(start, other_start) + 1
            <= MOST_OVERLAP * (max(end, other_end) - min(start, other_start) + 1)
            for other_start, other_end in chosen
        ):
            chosen.append((start, end))
    return chosen


#: No cut is sought for a row whose slack is more than this fraction of its largest coefficient.
MOST_SLACK = 0.25

#: The divisors that are tried for a row are the coefficients of this many of its most fractional columns, each divided by these
#: numbers.
COEFFICIENTS = 6
PARTS = (1, 2, 3, 4)

#: Smallest violation of a cut, as a fraction of its norm.
LEAST_VIOLATION = 1e-3

#: Largest number in a cut, so that sums of products with values do not lose digits.
LARGEST = 1 << 50


class Rounding(NamedTuple):
    """How a cut was derived from a row."""

    row: int
    """Number of the row that was rounded."""
    divisor: int
    """Divisor d of lemma B4."""
    turned: IntArray
    """Columns x that were replaced by 1 - x. For a row of memory they are tensors, whose columns are treated as one."""


#: A violated cut: its violation divided by its norm, its columns, coefficients and right-hand side, the divisor, and the
#: columns that were replaced by 1 - x.
_Found = tuple[float, IntArray, IntArray, int, int, IntArray]


class RoundingCuts:
    """Finds rounding cuts of one relaxation that a solution violates.

    Parameters
    ----------
    lower, upper, is_integer : shape ``[columns]``
        Bounds of the columns. Integer columns are 0/1 in every plan.
    owner : shape ``[columns]``
        Tensor of each column, for rows of memory.
    memory_rows
        Rows that limit memory. At most one column of each tensor is 1 in such a row, and they all have the same coefficient, so
        they are rounded as one column.
    """

    def __init__(
        self,
        lower: IntArray,
        upper: IntArray,
        is_integer: npt.NDArray[np.bool_],
        owner: IntArray | None = None,
        memory_rows: Iterable[int] = (),
    ):
        self._owner = np.arange(len(lower)) if owner is None else owner
        self._memory_rows = set(memory_rows)
        self._lower = lower
        self._upper = upper
        self._is_binary = is_integer & (lower == 0) & (upper == 1)
        self._found: set[tuple[bytes, bytes]] = set()
        self.origins: list[Rounding] = []
        """For each of the cuts that :meth:`find` returned last, how it was derived."""

    def find(
        self,
        matrix: sparse.csr_matrix,
        row_lower: IntArray,
        row_upper: IntArray,
        values: FloatArray,
        limit: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Rows:
        """Returns the most violated new cuts from the rows of a matrix, at most ``limit``.

        Parameters
        ----------
        matrix, row_lower, row_upper
            The rows in whole numbers: coefficients of shape ``[rows, columns]``, and limits of shape ``[rows]``.
        values
            A solution, of shape ``[columns]``.
        limit
            Largest number of cuts.
        should_stop
            Called for every row; no further rows are tried when it returns True.
        """
        activity = matrix @ values
        fractional = self._is_binary & (values > 1e-5) & (values < 1 - 1e-5)
        candidates: list[tuple[float, IntArray, IntArray, int, Rounding]] = []
        for row in np.flatnonzero(abs(matrix) @ fractional.astype(np.int64)).tolist():
            if should_stop():
                break
            entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
            columns, coefficients = matrix.indices[entries].astype(np.int64), matrix.data[entries]
            for sign, side in ((1, int(row_upper[row])), (-1, -int(row_lower[row]))):
                slack = side - sign * activity[row]
                if side < INFINITE and slack <= MOST_SLACK * abs(coefficients).max():
                    if row in self._memory_rows:
                        best = self._round_tensors(columns, sign * coefficients, side, values[columns])
                    else:
                        best = self._round(
                            columns, sign * coefficients, side, values[columns], self._lower[columns], self._upper[columns]
                        )
                    if best is not None:
                        candidates.append((*best[:4], Rounding(row, *best[4:])))
        candidates.sort(key=lambda candidate: -candidate[0])
        rows = Rows()
        self.origins = []
        for _, columns, coefficients, side, origin in candidates[:limit]:
            key = columns.tobytes(), coefficients.tobytes()
            if key not in self._found:
                self._found.add(key)
                self.origins.append(origin)
                rows.add(list(zip(columns.tolist(), coefficients.tolist(), strict=True)), upper=side)
        return rows

    def added(self, first: int) -> None:
        """Record that the cuts that :meth:`find` returned last have become rows, from number ``first`` on.

        Cuts of rows of memory count as rows of memory, too.
        """
        self._memory_rows |= {at for at, origin in enumerate(self.origins, first) if origin.row in self._memory_rows}

    def _round_tensors(self, columns: IntArray, coefficients: IntArray, side: int, values: FloatArray) -> _Found | None:
        """The most violated cut of a row of memory, in which the columns of a tensor are treated as one; see :meth:`_round`."""
        tensors, first, place = np.unique(self._owner[columns], return_index=True, return_inverse=True)
        if (coefficients != coefficients[first][place]).any():
            return None
        together = np.bincount(place, weights=values).astype(np.float64)
        one = np.ones(len(tensors), dtype=np.int64)
        cut = self._round(tensors, coefficients[first], side, together, 0 * one, one, is_binary=one > 0)
        if cut is None:
            return None
        cut_of_tensor = dict(zip(cut[1].tolist(), cut[2].tolist(), strict=True))
        cut_coefficients = np.array([cut_of_tensor.get(tensor, 0) for tensor in tensors.tolist()], dtype=np.int64)[place]
        return cut[0], columns[cut_coefficients != 0], cut_coefficients[cut_coefficients != 0], *cut[3:]

    def _round(
        self,
        columns: IntArray,
        coefficients: IntArray,
        side: int,
        values: FloatArray,
        low: IntArray,
        high: IntArray,
        is_binary: npt.NDArray[np.bool_] | None = None,
    ) -> _Found | None:
        """The most violated cut of one row ``coefficients @ x <= side``, at the solution ``values``; None if none is violated.

        ``low`` and ``high`` are bounds of the columns, and ``is_binary`` says which of them are 0/1 (by default those of the
        relaxation).
        """
        binary = self._is_binary[columns] if is_binary is None else is_binary
        # Replace each column by its distance from the nearer bound.
        flipped = (values - low) > (high - values)
        shift = int(sum((coefficients * np.where(flipped, high, low)).astype(object)))
        turned = np.where(flipped, -coefficients, coefficients)
        remaining_side = side - shift
        distances = np.where(flipped, high - values, values - low)
        a, c = turned[binary], np.minimum(turned[~binary], 0)
        x, s = distances[binary], distances[~binary]
        best: tuple[float, int] | None = None
        for divisor in self._divisors(a, x):
            factor = divisor - remaining_side % divisor
            g = _rounded(a, divisor, remaining_side % divisor)
            norm = float(np.sqrt(np.square(g, dtype=np.float64).sum() + np.square(c, dtype=np.float64).sum()))
            excess = float(g @ x + c @ s) - float(factor * (remaining_side // divisor))
            if norm > 0 and excess > LEAST_VIOLATION * norm and (best is None or excess / norm > best[0]):
                best = excess / norm, divisor
        if best is None:
            return None
        divisor = best[1]
        rounded = np.zeros_like(turned)
        rounded[binary], rounded[~binary] = _rounded(a, divisor, remaining_side % divisor), c
        own_side = (divisor - remaining_side % divisor) * (remaining_side // divisor)
        # Express the cut in the original columns.
        final = np.where(flipped, -rounded, rounded)
        own_side += int(sum((final * np.where(flipped, high, low)).astype(object)))
        nonzero = final != 0
        if not nonzero.any() or abs(final).max() > LARGEST or abs(own_side) > LARGEST:
            return None
        return best[0], columns[nonzero], final[nonzero], own_side, divisor, columns[flipped & binary]

    def _divisors(self, a: IntArray, x: FloatArray) -> list[int]:
        """Divisors to try for a row with coefficients ``a`` of binary columns with values ``x``."""
        open_places = np.flatnonzero((x > 1e-5) & (a != 0))
        order = open_places[np.argsort(-np.minimum(x, 1 - x)[open_places], kind="stable")]
        sizes = list(dict.fromkeys(abs(a[order]).tolist()))[:COEFFICIENTS]
        return sorted({size // part for size in sizes for part in PARTS} - {0})


def _rounded(a: IntArray, divisor: int, rest: int) -> IntArray:
    """The coefficients G(a) after mixed-integer rounding (lemma B4); ``rest`` is r, the remainder of the right-hand side."""
    result: IntArray = (divisor - rest) * (a // divisor) + np.maximum(0, a % divisor - rest)
    return result


#: Tensors smaller than this fraction of the capacity are modelled without detail in time.
LEAST_SIZE = 1 / 128

#: The ``SINGLE`` groups next to the access have one boundary each. Each further group is longer than the one before by the
#: factor ``GROWTH``.
SINGLE = 4
GROWTH = 1.5

#: A group of boundaries: the first and the last one.
Group = tuple[int, int]


class DetailedModel(RelaxationModel):
    """A :class:`RelaxationModel` in which larger tensors occupy memory while they are copied.

    The columns ``copy_in`` and ``out`` have the same meaning; further columns say in which group of boundaries the copy starts
    or ends. The attribute ``levels`` stays empty.
    """

    def _columns_of(self, sequence: TensorAccesses) -> TensorColumns:
        if sequence.size < LEAST_SIZE * self.problem.capacity:
            return TensorColumns(self, sequence)
        return _DetailedColumns(self, sequence)

    def _add_capacity(self) -> None:
        by_step: dict[int, list[tuple[int, int]]] = {}
        for step, column, units in self.events:
            by_step.setdefault(step, []).append((column, units))
        present: dict[int, int] = {}
        has_grown = False
        for step in sorted(by_step):
            # Just before a column ends, the set of columns that occupy memory is maximal if it has grown since the last limit.
            if has_grown and any(units < 0 for _, units in by_step[step]):
                self._limit(present, step - 1)
                has_grown = False
            for column, units in by_step[step]:
                present[column] = present.get(column, 0) + units
                has_grown |= units > 0
        # All columns end with the program at the latest, so every maximal set is found.

    def _limit(self, present: dict[int, int], step: int) -> None:
        """Add a row that limits the units of these columns to the capacity, unless all of them fit together."""
        terms = [(column, units) for column, units in present.items() if units]
        if sum(units for _, units in terms) > self.units:
            self.memory_rows[len(self.rows.lower)] = step
            self.rows.add(terms, upper=self.units)


class _DetailedColumns(TensorColumns):
    """Builds the columns and rows of one tensor, with a column for each group in which a copy may start or end."""

    def _copied_in(self, j: int, window: Group) -> int:
        model, (first, end) = self.model, window
        # A copy in slices occupies all its bytes only when its last slice has started, but uses the channel from the start of
        # its first slice on (B7).
        latest = self._latest_start(end, self.copy_in_ps) if self.forbidden and not self.sliced else end
        column = model.column(1)
        parts = []
        for low, high in _groups(self._free(first, latest)[::-1]):
            part = model.column(1)
            parts.append((part, 1))
            model.jobs.append(CopyJob(part, None, first if self.sliced else low, end, self.copy_in_ps))
            model.occupy((part,), self.sequence.size, high, self.sequence.gap(j)[1])
        model.rows.add([(column, -1), *parts], 0, 0)
        return column

    def _occupy_copied(self, j: int, first: int, last: int) -> None:
        here = self.columns[j]
        if here.in_flight is not None and self.sliced:
            first = max(first, int(self.sequence.copy.prev[last]))
        if here.in_flight is not None:
            self.model.occupy((here.in_flight,), self.sequence.size, first, last)

    def _copy_out(self, m: int, j: int, earlier: int | None) -> int | None:
        model, sequence = self.model, self.sequence
        window = self._feasible(sequence.copy_out_window(j), self.copy_out_ps)
        first, last = sequence.gap(j)
        ends = self._free(first, last)
        if window is None or sequence.is_glued(j) or not ends:
            return super()._copy_out(m, j, earlier)
        release = window[0]
        keep = self.columns[j].keep if j < len(sequence) else None
        column = self.out[m, j] = model.column(1)
        leaving = []
        for low, high in _groups(ends):
            if self._feasible((release, high), self.copy_out_ps) is None or high < release:
                continue
            part = model.column(1)
            leaving.append((part, 1))
            model.jobs.append(CopyJob(part, None, release, high, self.copy_out_ps))
            # Content that was just written stays resident for one more step, since its copy can only start after the write.
            stays_on = m == j - 1 and first < last and model.problem.evictions == "whole_steps"
            until = max(low, first + 1) if stays_on else low
            model.occupy((part,), sequence.size, first, until)
        copied = [(column, -1), *leaving]
        stays = []
        if keep is not None:
            part = model.column(1)
            copied.append((part, 1))
            stays.append((keep, 1))
            model.jobs.append(CopyJob(part, None, release, ends[-1], self.copy_out_ps))
            model.rows.add([(part, 1), (keep, -1)], upper=0)
        if earlier is not None:
            copied.append((earlier, 1))
        model.rows.add(copied, 0, 0)
        before = [(before, -1) for before in self.columns[j - 1].landed]
        model.rows.add([*leaving, *stays, *before], upper=0)
        return column

    def _free(self, first: int, last: int) -> list[int]:
        """Boundaries from ``first`` to ``last`` at which a copy may start or end; both inclusive."""
        free = self.sequence.copy.free
        return [boundary for boundary in range(first, last + 1) if free[boundary]]


def _groups(boundaries: Sequence[int]) -> list[Group]:
    """Divide boundaries into groups; they come in the order of their distance from the access."""
    result: list[Group] = []
    start, length = 0, 1.0
    while start < len(boundaries):
        part = boundaries[start : start + int(length)]
        result.append((min(part), max(part)))
        start += len(part)
        if len(result) >= SINGLE:
            length *= GROWTH
    return result
