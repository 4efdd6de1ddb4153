"""A lower bound for a long program from bounds of its segments.

A segment *loses* time if its steps take longer than their least latencies, the smallest over all choices of memories. In most
programs, memory is tight only in a few segments, and the time that one segment loses depends little on other segments. The
program is therefore cut into segments, each of which is a problem of its own. The optimum of such a problem is at most the time
that the segment takes in any plan of the program (:class:`SegmentProblems`).

The bound of a segment comes from its detailed relaxation (:mod:`~stowplan.models.memory_mapping.milp.tightening`), first as a
linear program, then with rounding cuts. Then pairs of neighbours are joined into one segment, whose relaxation also has the
bounds of its parts as rows, and so on up to the whole program. Finally the same is done with MILPs, starting from shorter
segments. The bound of the program is the largest sum of bounds of disjoint segments. A step in none of these segments counts
with its least latency (lemma B5 of ``docs/reference/memory-mapping-models.md``). Nothing here raises an error for a valid
problem.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from stowplan.models.memory_mapping.accesses import Boundaries, accesses_of
from stowplan.models.memory_mapping.milp.prices import PriceBook
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch
from stowplan.models.memory_mapping.milp.tightening import DetailedModel, Window
from stowplan.models.memory_mapping.prices import Prices
from stowplan.models.memory_mapping.problem import Problem, border_step, loops_within, restricted, sub_problem
from stowplan.models.mip.matrix import INFINITE


class SegmentProblems:
    """Builds the problems of segments of one program."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._accesses = accesses_of(problem)

    def between(self, start: int, end: int) -> Problem:
        """The problem of the steps ``[start, end)``. Neither boundary may lie strictly inside a loop; this is not checked."""
        problem = self._problem
        number: dict[int, int] = {}
        for step in problem.steps[start:end]:
            for use in step.uses:
                number.setdefault(use.tensor, len(number))
        needed = [tensor for tensor in number if end < problem.horizon and self._is_needed(tensor, end)]
        tensors = []
        for tensor in number:
            info = problem.tensors[tensor]
            accesses = self._accesses[tensor]
            is_whole = start <= accesses[0].step and accesses[-1].step < end
            tensors.append(
                msgspec.structs.replace(
                    info,
                    is_input=info.is_input or not is_whole,
                    is_output=info.is_output and end == problem.horizon,
                    # The rule that an alias group has all uses fast or all slow is dropped for groups with uses outside the
                    # segment, because the problem of the segment does not decide those uses.
                    members=info.members if is_whole and tensor not in needed else (),
                )
            )
        steps = [restricted(step, number) for step in problem.steps[start:end]]
        if needed:
            steps.append(border_step("(rest)", [number[tensor] for tensor in needed], is_output=False, slow_ps=0))
        return sub_problem(
            problem,
            name=f"{problem.name}[{start}:{end}]",
            steps=steps,
            tensors=tensors,
            loops=loops_within(problem, start, end),
            boundary=lambda boundary: boundary - start,
            max_preloads=problem.max_preloads if start == 0 else len(tensors),
        )

    def _is_needed(self, tensor: int, boundary: int) -> bool:
        """Whether the tensor's content at the boundary is read later, or is an output of the program."""
        following = next((access for access in self._accesses[tensor] if access.step >= boundary), None)
        return self._problem.tensors[tensor].is_output if following is None else following.read is not None


#: Approximate number of uses (reads and writes of tensors by steps) in a segment: for the segments whose MILPs are solved
#: first, and for the segments whose linear programs are solved first.
SHORT_USES = 250
LONG_USES = 1000

#: Neighbouring segments are joined to a longer one that is bounded, too, unless it would have more uses than this. Its linear
#: program would take too long.
MOST_USES = 4000

#: Losses are ignored if they are below this fraction of the difference between the latency of the program with all tensors in
#: slow memory and the sum of the least latencies.
NEGLIGIBLE = 1e-5

#: Smallest time limit of a segment in seconds.
LEAST_SECONDS = 1.0

#: All segments of one length together may use the fraction ``LEVEL_SHARE`` of the remaining time, and each of them ``SHARES``
#: times an equal share of it.
LEVEL_SHARE = 0.5
SHARES = 2.0


@dataclass
class Segment:
    """A segment of steps ``[start, end)`` and the bound on its time."""

    start: int
    """First step."""
    end: int
    """First step after the segment."""
    floor_ps: int
    """Sum of the least latencies of the steps."""
    bound_ps: int
    """Proven lower bound on the time that the segment takes in any plan."""

    @property
    def loss_ps(self) -> int:
        """Lower bound on the time by which any plan exceeds the least latencies in this segment."""
        return self.bound_ps - self.floor_ps


