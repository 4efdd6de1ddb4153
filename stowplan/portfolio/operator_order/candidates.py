"""The candidates for operator order, as functions of (problem, context).

First comes the peak, then, where it is proven or nothing more is found, the arena.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.operator_order.bounds import cut_bound, forced_loads
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build, stable_order
from stowplan.models.packing import problem as packing_problem
from stowplan.models.packing.bounds import load_bound
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.operator_order import beam
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.portfolio.operator_order.graph import make
from stowplan.portfolio.operator_order.local_search import Dividing, Windows
from stowplan.portfolio.operator_order.orders import BASELINES
from stowplan.portfolio.operator_order.set_search import EXHAUSTED, FOUND, FULL, SetSearch
from stowplan.portfolio.packing import candidates as packing
from stowplan.portfolio.packing.candidates import InnerRun
from stowplan.portfolio.presolve import presolve_seconds


class SearchParameters(Parameters, frozen=True):
    """Parameters of the search."""

    cut_share: float = 0.15
    """Part of the time for bounds by cuts, before all else."""
    widths: tuple[int, ...] = (1, 4)
    """Sets side by side in a beam, one beam after the other."""
    most_wide: int = 40_000
    """Operators times sets of a beam at most."""
    weights: tuple[float, ...] = (1000.0, 1.0)
    """Live bytes that a byte of the peak so far is worth, beam by beam."""
    presolve_sets: int = 1_000
    """Sets that the exact search looks at in a moment."""
    first_sets: int = 20_000
    """Sets that the exact search looks at before local search has its first turn beside it."""
    splits: int = 24
    """Rounds of splits by cuts without gain after which stretches have their turn."""
    stretches: int = 8
    """Rounds of stretches put in order without gain after which splits have their turn."""
    arena_share: float = 0.2
    """Part of the time that is kept for the arena while the peak is open."""
    arena_orders: int = 6
    """Orders that the arena tries."""


PARAMS = parameters(SearchParameters, __name__)


#: The packing room's candidates that look for offsets, one after the other.
PACKINGS = packing.search, packing.exact


class _Run:
    """A candidate at work: what it knows, and what it has told."""

    def __init__(self, problem: Problem, context: Context):
        self.problem, self.context = problem, context
        self.structure = build(problem)
        self.floor = int(forced_loads(self.structure).max(initial=0))
        self.forwards, self.backwards = make(self.structure), make(self.structure, backward=True)
        self.best: Plan | None = None
        self._ceilings = np.full(self.structure.ops, 1 << 62, np.int64)

    def offer(self, order: list[int], source: str) -> int:
        """Tell of an order, with offsets made in a moment, where it is better than all known here; returns its peak."""
        profile = self.structure.profile(order)
        self._ceilings[order] = np.minimum(self._ceilings[order], profile[: len(order)])
        peak = int(profile.max(initial=0))
        if self.best is None or peak < self.best.objective:
            self.tell(Lives(self.problem, self.structure, order).quick(), source)
        return peak

    def tell(self, plan: Plan, source: str) -> None:
        """Tell of a plan where it is the best that this candidate has."""
        if self.best is None or (plan.objective, plan.arena) < (self.best.objective, self.best.arena):
            self.best = plan
            self.context.plan(plan, source)

    def prove(self) -> None:
        """Bounds by cuts, of the operators where most is live in the orders so far; goes on where it was stopped."""
        self.floor = cut_bound(
            self.structure,
            self._ceilings,
            self.floor,
            self.context.within(PARAMS.cut_share),
            lambda bound: self.context.bound(bound, "cuts"),
            self.context.work(work_rates.ORDER_CUTS),
        )

    def know(self) -> tuple[Plan | None, int]:
        """The best plan and bound of all."""
        plan, bound = self.context.incumbent()
        if plan is None or (self.best is not None and (self.best.objective, self.best.arena) <= (plan.objective, plan.arena)):
            plan = self.best
        return plan, max(self.floor, bound or 0)

    def has_least_peak(self) -> bool:
        """Whether the peak of the best plan is proven."""
        plan, bound = self.know()
        return plan is not None and plan.objective <= bound

    def is_over(self) -> bool:
        """Whether to stop looking for lower peaks: there are none, or the rest of the time is the arena's."""
        if self.context.closed() or self.has_least_peak():
            return True
        plan, _ = self.know()
        wants_arena = plan is not None and plan.arena > plan.objective
        return wants_arena and self.context.is_last(PARAMS.arena_share)


