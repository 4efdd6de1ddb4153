"""The candidates for packing, as functions of (problem, context).

A *candidate* is one method of a run of ``solve``. It returns nothing and raises no errors of its own: it reports plans and
bounds to its :class:`~stowplan.kernel.context.Context`. If the problem has a capacity, any plan within it is as good as
another, so all candidates end with the first one. This does not hold for problems with *reuse penalties*, costs of pairs of
buffers that share bytes one after the other. They have candidates of their own (:mod:`.penalties`). Candidates of other kinds,
such as operator order, call these functions for packing problems of their own (:class:`InnerRun`).

An *overlap* permits a buffer to share bytes with one that is still live. A *gap* is a time within the life of a buffer in which
it takes no bytes. The *height* of a plan is the highest address that it uses. The *load* of a moment is the sum of the sizes of
the buffers that are live; its maximum is a lower bound of the height. :class:`stowplan.portfolio.packing.arrays.Data` has the
buffers: time is divided into *sections*, sizes and offsets are counted in *units*. *Climbing* is local search over the order in
which buffers are placed (:mod:`.search`), and placing *from the bottom up* fills the lowest place first (:mod:`.skyline`).
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import numpy as np

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.packing.bounds import find_overload, load_bound
from stowplan.models.packing.overlaps import without_overlaps
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import arrays, beam, canonical, merging, orders, peaks, skyline, valleys
from stowplan.portfolio.packing.arrays import Data, Ints
from stowplan.portfolio.packing.search import HeuristicSearch
from stowplan.portfolio.presolve import includes_heuristics, presolve_seconds, report_if_overloaded
from stowplan.portfolio.solver_limits import solver_options

Search = Callable[[Problem, Context], None]


class SearchParameters(Parameters, frozen=True):
    """Parameters of the candidates."""

    least_rounds: int = 8
    """Least number of placements of all buffers from the bottom up in a deterministic run."""
    climbs_before_beams: int = 60
    """Number of rounds of hill climbing over orders before beam search starts."""
    few_buffers: int = 1500
    """Number of buffers up to which they are placed in simple orders, which compares all pairs and is slow if there are
    more."""
    many_buffers: int = 200_000
    """Number of buffers above which placing from the peaks is skipped, because it may run long without looking at the clock."""
    few_orders: tuple[int, ...] = (0, 2)
    """Numbers of the orders (:func:`.orders.greedy_keys`) from which ``climb`` starts: by size, and by the number of sections
    that a buffer lives through."""
    apart_share: float = 0.7
    """Part of the remaining time in which a candidate looks for plans without overlaps, if the problem has overlaps."""
    quick_placed: int = 40_000
    """Number of single buffers that the presolver places while it improves its best plan without overlaps; it takes some tenths
    of a second."""
    first_valley_work: int = 10_000_000
    """Work of the search over valleys before the first beam search, as nodes times the sections that a node looks at; it takes
    some hundredths of a second."""
    valley_work: int = 200_000_000
    """Work of the search over valleys before the second beam search, and in ``climb``; it takes about a second."""
    valley_share: float = 0.5
    """Largest part of a candidate's time for the search over valleys. Its nodes times sections count as the nodes times buffers
    of the exact search do."""
    valley_work_share: float = 0.05
    """The same in a deterministic run."""
    most_valley_buffers: int = 6_000
    """Number of buffers above which the search over valleys is left out, because a node looks at too many sections."""
    most_merged: float = 0.98
    """Largest number of merged buffers, divided by that of buffers, at which there are searches for merged buffers. At 0 there
    are none."""
    least_valley_nodes: int = 10_000
    """The search over valleys is left out if it could look at fewer nodes than this."""
    explain_seconds: float = 3.0
    """Seconds that the search for an explanation of an infeasible problem may take even if the proof was quicker."""


PARAMS = parameters(SearchParameters, __name__)


def search(problem: Problem, context: Context) -> None:
    """The main heuristic: greedy placement in simple orders, then beam search.

    If there are gaps, overlaps or fixed offsets, hill climbing over the orders takes the place of beam search: buffers that
    ended too high are placed earlier in the next round. Many buffers without gaps, overlaps and fixed offsets are placed from
    the bottom up instead (:mod:`.skyline`).
    """
    _search(problem, context, range(orders.PEAK + 1), "orders", 0)


def apart(problem: Problem, context: Context) -> None:
    """A heuristic for problems with overlaps: :func:`search` without the overlaps, then hill climbing with them."""
    _run_without_overlaps(search, problem, context, "apart")


def _run_without_overlaps(find: Search, problem: Problem, context: Context, source: str) -> None:
    """Run the candidate ``find`` on the problem without its overlaps, then improve the best plan by hill climbing with them.

    Plans are reported under the name ``source``. Every plan without overlaps is also valid with them. In a deterministic run,
    ``find`` does all the work that it would do on the problem without overlaps, so that permitting overlaps never makes its
    plan higher.
    """
    if report_if_overloaded(context, find_overload(problem)):
        return
    plain = without_overlaps(problem)
    bound = load_bound(plain) if problem.capacity is None else None
    seconds = context.part_of_rest(PARAMS.apart_share)
    run = _RunWithoutOverlaps(problem, source, context, seconds, bound=bound)
    find(plain, run)
    best = run.best
    shared_best = context.incumbent()[0]
    if shared_best is not None and (best is None or shared_best.objective < best.objective):
        best = shared_best
    if best is None or context.closed() or problem.capacity is not None:
        return
    data = arrays.build(problem)
    rounds = context.work(work_rates.PACKING_PAIRS, len(data.size) ** 2 + 20_000, least=20)
    _climb_with_overlaps(problem, context, data, in_units(best, data), rounds, source)


def _climb_with_overlaps(
    problem: Problem, context: Context, data: Data, offsets: Ints, rounds: int | None, source: str
) -> None:
    """Hill climbing on the problem with its overlaps, from the plan with ``offsets`` [n], in units.

    ``rounds`` is the largest number of rounds, None for no limit; plans are reported under the name ``source``.
    """
    report = functools.partial(_report_plan, problem, context, data)
    if len(data.size):
        search = HeuristicSearch(data, _target(problem, data), context.seed(), report, context.closed)
        search.climb_from(offsets, source, rounds)


def _without_overlap_support(source: str) -> Callable[[Search], Search]:
    """Decorator for candidates that do not support overlaps: they solve the problem without its overlaps.

    :func:`_run_without_overlaps` says how. Their bounds, which hold only for plans without overlaps, are not reported. Problems
    without overlaps are passed on unchanged. ``source`` is the name under which plans are reported.
    """

    def decorate(find: Search) -> Search:
        @functools.wraps(find)
        def run(problem: Problem, context: Context) -> None:
            if problem.overlaps:
                _run_without_overlaps(find, problem, context, source)
            else:
                find(problem, context)

        return run

    return decorate


@_without_overlap_support("climb")
def climb(problem: Problem, context: Context) -> None:
    """The second heuristic for many buffers: search over valleys (:mod:`.valleys`), placement outward from the peaks, then
    placement from the bottom up with other keys. The first is left out if there are very many buffers."""
    if len(problem.buffers) <= PARAMS.many_buffers:
        if report_if_overloaded(context, find_overload(problem)):
            return
        data = arrays.build(problem)
        few = len(problem.buffers) <= PARAMS.most_valley_buffers
        if few and _fill_valleys(problem, context, data, _merged(data), PARAMS.valley_work, 1):
            return
        if data.is_plain:
            _place_from_peaks(problem, context, data)
    _search(problem, context, PARAMS.few_orders, "climb", 1)


def _place_from_peaks(problem: Problem, context: Context, data: Data) -> None:
    """Place outward from one or several peaks of the load (:mod:`.peaks`), with stacks of several kinds.

    Afterwards go on with random variations as long as no other candidate has found a lower plan. Deterministic runs make no
    random variations. The data must be plain (:attr:`~stowplan.portfolio.packing.arrays.Data.is_plain`).
    """
    target, best = _target(problem, data), None
    run = peaks.Peaks(data, target, context.seed(), context.closed)
    tries = itertools.chain(((count, ways, False) for count, ways in run.tries()), itertools.repeat((1, peaks.WAYS, True)))
    # A try counts as ten placements of all buffers, because each of the first tries takes ten sweeps or more.
    max_tries = context.work(work_rates.PACKING_PLACED, 10 * len(data.size), least=1)
    for count, ways, at_random in itertools.islice(tries, max_tries):
        shared_best = context.incumbent()[0]
        another_is_lower = shared_best is not None and (best is None or shared_best.objective < best * data.unit)
        if context.closed() or (at_random and (another_is_lower or max_tries is not None)):
            return
        placed = run.place(count, ways, best, at_random=at_random)
        if placed is not None:
            best, offsets = placed
            if problem.capacity is None or best <= target:
                context.plan(arrays.export_plan(problem, data, offsets), "peaks")
            if best <= target:
                return


def _search(problem: Problem, context: Context, chosen_orders: Collection[int], source: str, stream: int) -> None:
    """Search by beams (:mod:`.beam`), from the bottom up, or by orders, whichever suits the number and the lives of the
    buffers.

    ``chosen_orders`` are the numbers of the orders to use, ``source`` is the name under which plans are reported, and
    ``stream`` is the stream of random numbers (:meth:`Context.seed`).
    """
    if report_if_overloaded(context, find_overload(problem)):
        return
    data = arrays.build(problem)
    n = len(data.size)
    if n == 0:
        context.plan(arrays.export_plan(problem, data, np.zeros(0, np.int64)), "greedy")
        return
    if n <= PARAMS.few_buffers and data.is_plain:
        _search_by_beams(problem, context, data, "beam")
        return
    target = _target(problem, data)
    run = HeuristicSearch(
        data, target, context.seed(stream), functools.partial(_report_plan, problem, context, data), context.closed
    )
    is_first = source == "orders"
    if n > PARAMS.few_buffers and skyline.supports(data) and not (is_first and data.has_gaps):
        # The baseline, first fit, compares all pairs of buffers, which may take too long.
        has_baseline = is_first and n * n <= 2 * work_rates.PACKING_PAIRS.per_second * context.seconds()
        rounds = context.work(work_rates.PACKING_PLACED, n, least=PARAMS.least_rounds)
        run.climb_skylines("skyline" if is_first else source, rounds, flip=not is_first, baseline=has_baseline)
    else:
        run.climb_orders(chosen_orders, source, context.work(work_rates.PACKING_PAIRS, n * n + 20_000, least=20))


@_without_overlap_support("canonical")
def exact(problem: Problem, context: Context) -> None:
    """Exact depth-first search over canonical plans (:mod:`stowplan.portfolio.packing.canonical`)."""
    _exact(problem, context, "canonical")


@_without_overlap_support("canonical2")
def canonical2(problem: Problem, context: Context) -> None:
    """A second exact search with other random orders and no simple ones.

    How long a search takes is a matter of luck, so that the first of two ends sooner on average than one alone.
    """
    _exact(problem, context, "canonical2", 1, simple_orders=False)


def _exact(problem: Problem, context: Context, source: str, stream: int = 0, *, simple_orders: bool = True) -> None:
    """Exact search with the random numbers of one stream (:meth:`Context.seed`).

    ``simple_orders`` says whether it begins with orders by single features of the buffers. It reports under the name
    ``source``, also a proof that no plan fits into the capacity.
    """
    began = time.monotonic()
    if report_if_overloaded(context, find_overload(problem)):
        return
    data = arrays.build(problem)
    shared_best = context.incumbent()[0]
    offsets = None if shared_best is None else in_units(shared_best, data)
    search = canonical.start(data, _capacity(problem, data), context.seed(stream), offsets, simple_orders=simple_orders)
    _run_and_report(problem, context, data, search, source)
    if search.infeasible:
        _explain(problem, context, source, began)


@_without_overlap_support("beam2")
def beam2(problem: Problem, context: Context) -> None:
    """Search over valleys (:mod:`.valleys`), then a second beam search with another seed, for merged buffers
    (:mod:`.merging`) if these are fewer.

    The first finds packings that waste hardly any byte, soon or never. How long the second takes is a matter of luck, so that
    the first of two beam searches ends sooner on average than one alone. Neither gaps nor fixed offsets are supported.
    """
    if report_if_overloaded(context, find_overload(problem)):
        return
    data = arrays.build(problem)
    merged = _merged(data)
    if len(data.size) == 0 or _fill_valleys(problem, context, data, merged, PARAMS.valley_work, 1):
        return
    if merged is not None:
        _search_merged(problem, context, data, merged, functools.partial(beam.Part, should_stop=context.closed), 1, None)
    else:
        _search_by_beams(problem, context, data, "beam2", 1)


def _fill_valleys(
    problem: Problem, context: Context, data: Data, merged: merging.Merged | None, work: int, stream: int
) -> bool:
    """Search over valleys (:mod:`.valleys`) if it supports the data; returns whether there is a plan as low as the bound.

    The first search is that for the merged buffers (:func:`_merged`), if there are any. The second one starts from the best
    plan of other candidates or, by default, from first fit by size. ``work`` limits, for each of the two, the nodes
    times the sections that a node looks at, and ``stream`` chooses the random numbers (:meth:`Context.seed`).
    """
    # Work of a deterministic run adds to that of the other searches, so that it must be small.
    share = PARAMS.valley_share if context.work(work_rates.PACKING_NODES) is None else PARAMS.valley_work_share
    work = min(work, int(share * work_rates.PACKING_NODES.per_second * context.seconds()))
    nodes = work // data.sections if data.sections else 0
    if not valleys.supports(data) or nodes < PARAMS.least_valley_nodes:
        return False
    merged_nodes = 0 if merged is None else work // merged.data.sections
    if merged is not None and _search_merged(problem, context, data, merged, valleys.Part, stream, merged_nodes):
        return True
    best = context.heard()
    plan = None if best is None else best()
    offsets = None if plan is None else in_units(plan, data)
    search = canonical.start(data, _capacity(problem, data), context.seed(stream), offsets, part_type=valleys.Part)
    _run_and_report(problem, context, data, search, "valleys", nodes)
    return search.finished


def _merged(data: Data) -> merging.Merged | None:
    """The merged buffers; None if merging does not apply, or makes them hardly fewer."""
    if not valleys.supports(data):
        return None
    merged = merging.merge(data)
    return merged if len(merged.data.size) <= PARAMS.most_merged * len(data.size) else None


def _search_merged(
    problem: Problem,
    context: Context,
    data: Data,
    merged: merging.Merged,
    part_type: Callable[..., canonical.Part],
    stream: int,
    node_limit: int | None,
) -> bool:
    """Search for plans in which buffers are merged, and report them; returns whether there is one as low as the bound.

    ``part_type``, ``stream`` and ``node_limit`` are the class that searches, the stream of random numbers, and the largest
    number of nodes, None for the work of the run. The bounds of the search are those of the merged buffers, so that they are
    not reported.
    """
    search = canonical.start(merged.data, _capacity(problem, data), context.seed(stream), part_type=part_type)

    def improved() -> None:
        if search.height is not None:
            _report_plan(problem, context, data, search.height, merged.offsets(search.offsets(merged.data)), "merged")

    if search.height is not None:
        improved()
    search.run(improved, context.closed, node_limit or context.work(work_rates.PACKING_NODES, len(merged.data.size) + 50))
    return search.finished and not search.infeasible


def _search_by_beams(problem: Problem, context: Context, data: Data, source: str, stream: int = 0) -> None:
    """Place in simple orders, climb from the best for a few rounds, then run beam search (:mod:`.beam`).

    The first of the simple orders makes the plan of the baseline ``greedy``. ``stream`` chooses the random numbers
    (:meth:`Context.seed`).
    """
    best: Ints | None = None

    def improved(height: int, offsets: Ints, source: str) -> None:
        nonlocal best
        best = offsets
        _report_plan(problem, context, data, height, offsets, source)

    target, seed = _target(problem, data), context.seed(stream)
    climbing = HeuristicSearch(data, target, seed, improved, context.closed)
    climbing.climb_orders(range(orders.PEAK + 1), "orders", PARAMS.climbs_before_beams)
    if best is None or (best + data.size).max() <= target:
        return
    if stream == 0 and _fill_valleys(problem, context, data, _merged(data), PARAMS.first_valley_work, stream):
        return
    part_type = functools.partial(beam.Part, should_stop=context.closed)
    search = canonical.start(data, _capacity(problem, data), seed, best, part_type=part_type)
    _run_and_report(problem, context, data, search, source)


def _report_plan(problem: Problem, context: Context, data: Data, height: int, offsets: Ints, source: str) -> None:
    """Report a plan under the name ``source`` if its ``height``, in units, is within the capacity.

    If the source is the baseline ``greedy`` and its plan exceeds the capacity, report that the baseline has no plan.
    """
    if problem.capacity is None or height * data.unit <= problem.capacity:
        context.plan(arrays.export_plan(problem, data, offsets), source)
    elif source == "greedy":
        context.no_plan(source)


def _run_and_report(
    problem: Problem,
    context: Context,
    data: Data,
    search: canonical.CanonicalSearch,
    source: str,
    node_limit: int | None = None,
) -> None:
    """Run a search that raises the bound and lowers the height until they meet, or until the time or the work is used up.

    Each better plan and bound is reported under the name ``source``. The search also receives the plans and bounds of other
    candidates, except in a deterministic run. ``node_limit`` limits the nodes in place of the work of the run.
    """

    def improved() -> None:
        if search.infeasible:
            return
        if any(part.bound > bound for part, bound in zip(search.parts, bounds, strict=True)):
            context.bound(search.bound * data.unit, source)
        if search.height is not None:
            context.plan(arrays.export_plan(problem, data, search.offsets(data)), source)

    heard = context.heard()

    def should_stop() -> bool:
        if problem.capacity is None and heard is not None:
            plan, bound = heard(), context.incumbent()[1]
            if plan is not None and plan.objective < (search.height or 0) * data.unit:
                search.adopt(data, in_units(plan, data))
            search.floor = max(search.floor, -(-(bound or 0) // data.unit))
        return context.closed()

    bounds = [part.bound for part in search.parts]
    if search.finished:
        improved()
    search.run(improved, should_stop, node_limit or context.work(work_rates.PACKING_NODES, len(data.size) + 50))


def presolve(problem: Problem, context: Context) -> None:
    """The presolver, which runs before all other candidates on small problems with overlaps.

    It places in simple orders, climbs for a few rounds, and solves the CP-SAT model for at most 1.5 seconds. The heuristics run
    twice: with the overlaps, and without them followed by hill climbing with them. They are left out if the run has none.
    """
    if includes_heuristics(context) and not report_if_overloaded(context, find_overload(problem)):
        data = arrays.build(problem)
        run = HeuristicSearch(
            data,
            _target(problem, data),
            context.seed(),
            functools.partial(_report_plan, problem, context, data),
            context.closed,
        )
        run.climb_orders(range(orders.PEAK + 1), "orders", PARAMS.climbs_before_beams)
        data_without_overlaps, best = arrays.build(without_overlaps(problem)), list[Ints]()
        quick = HeuristicSearch(
            data_without_overlaps, 0, context.seed(), lambda _, offsets, __: best.append(offsets), context.closed
        )
        quick.climb_orders(range(orders.PEAK + 1), "apart", 0)
        if best:
            _climb_with_overlaps(
                problem,
                context,
                data,
                best[-1] * data_without_overlaps.unit // data.unit,
                PARAMS.quick_placed // max(1, len(data.size)),
                "apart",
            )
    if not context.closed():
        _solve_model(problem, context, presolve_seconds(context))


def cpsat(problem: Problem, context: Context) -> None:
    """Solve the CP-SAT model; the solver starts from the best plan so far, if there is one."""
    _solve_model(problem, context)


def _solve_model(problem: Problem, context: Context, seconds: float | None = None) -> None:
    """Solve the CP-SAT model, and report its plans, bounds and proofs.

    ``seconds`` is its time limit; None for the time that the candidate has.
    """
    if report_if_overloaded(context, find_overload(problem)):
        return
    from stowplan.models.packing import cpsat as model

    began = time.monotonic()
    outcome = model.solve(
        problem,
        hint=context.incumbent()[0],
        **solver_options(context, "cpsat", work_rates.PACKING_CPSAT, seconds=seconds),
    )
    if outcome.status == "infeasible":
        _explain(problem, context, "cpsat", began)


def _explain(problem: Problem, context: Context, source: str, began: float) -> None:
    """Report that no plan fits, with a conflict that explains it: a few buffers that cannot be packed in a span of time.

    Finding the conflict may take as long as the proof, which began at ``began`` on the monotonic clock, or
    :attr:`SearchParameters.explain_seconds` if that is longer, but at most half of the time that is left. With overlaps there
    is no explanation, because the search for conflicts does not support them.
    """
    if problem.overlaps:
        context.proven_infeasible(source)
        return
    now = time.monotonic()
    should_stop = context.within_seconds(min(context.remaining() / 2, max(PARAMS.explain_seconds, now - began)))
    nodes = int(work_rates.PACKING_NODES.per_second * context.seconds() / (len(problem.buffers) + 50))
    context.proven_infeasible(source, canonical.find_conflict(problem, context.seed(), nodes, should_stop).details(problem))


def _capacity(problem: Problem, data: Data) -> int | None:
    """The capacity in units, rounded down; None if the problem has none."""
    return None if problem.capacity is None else problem.capacity // data.unit


def _target(problem: Problem, data: Data) -> int:
    """The height in units at which a heuristic may stop: the capacity, or the load bound if there is none."""
    return (load_bound(problem) if problem.capacity is None else problem.capacity) // data.unit


def in_units(plan: Plan, data: Data) -> Ints:
    """The offsets [n] of a plan in units, in the order of ``data``; a rest of bytes in an offset is dropped."""
    return np.array(plan.offsets, np.int64)[data.numbers] // data.unit


class InnerRun(Context):
    """A context for candidates of packing that another candidate calls: it keeps their best plan and reports nothing.

    Its attribute ``best`` is the best plan, None if there is none. Its attribute ``lower_bound`` is the best bound in bytes,
    None if any plan will do.

    Parameters
    ----------
    outer
        The context of the calling candidate.
    seconds
        How long to search, in seconds. In a deterministic run, the time does not count.
    work
        The work limit in a deterministic run, in seconds of an idle machine; ``seconds`` if it is None.
    bound
        A proven lower bound of the height in bytes. None if the search may end with any plan, for example because there is a
        capacity.
    is_over
        Function that says whether to end before ``seconds`` are over.
    """

    def __init__(
        self,
        outer: Context,
        seconds: float,
        work: float | None = None,
        *,
        bound: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ):
        super().__init__(outer.options.limited(seconds, seconds if work is None else work))
        self._outer, self._is_over, self._is_late = outer, is_over, outer.within_seconds(seconds)
        self._end = time.monotonic() + seconds
        self.best: Plan | None = None
        self.lower_bound = bound
        self.why: dict[str, Any] | None = None
        """The reason, as details for a result, if it is proven that no plan fits; otherwise None."""

    @property
    def is_settled(self) -> bool:
        """Whether the search may end: the plan is proven optimal, any plan will do, or it is proven that no plan fits."""
        if self.why is not None:
            return True
        return self.best is not None and (self.lower_bound is None or self.best.objective <= self.lower_bound)

    def plan(self, plan: Plan, source: str) -> None:
        """Keep the plan if it is the best so far."""
        if self.best is None or plan.objective < self.best.objective:
            self.best = plan

    def bound(self, bound: int, source: str) -> None:
        """Keep the bound if it is the best so far. Bounds are ignored if any plan will do."""
        if self.lower_bound is not None:
            self.lower_bound = max(bound, self.lower_bound)

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        """Keep the reason why no plan fits, in :attr:`why`; without details, it becomes an empty dictionary."""
        self.why = why or {}

    def incumbent(self) -> tuple[Plan | None, int | None]:
        """The best plan and bound of this run so far, each of them None if there is none."""
        return self.best, self.lower_bound

    def closed(self) -> bool:
        """Whether the time is over or the problem is settled."""
        return self._is_late() or self.is_settled or self._is_over()

    def remaining(self) -> float:
        """Seconds until the end of ``seconds``, never negative."""
        return max(0.0, self._end - time.monotonic())


class _RunWithoutOverlaps(InnerRun):
    """The context of a candidate that solves a problem without its overlaps: it passes plans on, but no bounds.

    Parameters
    ----------
    problem
        The problem with overlaps.
    source
        The name under which plans are reported.
    outer, seconds, bound
        As in :class:`InnerRun`.
    """

    def __init__(self, problem: Problem, source: str, outer: Context, seconds: float, *, bound: int | None):
        super().__init__(outer, seconds, bound=bound)
        self._problem, self._source = problem, source

    def plan(self, plan: Plan, source: str) -> None:
        """Keep the plan if it is the best so far, and report it as a plan of the problem with overlaps."""
        before = self.best
        super().plan(plan, source)
        if self.best is not before and (self._problem.capacity is None or plan.objective <= self._problem.capacity):
            self._outer.plan(msgspec.structs.replace(plan, problem=self._problem.digest), self._source)
