"""The candidates for operator order, as functions of (problem, context).

A *candidate* is one method of a run of ``solve``. It returns nothing and raises no errors of its own: it reports plans and
bounds to its :class:`~stowplan.kernel.context.Context`.

They first minimize the *peak*, the largest number of bytes that are live at the same time. Once the peak is proven minimal, or
no lower one is found, they look for offsets whose *arena*, the memory that holds all tensors, is no larger than the peak. An
order is found forwards in time, from the first operator to the last, or backwards (:mod:`.graph`). A *beam* (:mod:`.beam`) and
the exact search (:mod:`.set_search`) build an order through sets of operators that have run. A *cut* is the best set of
operators to have run before a given operator. *Splits* and *windows* are the two local searches of :mod:`.local_search`.
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
    """Parameters of the candidates."""

    cut_share: float = 0.15
    """Part of the time limit that each computation of bounds by minimum cuts may take."""
    widths: tuple[int, ...] = (1, 4)
    """Beam widths, in sets of operators, of the beams that run one after the other."""
    most_wide: int = 40_000
    """Number of operators times beam width above which a beam is skipped."""
    weights: tuple[float, ...] = (1000.0, 1.0)
    """Weights of the peak so far relative to the live bytes in the score of a set of operators. One beam runs with each
    weight."""
    presolve_sets: int = 1_000
    """Number of sets of operators that the exact search of the presolver examines."""
    first_sets: int = 20_000
    """Number of sets of operators that the exact search examines before local search runs in between."""
    splits: int = 24
    """Number of splits in a row without an improvement after which windows are searched."""
    stretches: int = 8
    """Number of searched windows in a row without an improvement after which splits begin again."""
    arena_share: float = 0.2
    """Part of the candidate's time that is reserved for the arena while the peak is not proven minimal."""
    arena_orders: int = 6
    """Largest number of orders of the same peak for which offsets are searched."""


PARAMS = parameters(SearchParameters, __name__)


#: The candidates of the kind ``packing`` that look for offsets, one after the other.
PACKINGS = packing.search, packing.exact


class _Run:
    """The state of a candidate: the problem as arrays, its graphs in both directions of time, and its best plan and bound.

    ``floor`` is the largest proven lower bound of the peak in bytes, ``best`` the best plan, None at first. Plans are compared
    by their peak, and plans of equal peak by their arena.
    """

    def __init__(self, problem: Problem, context: Context):
        self.problem, self.context = problem, context
        self.structure = build(problem)
        self.floor = int(forced_loads(self.structure).max(initial=0))
        self.forwards, self.backwards = make(self.structure), make(self.structure, backward=True)
        self.best: Plan | None = None
        self._ceilings = np.full(self.structure.ops, 1 << 62, np.int64)

    def report_order(self, order: list[int], source: str) -> int:
        """Report a plan of this order, with quick offsets, if its peak is lower than that of the best plan; returns the peak.

        ``source`` is the name under which the plan is reported.
        """
        profile = self.structure.profile(order)
        self._ceilings[order] = np.minimum(self._ceilings[order], profile[: len(order)])
        peak = int(profile.max(initial=0))
        if self.best is None or peak < self.best.objective:
            self.report_plan(Lives(self.problem, self.structure, order).quick(), source)
        return peak

    def report_plan(self, plan: Plan, source: str) -> None:
        """Report a plan if it is better than the best plan of this candidate."""
        if self.best is None or (plan.objective, plan.arena) < (self.best.objective, self.best.arena):
            self.best = plan
            self.context.plan(plan, source)

    def prove_by_cuts(self) -> None:
        """Compute bounds by minimum cuts, first at the operators with the most live bytes in the orders so far.

        Bounds are reported under the name ``cuts``. A further call starts from the best bound and order so far.
        """
        self.floor = cut_bound(
            self.structure,
            self._ceilings,
            self.floor,
            self.context.within(PARAMS.cut_share),
            lambda bound: self.context.bound(bound, "cuts"),
            self.context.work(work_rates.ORDER_CUTS),
        )

    def best_plan_and_bound(self) -> tuple[Plan | None, int]:
        """The best plan of all candidates, None if there is none yet, and the largest bound of all candidates in bytes."""
        plan, bound = self.context.incumbent()
        if plan is None or (self.best is not None and (self.best.objective, self.best.arena) <= (plan.objective, plan.arena)):
            plan = self.best
        return plan, max(self.floor, bound or 0)

    def is_peak_proven(self) -> bool:
        """Whether the peak of the best plan is proven minimal."""
        plan, bound = self.best_plan_and_bound()
        return plan is not None and plan.objective <= bound

    def is_over(self) -> bool:
        """Whether to stop looking for lower peaks: the peak is proven minimal, the time is over, or its rest is for the
        arena."""
        if self.context.closed() or self.is_peak_proven():
            return True
        plan, _ = self.best_plan_and_bound()
        wants_arena = plan is not None and plan.arena > plan.objective
        return wants_arena and self.context.is_last(PARAMS.arena_share)


