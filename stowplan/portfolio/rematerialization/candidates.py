"""The main heuristic for rematerialization, the candidate ``search``, as a function of (problem, context).

It tries several orders of the operators, and brings each within the limit of live bytes: by adding runs, and by a simulation
that *evicts* storages when memory runs out, that is, gives them up before their last use. Then it improves the best sequence by
ruin and recreate (:mod:`.insertion`) and by simulated annealing (:mod:`.engine`). A *slice* of either is the work between two
checks of the time. The docstring of the package explains the other terms. The functions raise no errors of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import numpy as np

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.rematerialization.bounds import load_bound
from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import build
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.operator_order import beam
from stowplan.portfolio.operator_order.graph import make as make_ordering
from stowplan.portfolio.operator_order.orders import BASELINES
from stowplan.portfolio.rematerialization import engine, proofs
from stowplan.portfolio.rematerialization.greedy import Policy, checkpoint_policies, simulate_within_limit
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.rematerialization.peaks import POLICIES, minimize_peak
from stowplan.portfolio.rematerialization.two_cuts import PARAMS as CUTS
from stowplan.portfolio.rematerialization.two_cuts import drafts


class SearchParameters(Parameters, frozen=True):
    """Parameters of the search."""

    first_share: float = 0.2
    """Part of the time limit for the first simulations together. Each of them gets a quarter of this part at most."""
    cooling_share: float = 0.2
    """Part of the time limit for one run of simulated annealing."""
    slice: int = 10_000_000
    """Product of two numbers: the steps of annealing between two checks of the time, and the runs of the sequence."""
    least_share: float = 0.5
    """Part of the time limit for the search for the least peak, if no other method finds a sequence within the limit."""
    first_policies: int = 3
    """Number of eviction policies (:data:`.peaks.POLICIES`) that the simulations of the first plans try."""
    fewest_steps: int = 20_000
    """Least number of steps of a cooling, one run of simulated annealing from hot to cold."""
    steps_per_run: int = 400
    """Number of steps of a cooling for each run of the sequence."""
    rounds: int = 3_000
    """Product of two numbers: the rounds of ruin and recreate between two checks of the time, and the runs of the sequence."""
    recreations: int = 40
    """Number of slices of ruin and recreate, one after the other, before annealing or another start from the best sequence."""
    round_steps: int = 100
    """Number of steps of annealing as which a round of ruin and recreate counts, in the work limit of deterministic runs."""
    weight: float = 4.0
    """Cost, in annealing, of exceeding the limit by as many bytes as the limit has, as a multiple of the cost of all
    operators."""


PARAMS = parameters(SearchParameters, __name__)


class _Search:
    """The state of the candidate: its best plan (None if there is none), and the arrays and random numbers that it works with.

    ``limit`` is the limit in bytes, or a number that nothing exceeds if the problem has none.
    """

    def __init__(self, problem: Problem, context: Context):
        self.context, self.structure = context, build(problem)
        self.limit = problem.limit if problem.limit is not None else 1 << 60
        self.best: Plan | None = None
        self.chance = context.rng()
        self.insertion = Insertion(self.structure)
        self._simulations = context.work(work_rates.REMAT_SIMULATIONS, max(1, self.structure.ops), least=1)

    def report_if_better(self, sequence: Sequence[int] | None, source: str) -> bool:
        """Report a sequence if it is within the limit and costs less than all before; returns whether it was reported.

        None is ignored. ``source`` is the name under which the plan is reported.
        """
        if sequence is None:
            return False
        plan = self.structure.made(sequence)
        if plan.peak > self.limit or (self.best is not None and self.best.objective <= plan.objective):
            return False
        self.best = plan
        self.context.plan(plan, source)
        return True

    def simulate(self, order: Sequence[int], policy: Policy, part: float) -> list[int] | None:
        """Simulate an order under an eviction policy, for at most a part of the time limit, and report the sequence.

        The policy chooses the storages that are evicted (:class:`.greedy.Policy`). Returns None if no sequence within the limit
        was found.
        """
        if self._simulations is not None:
            self._simulations -= 1
            if self._simulations < 0:
                return None
        sequence = simulate_within_limit(self.structure, order, policy, self.context.within(part))
        name = "greedy" if policy.checkpoints is None else "checkpoints"
        self.report_if_better(sequence, name)
        # Many of the runs that a simulation adds are not needed. Repairing the sequence removes them.
        self.report_if_better(
            None if sequence is None else self.insertion.repaired(sequence, self.limit, self.context.closed), name
        )
        return sequence

    def is_done(self) -> bool:
        """Whether the time is over, or the best plan has no added cost."""
        return self.context.closed() or (self.best is not None and self.best.objective == 0)

    def orders(self) -> Iterator[list[int]]:
        """Yield the order of the input, then those of compilers, then those of beam search, which mostly have the lowest
        peaks."""
        ordering = self.structure.ordering
        yield self.structure.order
        for name in ("dfs", "bfs", "lpmf"):
            order = BASELINES[name](ordering, self.context.closed)
            if order is not None:
                yield order
        graph = make_ordering(ordering)
        for width in (1, 8):
            result = beam.search(graph, 0, 1 << 61, width, None, self.context.closed)
            if result is not None:
                yield result[1]


def search(problem: Problem, context: Context) -> None:
    """The main heuristic: bring several orders within the limit by adding runs and by simulation, then improve the best plan.

    A *host* is a second memory to which values may be sent. On large graphs without a host, drafts from two minimum cuts come
    first (:mod:`.two_cuts`). If a bound shows that no plan is within the limit, the candidate reports this and ends.
    """
    run = _Search(problem, context)
    structure = run.structure
    if not structure.ops:
        run.report_if_better([], "given")
        return
    # Simulations would use up all the time on a problem without a plan.
    if load_bound(structure) > run.limit:
        context.proven_infeasible("cuts", proofs.explain_infeasible(structure, run.limit, context))
        return
    # With a host there are no drafts from cuts, because their bounds do not hold for plans that fetch values.
    if problem.channel is None and structure.ops >= CUTS.large and _try_two_cuts(run):
        return
    # A deterministic run skips the quick first plans, since the later steps find equally good plans.
    orders_done = [] if context.heard() is None else _first_plans(run)
    orders: list[list[int]] = []
    for order in run.orders():
        if order not in orders:
            orders.append(order)
            run.report_if_better(order, "order")
        if run.is_done():
            return
    # Orders with lower peaks come first, because fewer bytes have to be evicted.
    orders.sort(key=structure.ordering.peak)
    is_late = context.within(PARAMS.first_share)
    jobs = [(order, Policy()) for order in orders if order not in orders_done]
    jobs += [(order, policy) for order in orders for policy in checkpoint_policies(structure, order)]
    for order in orders:
        run.report_if_better(run.insertion.repaired(order, run.limit, context.closed), "insertion")
        if run.is_done():
            return
    for order, policy in jobs:
        run.simulate(order, policy, PARAMS.first_share / 4)
        if run.is_done():
            return
        if is_late():
            break
    if problem.channel is None:
        # The incumbent may come from another candidate, or from an earlier turn of this one.
        run.best = min(filter(None, (run.best, context.incumbent()[0])), key=lambda plan: plan.objective, default=None)
    if run.best is None:
        _minimize_peak(run, orders)
    _improve(run, orders)


def _try_two_cuts(run: _Search) -> bool:
    """Report plans from two cuts (:mod:`.two_cuts`) and the cuts' bounds; returns whether the search is finished.

    It is finished if no plan is within the limit, if a plan has no added cost, or if the time is over.
    """
    context, limit = run.context, run.limit
    report_bound = partial(context.bound, source="cuts")
    sequences = drafts(run.insertion, Moments(run.structure), limit, report_bound, context.closed)
    if sequences is None:
        context.proven_infeasible("cuts", proofs.explain_infeasible(run.structure, limit, context))
        return True
    for draft in sequences:
        run.report_if_better(draft, "two cuts")
    to_repair: Sequence[Sequence[int]] = sequences if run.best is None else [run.best.sequence]
    for sequence in to_repair:
        run.report_if_better(
            run.insertion.repaired(sequence, limit, context.closed, CUTS.most_added // run.structure.ops), "two cuts"
        )
        if run.best is not None:
            break
    return run.is_done()


def _first_plans(run: _Search) -> list[list[int]]:
    """Report plans for one or two orders; returns these orders. Computing other orders takes long on large graphs.

    They are the order of the input and, if it is different, the order in which the best plan so far runs the operators for the
    first time.
    """
    orders = [run.structure.order]
    incumbent_plan, _ = run.context.incumbent()
    if incumbent_plan is not None and (order := [*dict.fromkeys(incumbent_plan.sequence)]) != orders[0]:
        orders.append(order)
    for policy in POLICIES[: PARAMS.first_policies]:
        for order in orders:
            run.report_if_better(order, "order")
            if run.is_done():
                return orders
            # The search for a first plan may take all the time, because on a busy machine no other candidate has a plan yet.
            run.simulate(order, policy, PARAMS.first_share / 4 if run.best else 1.0)
    for order in orders:
        run.report_if_better(run.insertion.repaired(order, run.limit, run.context.closed), "insertion")
    return orders


def _minimize_peak(run: _Search, orders: Sequence[Sequence[int]]) -> None:
    """Minimize the peak until it is within the limit. If the limit is tight, no other method finds a plan."""
    is_over = run.context.within(PARAMS.least_share)
    free = build(msgspec.structs.replace(run.structure.problem, limit=None))
    run.report_if_better(minimize_peak(free, orders, is_over, run.limit).sequence, "least peak")


def _rounds(runs: int) -> int:
    """Returns the number of rounds of ruin and recreate in a slice, for a sequence of ``runs`` runs."""
    return max(1, PARAMS.rounds // runs)


def _improve(run: _Search, orders: Sequence[Sequence[int]]) -> None:
    """Improve the best sequence by ruin and recreate, in turn with simulated annealing.

    Annealing starts from the best sequence or from ``orders[0]``.
    """
    context, structure = run.context, run.structure
    room = run.insertion.room
    work_left = context.work(work_rates.REMAT_STEPS, least=PARAMS.slice // 10)
    weight = PARAMS.weight * max(1.0, float(sum(structure.cost)))
    turn = 0
    while not run.is_done() and (work_left is None or work_left > 0):
        if run.best is not None and turn % 3:
            work_done = _ruin_and_recreate(
                run,
                PARAMS.recreations
                if work_left is None
                else min(PARAMS.recreations, 1 + work_left // (PARAMS.rounds * PARAMS.round_steps)),
            )
        else:
            # Annealing often starts from the order with the lowest peak, because a sequence that is within the limit at a high
            # cost has few good neighbours.
            start: Sequence[int] = orders[0]
            if turn % 6 == 3 and run.best is not None and len(run.best.sequence) < room - 4:
                start = run.best.sequence
            work_done = _anneal(run, start, weight, hot=turn > 0)
        work_left = None if work_left is None else work_left - work_done
        turn += 1


def _ruin_and_recreate(run: _Search, slices: int) -> int:
    """Ruin and recreate from the best sequence of all candidates, in ``slices`` slices.

    Returns the work in the unit of the work limit: runs of the sequence times steps of annealing.
    """
    shared_best, _ = run.context.incumbent()
    best = run.best
    assert best is not None
    is_better = shared_best is not None and not shared_best.moves and shared_best.objective < best.objective
    if is_better and len(shared_best.sequence) <= run.insertion.room:
        run.best = best = shared_best
    mean = float(sum(run.structure.cost)) / max(1, run.structure.ops)
    temperature = mean * float(run.chance.choice([0.0, 0.01, 0.1]))
    noise = int(run.chance.choice([50, 300, 1000]))
    rounds, sequence = _rounds(len(best.sequence)), list(best.sequence)
    for _ in range(slices):
        sequence = run.insertion.recreated(
            sequence, run.limit, int(run.chance.integers(1, 1 << 62)), noise, temperature, rounds
        )
        run.report_if_better(sequence, "ruin and recreate")
        if run.is_done():
            break
    return slices * PARAMS.rounds * PARAMS.round_steps


def _anneal(run: _Search, start: Sequence[int], weight: float, hot: bool) -> int:
    """One cooling of simulated annealing from the sequence ``start``, slice by slice; returns the work in runs times steps.

    ``weight`` is the cost of exceeding the limit by as many bytes as it has. If ``hot`` is set, the first temperature is drawn
    at random and higher than otherwise.
    """
    structure, graph, work = run.structure, run.insertion.graph, run.insertion.work
    runs = np.zeros(run.insertion.room, np.int64)
    best = np.zeros_like(runs)
    scratch = np.empty(3 * len(runs) + 2 + structure.ops, np.int64)
    count = len(start)
    runs[:count] = start
    steps = max(PARAMS.fewest_steps, PARAMS.steps_per_run * count)
    slices = max(1, steps * count // PARAMS.slice)
    # The temperature falls from at most the mean cost of an operator to a value at which worse steps are hardly ever accepted.
    mean = max(1.0, float(sum(structure.cost)) / max(1, structure.ops))
    highest = mean * float(run.chance.choice([0.03, 0.1, 0.3, 1.0])) if hot else mean * 0.01
    size, at, began = max(1, steps // slices), 0, time.monotonic()
    chance = np.array([int(run.chance.integers(1, 1 << 62))], np.int64)
    while at < slices and not run.is_done():
        begin, end = (highest * (1e-3 * mean / highest) ** (done / slices) for done in (at, at + 1))
        best_cost = run.best.objective if run.best is not None else 1 << 62
        schedule = np.array([begin, end, weight])
        count, length, _ = engine.anneal(graph, work, runs, count, run.limit, best, best_cost, chance, schedule, size, scratch)
        if length:
            run.report_if_better(best[:length].tolist(), "local search")
        at += 1
        if at == 1:
            # The time of the first slice sets the number of slices, so that the annealing ends within its part of the time.
            in_time, _ = run.context.limits(run.context.seconds(PARAMS.cooling_share) / (time.monotonic() - began + 1e-9), None)
            slices = max(1, min(slices, int(in_time)))
    return size * at * len(start)
