"""The relaxation with more detail in time: how long copies take up memory.

The plain relaxation lets a tensor leave fast memory before it is copied out, and one that is copied in take up no memory
before its use. Here both are told apart by *when* the copy ends or starts. The boundaries of a gap are divided into groups,
short ones next to the access at hand, where most copies run, and longer ones farther away. A copy out that ends in a group
keeps its tensor resident up to the group's first boundary; a copy in that starts in a group takes up memory from the group's
last boundary on, and has the shorter window of the group on the copy channels (lemma B3 of
``docs/reference/memory-mapping-models.md``).

Memory is a row for each step at which it is fullest, rather than a chain of levels: cuts find covers in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.memory_mapping.accesses import TensorAccesses
from stowplan.models.memory_mapping.milp.model import CopyJob, RelaxationModel, TensorColumns

#: Tensors smaller than this part of the capacity stay as they are.
LEAST_SIZE = 1 / 128

#: So many groups next to the access hold one boundary each; each group beyond is longer than the one before by this factor.
SINGLE = 4
GROWTH = 1.5

#: First and last boundary of a group.
Group = tuple[int, int]


class DetailedModel(RelaxationModel):
    """A :class:`RelaxationModel` whose larger tensors take up memory while they are copied.

    ``copy_in`` and ``out`` columns mean what they do there; columns for the groups of each come on top. ``levels`` stays empty.
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
            # What is there just before something leaves contains all that was there since something last left.
            if has_grown and any(units < 0 for _, units in by_step[step]):
                self._limit(present)
                has_grown = False
            for column, units in by_step[step]:
                present[column] = present.get(column, 0) + units
                has_grown |= units > 0
        # Everything leaves at the end of the program at the latest.

    def _limit(self, present: dict[int, int]) -> None:
        terms = [(column, units) for column, units in present.items() if units]
        if sum(units for _, units in terms) > self.units:
            self.rows.add(terms, upper=self.units)


class _DetailedColumns(TensorColumns):
    """Columns and rows of one tensor, its copies divided by time."""

    def _copied_in(self, j: int, window: Group) -> int:
        model, (first, end) = self.model, window
        # In slices, it is the last that takes up the whole place, and the first that begins to copy (B7).
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
            # What has just been written stays for one more step: its copy starts after the write.
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
        """Boundaries from ``first`` to ``last`` at which a copy may start or end."""
        free = self.sequence.copy.free
        return [boundary for boundary in range(first, last + 1) if free[boundary]]


def _groups(boundaries: Sequence[int]) -> list[Group]:
    """Divide boundaries, those next to the access first."""
    result: list[Group] = []
    start, length = 0, 1.0
    while start < len(boundaries):
        part = boundaries[start : start + int(length)]
        result.append((min(part), max(part)))
        start += len(part)
        if len(result) >= SINGLE:
            length *= GROWTH
    return result
