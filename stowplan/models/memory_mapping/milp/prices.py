"""Prices for certificates, from the row duals of a linear relaxation, and for a program from the prices of its segments.

Prices are Lagrange multipliers of the limits on memory and copy channels (:mod:`stowplan.models.memory_mapping.prices`). They
prove a bound that can be checked without a solver. A *boundary* is the moment before a step. A *search* solves the relaxation
of a segment in rounds (:class:`~stowplan.models.memory_mapping.milp.solve.RelaxationSearch`). Its rows are:

- the limits on memory
- the bounds on latencies
- *windows*: the copies that must run between two boundaries take no more than the time of the channels in between
- *cuts*, which are rounded from other rows

Nothing here raises an error for valid arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stowplan.models.memory_mapping.milp.solve import RelaxationSearch
from stowplan.models.memory_mapping.prices import CutPrice, Prices
from stowplan.models.mip.matrix import FloatArray


def prices_of(search: RelaxationSearch, duals: FloatArray) -> Prices:
    """The prices that correspond to ``duals``, the row duals of the last linear program of a search, of shape ``[rows]``."""
    return _Reader(search, duals).prices()


class _Reader:
    """Turns the duals of rows into prices: those of rows of memory, of latencies, and of windows of the copy channels."""

    def __init__(self, search: RelaxationSearch, duals: FloatArray):
        self._search, self._model, self._duals = search, search.model, duals
        self._matrix = search.solver.matrix
        self._source = {row: row for row in range(len(duals))}
        """For each row, the original row from which it was derived by one or more cuts; for other rows, the row itself."""
        for row, origin in search.cut_rows.items():
            self._source[row] = self._source[origin.row]

    def prices(self) -> Prices:
        """All prices."""
        model, duals = self._model, self._duals
        problem = model.problem
        prices = Prices.none(problem.horizon, problem.use_count)
        for row, step in model.memory_rows.items():
            prices.memory[step] += max(0.0, -duals[row])
        if not model.memory_rows:
            self._of_levels(prices)
        for row, source in self._source.items():
            # The dual of a cut of a window counts for the window itself.
            if source in self._search.window_rows:
                start, end = self._search.window_rows[source]
                prices.channel[start:end] += max(0.0, -duals[row])
        self._earnings(prices)
        prices.cuts = self._cuts()
        if model.preload_row is not None:
            prices.preload = max(0.0, -float(duals[model.preload_row]))
        return prices

    def _of_levels(self, prices: Prices) -> None:
        """Set the prices of memory of a model that has columns of occupied units (``levels``).

        They are the reduced costs of these columns at their upper bounds.
        """
        by_column = self._matrix.tocsc()
        for step, column in self._model.levels.items():
            entries = slice(by_column.indptr[column], by_column.indptr[column + 1])
            prices.memory[step] = max(0.0, float(self._duals[by_column.indices[entries]] @ by_column.data[entries]))

    def _earnings(self, prices: Prices) -> None:
        """Set the amount that each use earns if it is fast, that is, in fast memory: by how much its columns lower the
        objective in the terms and rows of latencies."""
        model, matrix, duals = self._model, self._matrix, self._duals
        step_of = {row: step for step, rows in enumerate(model.latency_rows) for row in rows}
        by_step: list[list[int]] = [[] for _ in model.latency_rows]
        for row, source in self._source.items():
            if source in step_of and duals[row]:
                by_step[step_of[source]].append(row)
        factor = 1.0 - (model.problem.channels * prices.channel if model.stall else 0.0 * prices.channel)
        for row, (start, end) in self._search.part_rows.items():
            factor[start:end] -= duals[row]
        for step, (uses, rows) in enumerate(zip(model.problem.by_step(range(model.problem.use_count)), by_step, strict=True)):
            earned: dict[int, float] = {}
            if not model.latency_columns[step]:
                # The latency is one affine piece, so it has no rows. Its terms are in the objective and in the time that passes
                # for copies.
                for column, value in model.step_terms[step][1]:
                    earned[column] = earned.get(column, 0.0) - factor[step] * value
            for row in rows:
                for at in range(matrix.indptr[row], matrix.indptr[row + 1]):
                    column = int(matrix.indices[at])
                    earned[column] = earned.get(column, 0.0) + duals[row] * matrix.data[at]
            for use in uses:
                if model.fast[use]:
                    # Two uses of one tensor share their columns, so one of them gets the earnings of both.
                    prices.access[use] = earned.pop(model.fast[use][0], 0.0)
                else:
                    # No plan makes this use fast, so any earnings are valid, up to the largest saving.
                    weight, latency = model.problem.steps[step].weight, model.savings.latencies[step]
                    prices.access[use] = factor[step] * weight * latency.most_gained(use - uses[0])

    def _cuts(self) -> list[CutPrice]:
        """The cuts of memory whose duals are not zero."""
        cuts = []
        for row, origin in self._search.cut_rows.items():
            step = self._model.memory_rows.get(self._source[row])
            if step is None or self._duals[row] >= 0:
                continue
            rounds = [(origin.divisor, tuple(origin.turned.tolist()))]
            while origin.row in self._search.cut_rows:
                origin = self._search.cut_rows[origin.row]
                rounds.append((origin.divisor, tuple(origin.turned.tolist())))
            cuts.append(CutPrice(step, tuple(reversed(rounds)), -float(self._duals[row])))
        return cuts


@dataclass(frozen=True)
class PricedSegment:
    """A segment of steps ``[start, end)`` with prices and the bound that they prove."""

    start: int
    """First step."""
    end: int
    """First step after the segment."""
    bound_ps: int
    """Lower bound on the time of the segment in any plan."""
    use: int
    """Number of the segment's first use in the program."""
    prices: Prices
    """Prices of the segment, counted from its first step and use."""