@dataclass
class SegmentBounds:
    """Computes bounds of segments and combines them into a bound of the program.

    Parameters
    ----------
    problem
        Any problem.
    effort
        Limits of the search. An ``iteration_limit`` applies to each segment; with it, and unless the time limit ends the
        search, equal runs give equal results.
    on_bound
        Called with every better bound of the whole program, in ps.
    on_prices
        Called with prices of the program (Lagrange multipliers for certificates) whenever they may prove a better bound.

    Attributes
    ----------
    bound : int
        Best proven lower bound of the program, in ps.
    """

    problem: Problem
    effort: Effort
    on_bound: Callable[[int], None] | None = None
    on_prices: Callable[[Prices], None] | None = None
    bound: int = field(init=False)
    segments: list[Segment] = field(init=False, default_factory=list)
    """All segments that have been bounded."""

    def __post_init__(self) -> None:
        problem = self.problem
        self._problems = SegmentProblems(problem)
        self._floor_until, self._first_use = problem.floor_until, problem.first_use
        self._negligible_ps = NEGLIGIBLE * max(0, problem.all_slow_ps - problem.floor_ps)
        self.bound = problem.floor_ps
        self._price_book = PriceBook(problem.floor_until, problem.use_count)

    def run(self, *, integer: bool = True) -> None:
        """Compute bounds until all segments are done or time runs out; without ``integer``, by linear programs only."""
        long = self._linear()
        self._climb(long, integer=False)
        if not integer:
            return
        short = self._divide(SHORT_USES)
        hopeful = self._hopeful(short, long)
        if not hopeful and len(long) == 1:
            # The MILP may prove a loss although the linear relaxation does not.
            short = hopeful = self._divide(self.problem.use_count + 1)
        self._bound_all(hopeful, integer=True)
        self._climb(short, integer=True)

    def _climb(self, level: list[Segment], *, integer: bool) -> None:
        """Bound segments that are joined from pairs of neighbours, then from pairs of these segments, and so on."""
        while len(level) > 1 and not self.effort.is_over():
            pairs = [level[place : place + 2] for place in range(0, len(level), 2)]
            level = [self._join(pair) for pair in pairs]
            joined = [segment for segment, pair in zip(level, pairs, strict=True) if len(pair) > 1]
            if not any(self._is_fit(segment) for segment in joined):
                return
            lossy = [segment for segment in joined if self._is_fit(segment) and segment.loss_ps > self._negligible_ps]
            self._bound_all(lossy, integer=integer)

    def _is_fit(self, segment: Segment) -> bool:
        """Whether the segment is small enough for its linear program to be solved in reasonable time."""
        return self._first_use[segment.end] - self._first_use[segment.start] <= MOST_USES

    def _linear(self) -> list[Segment]:
        """Bound long segments by linear programs, and then with cuts, in descending order of their losses."""
        long = self._divide(LONG_USES)
        searches: list[tuple[Segment, RelaxationSearch]] = []
        for segment in sorted(long, key=self._potential_ps, reverse=True):
            if self.effort.is_over():
                return long
            searches.append((segment, self._open(segment, self.effort.left)))
            searches[-1][1].linear()
            self._price(*searches[-1])
        self._report_prices()
        for segment, search in sorted(searches, key=lambda item: item[0].loss_ps, reverse=True):
            if segment.loss_ps > self._negligible_ps:
                search.cut()
                self._price(segment, search)
        self._report_prices()
        return long

    def _price(self, segment: Segment, search: RelaxationSearch) -> None:
        """Keep the prices of a segment's last linear program, if the caller wants prices."""
        if self.on_prices is not None:
            first, end = self._first_use[segment.start], self._first_use[segment.end]
            tensors = [*dict.fromkeys(self.problem.tensor_of_use[first:end])]
            self._price_book.add(search, segment.start, segment.end, first, end - first, tensors)

    def _report_prices(self) -> None:
        """Report the current prices of the program."""
        if self.on_prices is not None:
            self.on_prices(self._price_book.total())

    def _divide(self, uses: int) -> list[Segment]:
        """Divide the program, outside loops, into segments of about this number of uses each."""
        free = Boundaries(self.problem.horizon, self.problem.loops).free
        ends = [0]
        for boundary in range(1, self.problem.horizon):
            if free[boundary] and self._first_use[boundary] - self._first_use[ends[-1]] >= uses:
                ends.append(boundary)
        return [self._new(start, end) for start, end in zip(ends, [*ends[1:], self.problem.horizon], strict=True)]

    def _new(self, start: int, end: int) -> Segment:
        """A segment whose bound is still the sum of its least latencies."""
        floor = self._floor_until[end] - self._floor_until[start]
        return Segment(start, end, floor, floor)

    def _join(self, parts: list[Segment]) -> Segment:
        """Join neighbours into one segment, whose bound is at least the sum of theirs."""
        if len(parts) == 1:
            return parts[0]
        joined = self._new(parts[0].start, parts[-1].end)
        joined.bound_ps = self._best(joined.start, joined.end)
        return joined

    def _potential_ps(self, segment: Segment) -> int:
        """Upper limit on the time that fast memory can save in the segment."""
        steps = self.problem.steps[segment.start : segment.end]
        return sum(step.weight * step.latency_ps([False] * len(step.uses)) for step in steps) - segment.floor_ps

    def _hopeful(self, short: list[Segment], long: list[Segment]) -> list[Segment]:
        """Short segments that overlap a long segment with a loss and in which fast memory can save time."""
        lossy = [segment for segment in long if segment.loss_ps > self._negligible_ps]
        return [
            segment
            for segment in short
            if any(other.start < segment.end and segment.start < other.end for other in lossy)
            and self._potential_ps(segment) > self._negligible_ps
        ]

    def _bound_all(self, segments: list[Segment], *, integer: bool) -> None:
        """Bound segments of one length, in descending order of their losses."""
        pending = sorted(segments, key=lambda segment: (segment.loss_ps, self._potential_ps(segment)), reverse=True)
        is_last = integer and any(segment.end - segment.start == self.problem.horizon for segment in segments)
        level_end = time.monotonic() + self.effort.left * (1.0 if is_last else LEVEL_SHARE)
        for place, segment in enumerate(pending):
            if self.effort.is_over():
                return
            # A segment may use more than an equal share of the time, since most segments need much less.
            share = SHARES * (level_end - time.monotonic()) / (len(pending) - place)
            search = self._open(segment, min(self.effort.left, max(LEAST_SECONDS, share)))
            search.linear()
            self._price(segment, search)
            search.cut()
            self._price(segment, search)
            if integer:
                search.integral()
        self._report_prices()

    def _open(self, segment: Segment, seconds: float) -> RelaxationSearch:
        """Build the relaxation of a segment, with a time limit in seconds."""
        model = DetailedModel(self._problems.between(segment.start, segment.end))
        parts = self._add_parts(model, segment)
        effort = replace(self.effort, end=time.monotonic() + seconds)
        search = RelaxationSearch(model, effort, lambda bound: self._record_bound(segment, bound))
        search.part_rows = parts
        self.segments.append(segment)
        self._record_bound(segment, search.bound)
        return search

    def _add_parts(self, model: DetailedModel, segment: Segment) -> dict[int, Window]:
        """Add a row for the bound of each part of a segment (lemma B6); returns the boundaries of the part for each row."""
        rows: dict[int, Window] = {}
        for part in self.segments:
            is_inside = segment.start <= part.start and part.end <= segment.end
            if is_inside and part is not segment and part.loss_ps > self._negligible_ps:
                span = part.start - segment.start, part.end - segment.start
                constant, terms = model.elapsed(*span) if model.stall else model.between(*span)
                rows[len(model.rows.lower)] = span
                model.add_row(terms, part.bound_ps - constant, INFINITE)
        return rows

    def _record_bound(self, segment: Segment, bound_ps: int) -> None:
        """Record a bound of a segment, and report the program's bound if it improves."""
        if bound_ps <= segment.bound_ps:
            return
        segment.bound_ps = bound_ps
        total = self._best(0, self.problem.horizon)
        if total > self.bound:
            self.bound = total
            if self.on_bound is not None:
                self.on_bound(total)

    def _best(self, start: int, end: int) -> int:
        """The best bound on the steps ``[start, end)``: bounds of disjoint segments, and least latencies between them."""
        ending: dict[int, list[Segment]] = {}
        for segment in self.segments:
            if start <= segment.start and segment.end <= end:
                ending.setdefault(segment.end, []).append(segment)
        best = [0]
        for boundary in range(start + 1, end + 1):
            options = [best[-1] + self._floor_until[boundary] - self._floor_until[boundary - 1]]
            options += [best[segment.start - start] + segment.bound_ps for segment in ending.get(boundary, ())]
            best.append(max(options))
        return best[-1]
