"""A bound from bounds of segments of the program, small enough for a MILP solver, then twice as long, and so on.

Memory is tight in a few segments of most programs, and what one of them loses depends little on the others. So the program is
cut into segments, each a problem of its own whose optimum is no more than what the segment takes in any plan
(:class:`SegmentProblems`). Each is bounded by its detailed relaxation
(:mod:`~stowplan.models.memory_mapping.milp.tightening`), first linear, then with cuts. Then pairs of neighbours become one
segment, whose relaxation also knows what its parts take at least; up to the whole. After that the same is done again, from
shorter segments on, with integers. The bound of the program is the best sum over disjoint segments (lemma B5 of
``docs/reference/memory-mapping-models.md``); steps in none of them take their least latency.
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
    """Segments of one program, each as a problem of its own."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._accesses = accesses_of(problem)

    def between(self, start: int, end: int) -> Problem:
        """The problem of the steps ``[start, end)``; both boundaries lie outside all loops."""
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
                    # Without members an alias group may be fast here and slow elsewhere.
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
        """Whether the content at the boundary is read later, or is the program's output."""
        following = next((access for access in self._accesses[tensor] if access.step >= boundary), None)
        return self._problem.tensors[tensor].is_output if following is None else following.read is not None


#: Uses in the shortest segments, and in those whose linear relaxation is solved first.
SHORT_USES = 250
LONG_USES = 1000

#: Uses in the longest segments.
MOST_USES = 4000

#: Losses below this part of what lies between the least latency and all slow are as good as none.
NEGLIGIBLE = 1e-5

#: Seconds that a segment gets at least.
LEAST_SECONDS = 1.0

#: Part of the time left that the segments of one length may take, and what one of them may take of an equal share.
LEVEL_SHARE = 0.5
SHARES = 2.0


@dataclass
class Segment:
    """Steps ``[start, end)``, and what is known of them."""

    start: int
    end: int
    floor_ps: int
    """Sum of the least latencies."""
    bound_ps: int
    """Proven: no plan spends less time here."""

    @property
    def loss_ps(self) -> int:
        """What is lost over the least latencies at least."""
        return self.bound_ps - self.floor_ps