def presolve(problem: Problem, context: Context) -> None:
    """What takes little time on a small graph: cuts, the narrowest beams, the first sets of the exact search."""
    run = _Run(problem, context)
    if run.structure.ops == 0:
        return
    run.offer(stable_order(run.structure), "given")
    _beams(run, 1, None)
    run.prove()
    _search_sets(run, None, most=PARAMS.presolve_sets)
    if run.has_least_peak() and run.best is not None and not context.closed():
        lives = Lives(problem, run.structure, run.best.order)
        _pack(run, lives, presolve_seconds(context), context.closed, (packing.exact,))


def search(problem: Problem, context: Context) -> None:
    """The orders of compilers, beams forwards and backwards, local search; then offsets."""
    run = _Run(problem, context)
    for name, baseline in BASELINES.items():
        order = baseline(run.structure, context.closed)
        if order is not None:
            context.plan(Lives(problem, run.structure, order).quick(), name)
            run.offer(order, name)
    if context.heard() is None:
        # Otherwise the exact search says which bounds it has proven.
        run.prove()
    chance = context.rng()
    for width in PARAMS.widths:
        if width * run.structure.ops <= PARAMS.most_wide:
            _beams(run, width, None)
    _go_on(run, _Improvement(run, chance), chance, context.work(work_rates.ORDER_ROUNDS, run.structure.ops + 50, least=2))


def _beams(run: _Run, width: int, chance: np.random.Generator | None) -> None:
    """A beam in each direction with each weight, below the best known."""
    for weight in PARAMS.weights:
        for graph in (run.forwards, run.backwards):
            plan, floor = run.know()
            if plan is None or run.is_over():
                return
            reached = beam.search(graph, floor, plan.objective, width, chance, run.is_over, weight)
            if reached is not None:
                run.offer(reached[1], "beam")


class _Improvement:
    """Local search from the best order: splits by cuts while they gain ground, stretches, and beams with other chances."""

    def __init__(self, run: _Run, chance: np.random.Generator):
        self._run, self._chance = run, chance
        self._searches: tuple[tuple[Dividing | Windows, str, int], ...] = ()
        self._count = 0

    def go_on(self, is_over: Callable[[], bool], rounds: int | None = None) -> None:
        """Until it is over, or for so many rounds."""
        count = 0
        while not is_over() and (rounds is None or count < rounds):
            for search_, source, patience in self._ready():
                failures = 0
                while failures < patience and not is_over() and (rounds is None or count < rounds):
                    count += 1
                    if search_.step(is_over):
                        failures = 0
                        self._run.offer(search_.order, source)
                    else:
                        failures += 1
            self._count += 1
            if self._count % 4 == 0 and not is_over():
                _beams(self._run, int(self._chance.choice([4, 8, 16, 32])), self._chance)

    def _ready(self) -> tuple[tuple[Dividing | Windows, str, int], ...]:
        """The searches, each going on from the best order, with the rounds without gain after which the next has its turn."""
        run = self._run
        plan, floor = run.know()
        assert plan is not None
        order = list(plan.order)
        if not self._searches:
            divided = Dividing(run.structure, run.forwards, run.backwards, order, floor, self._chance)
            windows = Windows(run.structure, run.forwards, order, floor, self._chance, run.context.limits)
            self._searches = (divided, "splits", PARAMS.splits), (windows, "windows", PARAMS.stretches)
        for search_, _, _ in self._searches:
            search_.floor = floor
            if search_.peak > plan.objective:
                search_.adopt(order)
        return self._searches


def exact(problem: Problem, context: Context) -> None:
    """Search over sets of operators, forwards and backwards in turn; then offsets for the order found."""
    run = _Run(problem, context)
    if run.structure.ops == 0:
        return
    run.offer(stable_order(run.structure), "given")
    _beams(run, 1, None)
    run.prove()
    chance = context.rng(1)
    improvement = _Improvement(run, chance)
    _search_sets(run, improvement)
    _go_on(run, improvement, chance, 0 if context.heard() is None else None)