@dataclass
class PriceBook:
    """Keeps the best prices of segments, and combines those of disjoint segments into prices of the program.

    Parameters
    ----------
    floor_until
        Lower bound on the time up to each boundary of the program, in ps.
    uses
        Number of uses of the program.

    Attributes
    ----------
    segments : dict
        The best prices of each segment, by its first step and the first step after it.
    """

    floor_until: Sequence[int]
    uses: int
    segments: dict[tuple[int, int], PricedSegment] = field(default_factory=dict)

    def add(self, search: RelaxationSearch, start: int, end: int, use: int, uses: int, tensors: Sequence[int]) -> bool:
        """Add the prices of a search for a bound on the steps ``[start, end)``, if they prove a better bound than those so far.

        Parameters
        ----------
        search
            A search that has solved a linear program of the segment's relaxation. Without duals, nothing is added.
        start, end
            First step, and first step after the segment, in the program.
        use, uses
            Number of the segment's first use in the program, and its number of uses.
        tensors
            Numbers in the program of the segment's tensors.

        Returns
        -------
        bool
            Whether the prices were added.
        """
        duals, bound = search.solver.duals(), search.solver.lp_bound()
        previous = self.segments.get((start, end))
        if duals is None or bound is None or (previous is not None and previous.bound_ps >= bound):
            return False
        prices = prices_of(search, duals)
        steps = end - start

        def numbered(turned: Sequence[int]) -> tuple[int, ...]:
            return tuple(sorted(tensors[tensor] for tensor in turned))

        # The problem of a segment may have an additional step for the rest of the program, whose prices are dropped.
        cuts = [
            CutPrice(cut.step, tuple((divisor, numbered(turned)) for divisor, turned in cut.rounds), cut.price)
            for cut in prices.cuts
            if cut.step < steps
        ]
        prices_of_segment = Prices(
            memory=prices.memory[:steps],
            channel=prices.channel[:steps],
            access=prices.access[:uses],
            preload=prices.preload,
            cuts=cuts,
        )
        for row, (first, last) in search.part_rows.items():
            # The lower bound on the time of a part is proven by the prices of that part.
            part = self.segments.get((start + first, start + last))
            if part is not None and duals[row] > 0:
                prices_of_segment.add(part.prices, first, part.use - use, float(duals[row]))
        self.segments[start, end] = PricedSegment(start, end, bound, use, prices_of_segment)
        return True

    def total(self) -> Prices:
        """Prices of the program: those of the disjoint segments with the best total bound."""
        ending: dict[int, list[PricedSegment]] = {}
        for segment in self.segments.values():
            ending.setdefault(segment.end, []).append(segment)
        best: list[tuple[int, PricedSegment | None]] = [(0, None)]
        for boundary in range(1, len(self.floor_until)):
            options: list[tuple[int, PricedSegment | None]] = [
                (best[-1][0] + self.floor_until[boundary] - self.floor_until[boundary - 1], None)
            ]
            options += [(best[segment.start][0] + segment.bound_ps, segment) for segment in ending.get(boundary, ())]
            best.append(max(options, key=lambda option: option[0]))
        prices = Prices.none(len(self.floor_until) - 1, self.uses)
        boundary = len(best) - 1
        while boundary:
            chosen = best[boundary][1]
            if chosen is not None:
                prices.add(chosen.prices, chosen.start, chosen.use)
            boundary = boundary - 1 if chosen is None else chosen.start
        return prices