@dataclass
class SegmentBounds:
    """Bounds of segments and of the whole.

    Parameters
    ----------
    problem
        Any problem.
    effort
        When to end; with an ``iteration_limit`` work is limited by it for each segment, and equal runs give equal results as
        long as time does not bind.
    on_bound
        Called with every better bound of the whole program, in ps.
    on_prices
        Called with what linear relaxations say that memory and time are worth, whenever that may prove more.
    """

    problem: Problem
    effort: Effort
    on_bound: Callable[[int], None] | None = None
    on_prices: Callable[[Prices], None] | None = None
    bound: int = field(init=False)
    segments: list[Segment] = field(init=False, default_factory=list)
    """Every segment that was bounded."""

    def __post_init__(self) -> None:
        problem = self.problem
        self._problems = SegmentProblems(problem)
        self._floor_until, self._first_use = problem.floor_until, problem.first_use
        self._negligible_ps = NEGLIGIBLE * max(0, problem.all_slow_ps - problem.floor_ps)
        self.bound = problem.floor_ps
        self._book = PriceBook(problem.floor_until, problem.use_count)

    def run(self, *, integer: bool = True) -> None:
        """Work until nothing is left to do, or time is up; without ``integer`` by linear programs only."""
        long = self._linear()
        self._climb(long, integer=False)
        if not integer:
            return
        short = self._divide(SHORT_USES)
        hopeful = self._hopeful(short, long)
        if not hopeful and len(long) == 1:
            # Integers may lose what fractions do not.
            short = hopeful = self._divide(self.problem.use_count + 1)
        self._bound_all(hopeful, integer=True)
        self._climb(short, integer=True)

    def _climb(self, level: list[Segment], *, integer: bool) -> None:
        """Bound segments made of two of a level, then of two of those, and so on."""
        while len(level) > 1 and not self.effort.is_over():
            pairs = [level[place : place + 2] for place in range(0, len(level), 2)]
            level = [self._join(pair) for pair in pairs]
            joined = [segment for segment, pair in zip(level, pairs, strict=True) if len(pair) > 1]
            if not any(self._is_fit(segment) for segment in joined):
                return
            lossy = [segment for segment in joined if self._is_fit(segment) and segment.loss_ps > self._negligible_ps]
            self._bound_all(lossy, integer=integer)

    def _is_fit(self, segment: Segment) -> bool:
        """Whether its linear program can be solved in reasonable time."""
        return self._first_use[segment.end] - self._first_use[segment.start] <= MOST_USES

    def _linear(self) -> list[Segment]:
        """Bound long segments by linear programs, then with cuts, those first where most is lost."""
        long = self._divide(LONG_USES)
        searches: list[tuple[Segment, RelaxationSearch]] = []
        for segment in sorted(long, key=self._potential_ps, reverse=True):
            if self.effort.is_over():
                return long
            searches.append((segment, self._open(segment, self.effort.left)))
            searches[-1][1].linear()
            self._price(*searches[-1])
        self._hand_on()
        for segment, search in sorted(searches, key=lambda item: item[0].loss_ps, reverse=True):
            if segment.loss_ps > self._negligible_ps:
                search.cut()
                self._price(segment, search)
        self._hand_on()
        return long

    def _price(self, segment: Segment, search: RelaxationSearch) -> None:
        """Keep the prices of a segment's last linear program."""
        if self.on_prices is not None:
            first, end = self._first_use[segment.start], self._first_use[segment.end]
            tensors = [*dict.fromkeys(self.problem.tensor_of_use[first:end])]
            self._book.take(search, segment.start, segment.end, first, end - first, tensors)

    def _hand_on(self) -> None:
        if self.on_prices is not None:
            self.on_prices(self._book.total())

    def _divide(self, uses: int) -> list[Segment]:
        """The program in segments of about so many uses each, divided outside loops."""
        free = Boundaries(self.problem.horizon, self.problem.loops).free
        ends = [0]
        for boundary in range(1, self.problem.horizon):
            if free[boundary] and self._first_use[boundary] - self._first_use[ends[-1]] >= uses:
                ends.append(boundary)
        return [self._new(start, end) for start, end in zip(ends, [*ends[1:], self.problem.horizon], strict=True)]

    def _new(self, start: int, end: int) -> Segment:
        floor = self._floor_until[end] - self._floor_until[start]
        return Segment(start, end, floor, floor)

    def _join(self, parts: list[Segment]) -> Segment:
        """Neighbours as one segment, which takes no less time than they do."""
        if len(parts) == 1:
            return parts[0]
        joined = self._new(parts[0].start, parts[-1].end)
        joined.bound_ps = self._best(joined.start, joined.end)
        return joined

    def _potential_ps(self, segment: Segment) -> int:
        """What fast memory could save at most."""
        steps = self.problem.steps[segment.start : segment.end]
        return sum(step.weight * step.latency_ps([False] * len(step.uses)) for step in steps) - segment.floor_ps

    def _hopeful(self, short: list[Segment], long: list[Segment]) -> list[Segment]:
        """Short segments in which the linear relaxations of the long ones lose something."""
        lossy = [segment for segment in long if segment.loss_ps > self._negligible_ps]
        return [
            segment
            for segment in short
            if any(other.start < segment.end and segment.start < other.end for other in lossy)
            and self._potential_ps(segment) > self._negligible_ps
        ]

    def _bound_all(self, segments: list[Segment], *, integer: bool) -> None:
        """Bound segments of one level, those that promise most first."""
        todo = sorted(segments, key=lambda segment: (segment.loss_ps, self._potential_ps(segment)), reverse=True)
        is_last = integer and any(segment.end - segment.start == self.problem.horizon for segment in segments)
        level_end = time.monotonic() + self.effort.left * (1.0 if is_last else LEVEL_SHARE)
        for place, segment in enumerate(todo):
            if self.effort.is_over():
                return
            # A segment may take more than its share: most take far less.
            share = SHARES * (level_end - time.monotonic()) / (len(todo) - place)
            search = self._open(segment, min(self.effort.left, max(LEAST_SECONDS, share)))
            search.linear()
            self._price(segment, search)
            search.cut()
            self._price(segment, search)
            if integer:
                search.integral()
        self._hand_on()

    def _open(self, segment: Segment, seconds: float) -> RelaxationSearch:
        model = DetailedModel(self._problems.between(segment.start, segment.end))
        parts = self._add_parts(model, segment)
        effort = replace(self.effort, end=time.monotonic() + seconds)
        search = RelaxationSearch(model, effort, lambda bound: self._note(segment, bound))
        search.part_rows = parts
        self.segments.append(segment)
        self._note(segment, search.bound)
        return search

    def _add_parts(self, model: DetailedModel, segment: Segment) -> dict[int, Window]:
        """Rows: the parts of a segment take no less than is known of each (B6); their boundaries."""
        rows: dict[int, Window] = {}
        for part in self.segments:
            is_inside = segment.start <= part.start and part.end <= segment.end
            if is_inside and part is not segment and part.loss_ps > self._negligible_ps:
                span = part.start - segment.start, part.end - segment.start
                constant, terms = model.elapsed(*span) if model.stall else model.between(*span)
                rows[len(model.rows.lower)] = span
                model.add_row(terms, part.bound_ps - constant, INFINITE)
        return rows

    def _note(self, segment: Segment, bound_ps: int) -> None:
        if bound_ps <= segment.bound_ps:
            return
        segment.bound_ps = bound_ps
        total = self._best(0, self.problem.horizon)
        if total > self.bound:
            self.bound = total
            if self.on_bound is not None:
                self.on_bound(total)

    def _best(self, start: int, end: int) -> int:
        """Most that disjoint segments within these steps say of them, with the least latencies between them."""
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