def presolve(problem: Problem, context: Context) -> None:
    """The presolver, which runs before all other candidates if the graph is small.

    It runs beams of width 1, computes bounds by cuts, and searches exactly over a limited number of sets. If the peak is then
    proven minimal, it searches offsets exactly. A graph without operators is left to the other candidates.
    """
    run = _Run(problem, context)
    if run.structure.ops == 0:
        return
    run.report_order(stable_order(run.structure), "given")
    _beams(run, 1, None)
    run.prove_by_cuts()
    _search_sets(run, None, most=PARAMS.presolve_sets)
    if run.is_peak_proven() and run.best is not None and not context.closed():
        lives = Lives(problem, run.structure, run.best.order)
        _pack(run, lives, presolve_seconds(context), context.closed, (packing.exact,))


def search(problem: Problem, context: Context) -> None:
    """The heuristic: the orders that compilers use (:mod:`.orders`), beams forwards and backwards in time, local search, then
    offsets."""
    run = _Run(problem, context)
    for name, baseline in BASELINES.items():
        order = baseline(run.structure, context.closed)
        if order is not None:
            context.plan(Lives(problem, run.structure, order).quick(), name)
            run.report_order(order, name)
    if context.heard() is None:
        # In other runs, the exact candidate computes these bounds and sends them to this one.
        run.prove_by_cuts()
    chance = context.rng()
    for width in PARAMS.widths:
        if width * run.structure.ops <= PARAMS.most_wide:
            _beams(run, width, None)
    _minimize_peak_and_arena(
        run, _Improvement(run, chance), chance, context.work(work_rates.ORDER_ROUNDS, run.structure.ops + 50, least=2)
    )


def _beams(run: _Run, width: int, chance: np.random.Generator | None) -> None:
    """Run a beam of ``width`` sets in each direction of time with each weight, to find orders below the best peak.

    ``chance`` is the source of noise, None for no noise. Without a plan to improve, nothing is done.
    """
    for weight in PARAMS.weights:
        for graph in (run.forwards, run.backwards):
            plan, floor = run.best_plan_and_bound()
            if plan is None or run.is_over():
                return
            result = beam.search(graph, floor, plan.objective, width, chance, run.is_over, weight)
            if result is not None:
                run.report_order(result[1], "beam")


class _Improvement:
    """Local search from the best order: splits by cuts, windows, and beams with noise, in turn."""

    def __init__(self, run: _Run, chance: np.random.Generator):
        self._run, self._chance = run, chance
        self._searches: tuple[tuple[Dividing | Windows, str, int], ...] = ()
        self._count = 0

    def improve(self, is_over: Callable[[], bool], rounds: int | None = None) -> None:
        """Search until ``is_over`` returns True, or for a number of rounds; None for no limit. A round is one split or window.

        Some candidate must have found a plan.
        """
        count = 0
        while not is_over() and (rounds is None or count < rounds):
            for search_, source, patience in self._continued_searches():
                failures = 0
                while failures < patience and not is_over() and (rounds is None or count < rounds):
                    count += 1
                    if search_.step(is_over):
                        failures = 0
                        self._run.report_order(search_.order, source)
                    else:
                        failures += 1
            self._count += 1
            # A beam of one of these widths, chosen at random, follows each fourth pass through both searches.
            if self._count % 4 == 0 and not is_over():
                _beams(self._run, int(self._chance.choice([4, 8, 16, 32])), self._chance)

    def _continued_searches(self) -> tuple[tuple[Dividing | Windows, str, int], ...]:
        """Rows (search, source, patience) of the local searches, which continue from the best order.

        The source is the name under which plans are reported. The patience is the number of rounds without an improvement after
        which the next search runs.
        """
        run = self._run
        plan, floor = run.best_plan_and_bound()
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
    """The exact candidate: best-first search over sets of operators, forwards and backwards in turn; then offsets.

    A graph without operators is left to the heuristic.
    """
    run = _Run(problem, context)
    if run.structure.ops == 0:
        return
    run.report_order(stable_order(run.structure), "given")
    _beams(run, 1, None)
    run.prove_by_cuts()
    chance = context.rng(1)
    improvement = _Improvement(run, chance)
    _search_sets(run, improvement)
    _minimize_peak_and_arena(run, improvement, chance, 0 if context.heard() is None else None)