def _go_on(run: _Run, improvement: _Improvement, chance: np.random.Generator, rounds: int | None) -> None:
    """Lower peaks, then the arena; and where that was quick and peaks are not proven, again."""
    while True:
        improvement.go_on(run.is_over, rounds)
        _arena(run, chance)
        if run.context.closed() or run.has_least_peak() or rounds is not None:
            return


def _search_sets(run: _Run, improvement: _Improvement | None, most: int | None = None) -> None:
    """The search itself, in turn with local search where the clock may count: a lower peak leaves less to look at.

    ``most``: sets to look at, at most, a few at a time.
    """
    context = run.context
    limit = context.work(work_rates.ORDER_SETS, run.structure.ops + 50) if most is None else most
    searches: dict[int, SetSearch] = {}
    slice_, looked = 200, 0
    while not run.is_over() and (limit is None or looked < limit):
        began = time.monotonic()
        for graph in (run.forwards, run.backwards):
            plan, floor = run.know()
            assert plan is not None
            one = searches.setdefault(graph.backward, SetSearch(graph, floor, plan.objective))
            one.upper = min(one.upper, plan.objective)
            before = one.sets
            outcome = one.run(run.is_over, slice_)
            looked += one.sets - before
            if one.bound > run.floor:
                run.floor = one.bound
                context.bound(one.bound, "sets")
            if outcome == FOUND:
                run.offer(one.order(), "sets")
            if outcome in (FOUND, EXHAUSTED):
                return
        slice_ = min(200_000, 2 * slice_) if most is None else slice_
        is_full = all(search.outcome == FULL for search in searches.values())
        if is_full and limit is not None:
            return
        if limit is None or most is not None:
            run.prove()
        until = math.inf if is_full else time.monotonic() + max(0.2, time.monotonic() - began)
        if improvement is not None and limit is None and looked > PARAMS.first_sets:
            improvement.go_on(lambda until=until: run.is_over() or time.monotonic() >= until)  # type: ignore[misc]


def _arena(run: _Run, chance: np.random.Generator) -> None:
    """Offsets for the best order, then for others of the same peak, until the arena is no larger than that."""
    context = run.context

    def is_over() -> bool:
        plan, _ = run.know()
        return context.closed() or plan is None or plan.arena <= plan.objective

    for attempt in range(PARAMS.arena_orders):
        plan, _ = run.know()
        if plan is None or is_over():
            return
        order = list(plan.order)
        if attempt:
            order = _another(run, order, chance)
        lives = Lives(run.problem, run.structure, order)
        if lives.peak > plan.objective:
            continue
        # All packings together are to be within the work limit, since no clock ends them.
        seconds, work = max(0.5, context.seconds() / 20), context.seconds() / (len(PACKINGS) * PARAMS.arena_orders)
        _pack(run, lives, seconds, is_over, work=min(seconds, work))


def _pack(
    run: _Run,
    lives: Lives,
    seconds: float,
    is_over: Callable[[], bool],
    candidates: Sequence[Callable[[packing_problem.Problem, Context], None]] = PACKINGS,
    work: float | None = None,
) -> None:
    """The packing room's candidates on the lives of an order, for some seconds each."""
    load = load_bound(lives.packing)
    for candidate in candidates:
        inner = InnerRun(run.context, seconds, work, bound=load, is_over=is_over)
        candidate(lives.packing, inner)
        if inner.best is not None:
            run.tell(lives.plan(inner.best.offsets), "arena")
        if inner.is_settled:
            return


def _another(run: _Run, order: list[int], chance: np.random.Generator) -> list[int]:
    """Another order of no higher peak: a beam with noise, in one of the directions."""
    peak = run.structure.peak(order)
    graph = run.backwards if chance.random() < 0.5 else run.forwards
    reached = beam.search(graph, peak, peak + 1, 4, chance, run.context.closed, weight=0.0)
    return order if reached is None else reached[1]
