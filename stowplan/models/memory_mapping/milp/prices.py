"""Prices from the row duals of a linear relaxation, step by step, and those of a program from those of its segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stowplan.models.memory_mapping.milp.solve import RelaxationSearch
from stowplan.models.memory_mapping.prices import CutPrice, Prices
from stowplan.models.mip.matrix import FloatArray


def prices_of(search: RelaxationSearch, duals: FloatArray) -> Prices:
    """Prices by the duals of the last linear program, of shape ``[rows]``."""
    return _Reader(search, duals).prices()


class _Reader:
    """What the rows of a search are about (memory at a step, the latency of one, a window) and what their duals say."""

    def __init__(self, search: RelaxationSearch, duals: FloatArray):
        self._search, self._model, self._duals = search, search.model, duals
        self._matrix = search.solver.matrix
        self._source = {row: row for row in range(len(duals))}
        """The row that each was made from, by one cut or several."""
        for row, origin in search.cut_rows.items():
            self._source[row] = self._source[origin.row]

    def prices(self) -> Prices:
        model, duals = self._model, self._duals
        problem = model.problem
        prices = Prices.none(problem.horizon, problem.use_count)
        for row, step in model.memory_rows.items():
            prices.memory[step] += max(0.0, -duals[row])
        if not model.memory_rows:
            self._of_levels(prices)
        for row, source in self._source.items():
            # A rounded window is taken for the window itself.
            if source in self._search.window_rows:
                start, end = self._search.window_rows[source]
                prices.channel[start:end] += max(0.0, -duals[row])
        self._earnings(prices)
        prices.cuts = self._cuts()
        if model.preload_row is not None:
            prices.preload = max(0.0, -float(duals[model.preload_row]))
        return prices

    def _of_levels(self, prices: Prices) -> None:
        """Memory as a chain of levels: a level at its upper bound has a reduced cost."""
        by_column = self._matrix.tocsc()
        for step, column in self._model.levels.items():
            entries = slice(by_column.indptr[column], by_column.indptr[column + 1])
            prices.memory[step] = max(0.0, float(self._duals[by_column.indices[entries]] @ by_column.data[entries]))

    def _earnings(self, prices: Prices) -> None:
        """What a step's latency, or the rows of it, pay for the columns that say whether a use is fast."""
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
            paid: dict[int, float] = {}
            if not model.latency_columns[step]:
                # One affine piece: its terms are in the objective, and in the time that passes for copies.
                for column, value in model.step_terms[step][1]:
                    paid[column] = paid.get(column, 0.0) - factor[step] * value
            for row in rows:
                for at in range(matrix.indptr[row], matrix.indptr[row + 1]):
                    column = int(matrix.indices[at])
                    paid[column] = paid.get(column, 0.0) + duals[row] * matrix.data[at]
            for use in uses:
                if model.fast[use]:
                    # Two uses of one tensor share their columns: one of them earns for both.
                    prices.access[use] = paid.pop(model.fast[use][0], 0.0)
                else:
                    # No plan has it fast, so that it may earn all that it might save.
                    weight, latency = model.problem.steps[step].weight, model.savings.latencies[step]
                    prices.access[use] = factor[step] * weight * latency.most_gained(use - uses[0])

    def _cuts(self) -> list[CutPrice]:
        """Cuts of memory that bind."""
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
    """Steps ``[start, end)``, what prices say of them, and the prices, which count from its first step and use."""

    start: int
    end: int
    bound_ps: int
    use: int
    prices: Prices


@dataclass
class PriceBook:
    """Prices of segments, and of the program from the best disjoint ones.

    Parameters
    ----------
    floor_until, uses
        Of the program: least time up to each boundary; number of uses.
    """

    floor_until: Sequence[int]
    uses: int
    segments: dict[tuple[int, int], PricedSegment] = field(default_factory=dict)

    def take(self, search: RelaxationSearch, start: int, end: int, use: int, uses: int, tensors: Sequence[int]) -> bool:
        """Take in the duals of a search of the steps ``[start, end)``; whether they say more than was known of them.

        Parameters
        ----------
        use, uses
            Its first use, and how many it has.
        tensors
            Numbers of its tensors in the program.
        """
        duals, bound = search.solver.duals(), search.solver.lp_bound()
        known = self.segments.get((start, end))
        if duals is None or bound is None or (known is not None and known.bound_ps >= bound):
            return False
        prices = prices_of(search, duals)
        steps = end - start

        def numbered(turned: Sequence[int]) -> tuple[int, ...]:
            return tuple(sorted(tensors[tensor] for tensor in turned))

        # What a step beyond the segment stands for, the rest of the program, is no step of it.
        cuts = [
            CutPrice(cut.step, tuple((divisor, numbered(turned)) for divisor, turned in cut.rounds), cut.price)
            for cut in prices.cuts
            if cut.step < steps
        ]
        own = Prices(
            memory=prices.memory[:steps],
            channel=prices.channel[:steps],
            access=prices.access[:uses],
            preload=prices.preload,
            cuts=cuts,
        )
        for row, (first, last) in search.part_rows.items():
            # What the part takes at least is proven by prices of its own.
            part = self.segments.get((start + first, start + last))
            if part is not None and duals[row] > 0:
                own.add(part.prices, first, part.use - use, float(duals[row]))
        self.segments[start, end] = PricedSegment(start, end, bound, use, own)
        return True

    def total(self) -> Prices:
        """Prices of the program."""
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