def _minimize_peak_and_arena(run: _Run, improvement: _Improvement, chance: np.random.Generator, rounds: int | None) -> None:
    """Reduce the peak, then the arena, and repeat both while there is time and the peak is not proven minimal.

    ``improvement`` is the local search. If ``rounds`` is not None, local search has this number of rounds, and nothing is
    repeated.
    """
    while True:
        improvement.improve(run.is_over, rounds)
        _arena(run, chance)
        if run.context.closed() or run.is_peak_proven() or rounds is not None:
            return


def _search_sets(run: _Run, improvement: _Improvement | None, most: int | None = None) -> None:
    """Run the exact search, in turn with local search, because a lower peak leaves fewer sets to examine.

    It ends when an order of minimal peak is found, when the peak so far is proven minimal, or at a limit. ``improvement`` is
    the local search, None for none; in deterministic runs it is not used. ``most`` is the largest number of sets to examine; by
    default the time, or the work limit of a deterministic run, ends the search. There must be a plan already.
    """
    context = run.context
    limit = context.work(work_rates.ORDER_SETS, run.structure.ops + 50) if most is None else most
    searches: dict[int, SetSearch] = {}
    # The number of sets that each direction examines in its turn grows from 200 to 200,000.
    slice_, examined = 200, 0
    while not run.is_over() and (limit is None or examined < limit):
        began = time.monotonic()
        for graph in (run.forwards, run.backwards):
            plan, floor = run.best_plan_and_bound()
            assert plan is not None
            set_search = searches.setdefault(graph.backward, SetSearch(graph, floor, plan.objective))
            set_search.upper = min(set_search.upper, plan.objective)
            before = set_search.sets
            outcome = set_search.run(run.is_over, slice_)
            examined += set_search.sets - before
            if set_search.bound > run.floor:
                run.floor = set_search.bound
                context.bound(set_search.bound, "sets")
            if outcome == FOUND:
                run.report_order(set_search.order(), "sets")
            if outcome in (FOUND, EXHAUSTED):
                return
        slice_ = min(200_000, 2 * slice_) if most is None else slice_
        is_full = all(search.outcome == FULL for search in searches.values())
        if is_full and limit is not None:
            return
        if limit is None or most is not None:
            run.prove_by_cuts()
        until = math.inf if is_full else time.monotonic() + max(0.2, time.monotonic() - began)
        if improvement is not None and limit is None and examined > PARAMS.first_sets:
            improvement.improve(lambda until=until: run.is_over() or time.monotonic() >= until)  # type: ignore[misc]


def _arena(run: _Run, chance: np.random.Generator) -> None:
    """Look for offsets for the best order, then for other orders of the same peak, until the arena is no larger than the
    peak."""
    context = run.context

    def is_over() -> bool:
        plan, _ = run.best_plan_and_bound()
        return context.closed() or plan is None or plan.arena <= plan.objective

    for attempt in range(PARAMS.arena_orders):
        plan, _ = run.best_plan_and_bound()
        if plan is None or is_over():
            return
        order = list(plan.order)
        if attempt:
            order = _order_of_same_peak(run, order, chance)
        lives = Lives(run.problem, run.structure, order)
        if lives.peak > plan.objective:
            continue
        # In a deterministic run no clock ends the packings, so all of them together must stay within the work limit.
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
    """Run candidates of the kind ``packing`` on the live ranges of an order, each for ``seconds``, and report the plans.

    It ends early if ``is_over`` returns True, or if an arena of minimal size is found for this order. ``work`` is the limit of
    each candidate in a deterministic run, in seconds of an idle machine; by default ``seconds``.
    """
    load = load_bound(lives.packing)
    for candidate in candidates:
        inner = InnerRun(run.context, seconds, work, bound=load, is_over=is_over)
        candidate(lives.packing, inner)
        if inner.best is not None:
            run.report_plan(lives.plan(inner.best.offsets), "arena")
        if inner.is_settled:
            return


def _order_of_same_peak(run: _Run, order: list[int], chance: np.random.Generator) -> list[int]:
    """Another order whose peak is no higher, found by a beam with noise in a random direction of time.

    If none is found, ``order`` is returned.
    """
    peak = run.structure.peak(order)
    graph = run.backwards if chance.random() < 0.5 else run.forwards
    result = beam.search(graph, peak, peak + 1, 4, chance, run.context.closed, weight=0.0)
    return order if result is None else result[1]
