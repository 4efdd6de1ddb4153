"""A bound from bounds of stretches of the program, small enough for branch and bound, then twice as long, and so on.

Memory is tight in a few stretches of most programs, and what one of them loses depends little on the others. So the program is
cut into stretches (:mod:`~stowplan.models.memory_mapping.milp_interval`); each is bounded by its detailed relaxation
(:mod:`~stowplan.models.memory_mapping.milp_detail`), first linear, then with cuts. Then pairs of neighbours become one stretch,
whose relaxation also knows what its parts take at least; up to the whole. After that the same is done again, from shorter
stretches on, with branch and bound. The bound of the program is the best sum over disjoint stretches; steps in none of them
take their least latency.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from stowplan.models.memory_mapping.accesses import Boundaries
from stowplan.models.memory_mapping.latency import INFINITE
from stowplan.models.memory_mapping.milp_branch import Branching
from stowplan.models.memory_mapping.milp_detail import DetailedModel
from stowplan.models.memory_mapping.milp_interval import Cutter
from stowplan.models.memory_mapping.milp_search import Effort, RelaxationSearch
from stowplan.models.memory_mapping.problem import Problem

FloatArray = npt.NDArray[np.float64]

#: Uses in the shortest stretches, and in those whose linear relaxation is solved first.
SHORT_USES = 250
LONG_USES = 1000

#: Uses in the longest stretches.
MOST_USES = 4000

#: Losses below this part of what lies between the least latency and all slow are as good as none.
NEGLIGIBLE = 1e-5

#: Seconds that a stretch of the shortest kind gets at least.
LEAST_SECONDS = 1.0

#: Part of the time left that the stretches of one length may take, and what one of them may take of an equal share.
LEVEL_SHARE = 0.5
SHARES = 2.0


@dataclass
class Stretch:
    """Steps ``[start, end)``, and what is known of them."""

    start: int
    end: int
    floor_ps: int
    """Sum of the least latencies."""
    bound_ps: int
    """Proven: no plan spends less time here."""
    fast: FloatArray | None = None
    """How much each use of these steps is fast in the best solution of the relaxation."""
    optimal: bool = False
    """The relaxation with integers is solved."""

    @property
    def loss_ps(self) -> int:
        """What is lost over the least latencies at least."""
        return self.bound_ps - self.floor_ps


@dataclass
class StretchBounds:
    """Bounds of stretches and of the whole.

    Parameters
    ----------
    problem
        Any problem.
    effort
        When to end; with an ``iteration_limit`` work is limited by it for each stretch, and equal runs give equal results as
        long as time does not bind.
    on_bound
        Called with every better bound of the whole program, in ps.
    """

    problem: Problem
    effort: Effort
    on_bound: Callable[[int], None] | None = None
    bound: int = field(init=False)
    stretches: list[Stretch] = field(init=False, default_factory=list)
    """Every stretch that was bounded."""

    def __post_init__(self) -> None:
        problem = self.problem
        self._cutter = Cutter(problem)
        self._floor_until = [0, *accumulate(step.weight * step.floor_ps for step in problem.steps)]
        self._first_use = [0, *accumulate(len(step.uses) for step in problem.steps)]
        self._negligible_ps = NEGLIGIBLE * max(0, problem.all_slow_ps - self._floor_until[-1])
        self.bound = self._floor_until[-1]

    def run(self) -> None:
        """Work until nothing is left to do, or time is up."""
        long = self._linear()
        self._climb(long, integer=False)
        short = self._divide(SHORT_USES)
        hopeful = self._hopeful(short, long)
        if not hopeful and len(long) == 1:
            # Integers may lose what fractions do not.
            short = hopeful = self._divide(self.problem.use_count + 1)
        self._bound_all(hopeful, integer=True)
        self._climb(short, integer=True)

    def _climb(self, level: list[Stretch], *, integer: bool) -> None:
        """Bound stretches made of two of a level, then of two of those, and so on."""
        while len(level) > 1 and not self.effort.is_over():
            pairs = [level[place : place + 2] for place in range(0, len(level), 2)]
            level = [self._join(pair) for pair in pairs]
            joined = [stretch for stretch, pair in zip(level, pairs, strict=True) if len(pair) > 1]
            if not any(self._is_fit(stretch) for stretch in joined):
                return
            lossy = [each for each in joined if self._is_fit(each) and each.loss_ps > self._negligible_ps]
            self._bound_all(lossy, integer=integer)

    def _is_fit(self, stretch: Stretch) -> bool:
        """Whether its linear program can be solved in reasonable time."""
        return self._first_use[stretch.end] - self._first_use[stretch.start] <= MOST_USES

    def _linear(self) -> list[Stretch]:
        """Bound long stretches by linear programs, then with cuts, those first where most is lost."""
        long = self._divide(LONG_USES)
        searches: list[tuple[Stretch, RelaxationSearch]] = []
        for stretch in sorted(long, key=self._potential_ps, reverse=True):
            if self.effort.is_over():
                return long
            searches.append((stretch, self._open(stretch, self.effort.left)))
            searches[-1][1].linear()
        for stretch, search in sorted(searches, key=lambda item: item[0].loss_ps, reverse=True):
            if stretch.loss_ps > self._negligible_ps:
                search.cut()
            self._close(stretch, search)
        return long

    def _divide(self, uses: int) -> list[Stretch]:
        """The program in stretches of about so many uses each, divided outside loops."""
        free = Boundaries(self.problem.horizon, self.problem.loops).free
        ends = [0]
        for boundary in range(1, self.problem.horizon):
            if free[boundary] and self._first_use[boundary] - self._first_use[ends[-1]] >= uses:
                ends.append(boundary)
        return [self._new(start, end) for start, end in zip(ends, [*ends[1:], self.problem.horizon], strict=True)]

    def _new(self, start: int, end: int) -> Stretch:
        floor = self._floor_until[end] - self._floor_until[start]
        return Stretch(start, end, floor, floor)

    def _join(self, parts: list[Stretch]) -> Stretch:
        """Neighbours as one stretch, which takes no less time than they do."""
        if len(parts) == 1:
            return parts[0]
        joined = self._new(parts[0].start, parts[-1].end)
        joined.bound_ps = self._best(joined.start, joined.end)
        return joined

    def _potential_ps(self, stretch: Stretch) -> int:
        """What fast memory could save at most."""
        steps = self.problem.steps[stretch.start : stretch.end]
        return sum(step.weight * step.latency_ps([False] * len(step.uses)) for step in steps) - stretch.floor_ps

    def _hopeful(self, short: list[Stretch], long: list[Stretch]) -> list[Stretch]:
        """Short stretches in which the linear relaxations of the long ones lose something."""
        lossy = [each for each in long if each.loss_ps > self._negligible_ps]
        return [
            stretch
            for stretch in short
            if any(each.start < stretch.end and stretch.start < each.end for each in lossy)
            and self._potential_ps(stretch) > self._negligible_ps
        ]

    def _bound_all(self, stretches: list[Stretch], *, integer: bool) -> None:
        """Bound stretches of one level, those that promise most first."""
        todo = sorted(stretches, key=lambda each: (each.loss_ps, self._potential_ps(each)), reverse=True)
        is_last = integer and any(each.end - each.start == self.problem.horizon for each in stretches)
        level_end = time.monotonic() + self.effort.left * (1.0 if is_last else LEVEL_SHARE)
        for place, stretch in enumerate(todo):
            if self.effort.is_over():
                return
            # A stretch may take more than its share: most take far less.
            share = SHARES * (level_end - time.monotonic()) / (len(todo) - place)
            search = self._open(stretch, min(self.effort.left, max(LEAST_SECONDS, share)))
            search.linear()
            search.cut()
            if integer:
                Branching(search).run()
                stretch.optimal = search.optimal
            self._close(stretch, search)

    def _open(self, stretch: Stretch, seconds: float) -> RelaxationSearch:
        model = DetailedModel(self._cutter.cut(stretch.start, stretch.end))
        self._add_parts(model, stretch)
        effort = replace(self.effort, end=time.monotonic() + seconds)
        search = RelaxationSearch(model, effort, lambda bound: self._note(stretch, bound))
        self.stretches.append(stretch)
        self._note(stretch, search.bound)
        return search

    def _close(self, stretch: Stretch, search: RelaxationSearch) -> None:
        if search.values is not None:
            uses = range(self._first_use[stretch.end] - self._first_use[stretch.start])
            stretch.fast = np.array([sum(search.values[column] for column in search.model.fast[use]) for use in uses])

    def _add_parts(self, model: DetailedModel, stretch: Stretch) -> None:
        """Rows: the parts of a stretch take no less than is known of each."""
        for part in self.stretches:
            is_inside = stretch.start <= part.start and part.end <= stretch.end
            if is_inside and part is not stretch and part.loss_ps > self._negligible_ps:
                span = part.start - stretch.start, part.end - stretch.start
                constant, terms = model.elapsed(*span) if model.stall else model.between(*span)
                model.add_row(terms, part.bound_ps - constant, INFINITE)

    def _note(self, stretch: Stretch, bound_ps: int) -> None:
        if bound_ps <= stretch.bound_ps:
            return
        stretch.bound_ps = bound_ps
        total = self._best(0, self.problem.horizon)
        if total > self.bound:
            self.bound = total
            if self.on_bound is not None:
                self.on_bound(total)

    def _best(self, start: int, end: int) -> int:
        """Most that disjoint stretches within these steps say of them."""
        return self._chain(start, end)[0]

    def _chain(self, start: int, end: int) -> tuple[int, list[Stretch]]:
        """Disjoint stretches within these steps with the largest sum, and what it is with the least latencies between them."""
        ending: dict[int, list[Stretch]] = {}
        for stretch in self.stretches:
            if start <= stretch.start and stretch.end <= end:
                ending.setdefault(stretch.end, []).append(stretch)
        best: list[tuple[int, list[Stretch]]] = [(0, [])]
        for boundary in range(start + 1, end + 1):
            step = self._floor_until[boundary] - self._floor_until[boundary - 1]
            options = [(best[-1][0] + step, best[-1][1])]
            for stretch in ending.get(boundary, ()):
                total, chain = best[stretch.start - start]
                options.append((total + stretch.bound_ps, [*chain, stretch]))
            best.append(max(options, key=lambda option: option[0]))
        return best[-1]

    def fast_values(self) -> FloatArray:
        """How much each use is fast in the solutions that the bound is made of; 0 where there is none. Shape ``[uses]``."""
        values = np.zeros(self.problem.use_count)
        for stretch in self._chain(0, self.problem.horizon)[1]:
            if stretch.fast is not None:
                values[self._first_use[stretch.start] : self._first_use[stretch.end]] = np.clip(stretch.fast, 0.0, 1.0)
        return values
