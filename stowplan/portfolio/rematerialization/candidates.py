"""The search for plans of rematerialization, as a function of (problem, context)."""

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
from stowplan.portfolio.rematerialization.greedy import Policy, checkpoint_policies, simulated
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.rematerialization.peaks import POLICIES, lowered
from stowplan.portfolio.rematerialization.two_cuts import PARAMS as CUTS
from stowplan.portfolio.rematerialization.two_cuts import drafts


class SearchParameters(Parameters, frozen=True):
    """Parameters of the search."""

    first_share: float = 0.2
    """Part of the time for the first simulations, all together."""
    cooling_share: float = 0.2
    """Part of the time for one cooling."""
    slice: int = 10_000_000
    """Runs times steps of local search between two looks at the clock."""
    least_share: float = 0.5
    """Part of the time for the search for the least peak, where nothing else was within the limit."""
    first_policies: int = 3
    """Policies that simulations of the first plans try."""
    fewest_steps: int = 20_000
    """Steps of one cooling at least."""
    steps_per_run: int = 400
    """Steps of one cooling for each run of the sequence."""
    rounds: int = 3_000
    """Runs times rounds of ruin and recreate between two looks at the clock."""
    recreations: int = 40
    """Slices of so many rounds from one sequence."""
    round_steps: int = 100
    """Steps of local search that a round of ruin and recreate counts for."""
    weight: float = 4.0
    """Costs of all operators once that a limit's worth of bytes above the limit is worth."""


PARAMS = parameters(SearchParameters, __name__)


class _Search:
    """The best sequence so far, and how it gets better."""

    def __init__(self, problem: Problem, context: Context):
        self.context, self.structure = context, build(problem)
        self.limit = problem.limit if problem.limit is not None else 1 << 60
        self.best: Plan | None = None
        self.chance = context.rng()
        self.insertion = Insertion(self.structure)
        self._simulations = context.work(work_rates.REMAT_SIMULATIONS, max(1, self.structure.ops), least=1)

    def offer(self, sequence: Sequence[int] | None, source: str) -> bool:
        """Whether a sequence is within the limit and better than all before; then it is told."""
        if sequence is None:
            return False
        plan = self.structure.made(sequence)
        if plan.peak > self.limit or (self.best is not None and self.best.objective <= plan.objective):
            return False
        self.best = plan
        self.context.plan(plan, source)
        return True

    def simulate(self, order: Sequence[int], policy: Policy, part: float) -> list[int] | None:
        """A sequence, told where it is better, that takes no more than a part of the time; None where none was found."""
        if self._simulations is not None:
            self._simulations -= 1
            if self._simulations < 0:
                return None
        sequence = simulated(self.structure, order, policy, self.context.within(part))
        name = "greedy" if policy.checkpoints is None else "checkpoints"
        self.offer(sequence, name)
        # A simulation runs much again that turns out not to be needed.
        self.offer(None if sequence is None else self.insertion.repaired(sequence, self.limit, self.context.closed), name)
        return sequence

    def is_done(self) -> bool:
        """Whether there is nothing left to find."""
        return self.context.closed() or (self.best is not None and self.best.objective == 0)

    def orders(self) -> Iterator[list[int]]:
        """The order given, then others of low peaks, the least last."""
        ordering = self.structure.ordering
        yield self.structure.order
        for name in ("dfs", "bfs", "lpmf"):
            order = BASELINES[name](ordering, self.context.closed)
            if order is not None:
                yield order
        graph = make_ordering(ordering)
        for width in (1, 8):
            reached = beam.search(graph, 0, 1 << 61, width, None, self.context.closed)
            if reached is not None:
                yield reached[1]


def search(problem: Problem, context: Context) -> None:
    """Orders that fit as they are; else insertions into several orders, simulations of them, and local search from the best."""
    run = _Search(problem, context)
    structure = run.structure
    if not structure.ops:
        run.offer([], "given")
        return
    # Where nothing fits, simulations would take all the time.
    if load_bound(structure) > run.limit:
        context.proven_infeasible("cuts", proofs.too_much(structure, run.limit, context))
        return
    # What cuts prove of drafts without fetches is not true of plans with them.
    if problem.channel is None and structure.ops >= CUTS.large and _draft(run):
        return
    # No clock decides in a deterministic run, and those that follow come to plans as good.
    begun = [] if context.heard() is None else _first_plans(run)
    orders: list[list[int]] = []
    for order in run.orders():
        if order not in orders:
            orders.append(order)
            run.offer(order, "order")
        if run.is_done():
            return
    # An order of a lower peak leaves less to evict.
    orders.sort(key=structure.ordering.peak)
    is_late = context.within(PARAMS.first_share)
    jobs = [(order, Policy()) for order in orders if order not in begun]
    jobs += [(order, policy) for order in orders for policy in checkpoint_policies(structure, order)]
    for order in orders:
        run.offer(run.insertion.repaired(order, run.limit, context.closed), "insertion")
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
        _lower(run, orders)
    _improve(run, orders)


def _draft(run: _Search) -> bool:
    """Tell plans from two cuts, and the bounds that they give; whether nothing is left to be found."""
    context, limit = run.context, run.limit
    told = partial(context.bound, source="cuts")
    sequences = drafts(run.insertion, Moments(run.structure), limit, told, context.closed)
    if sequences is None:
        context.proven_infeasible("cuts", proofs.too_much(run.structure, limit, context))
        return True
    for draft in sequences:
        run.offer(draft, "two cuts")
    drafted: Sequence[Sequence[int]] = sequences if run.best is None else [run.best.sequence]
    for sequence in drafted:
        run.offer(run.insertion.repaired(sequence, limit, context.closed, CUTS.most_added // run.structure.ops), "two cuts")
        if run.best is not None:
            break
    return run.is_done()


def _first_plans(run: _Search) -> list[list[int]]:
    """Plans of the order given and of that in which the plan at hand begins operators; returns the orders.

    They are there before other orders are made, which takes long on large graphs.
    """
    orders = [run.structure.order]
    at_hand, _ = run.context.incumbent()
    if at_hand is not None and (order := [*dict.fromkeys(at_hand.sequence)]) != orders[0]:
        orders.append(order)
    for policy in POLICIES[: PARAMS.first_policies]:
        for order in orders:
            run.offer(order, "order")
            if run.is_done():
                return orders
            # The first plan takes as long as it takes: on a busy machine nothing else has one.
            run.simulate(order, policy, PARAMS.first_share / 4 if run.best else 1.0)
    for order in orders:
        run.offer(run.insertion.repaired(order, run.limit, run.context.closed), "insertion")
    return orders


def _lower(run: _Search, orders: Sequence[Sequence[int]]) -> None:
    """A plan of the least peak, until it is within the limit: where that is tight, nothing else gets there."""
    is_over = run.context.within(PARAMS.least_share)
    free = build(msgspec.structs.replace(run.structure.problem, limit=None))
    run.offer(lowered(free, orders, is_over, run.limit).sequence, "least peak")


def _rounds(runs: int) -> int:
    """Rounds of ruin and recreate in a slice, for sequences of so many runs."""
    return max(1, PARAMS.rounds // runs)


def _improve(run: _Search, orders: Sequence[Sequence[int]]) -> None:
    """Ruin and recreate from the best sequence; coolings, from it and from those of policies by chance, in turn."""
    context, structure = run.context, run.structure
    room = run.insertion.room
    left = context.work(work_rates.REMAT_STEPS, least=PARAMS.slice // 10)
    weight = PARAMS.weight * max(1.0, float(sum(structure.cost)))
    turn = 0
    while not run.is_done() and (left is None or left > 0):
        if run.best is not None and turn % 3:
            spent = _recreated(
                run,
                PARAMS.recreations
                if left is None
                else min(PARAMS.recreations, 1 + left // (PARAMS.rounds * PARAMS.round_steps)),
            )
        else:
            # From an order of a low peak, too: a sequence that fits at a high cost has few good ones near.
            start: Sequence[int] = orders[0]
            if turn % 6 == 3 and run.best is not None and len(run.best.sequence) < room - 4:
                start = run.best.sequence
            spent = _cooled(run, start, weight, hot=turn > 0)
        left = None if left is None else left - spent
        turn += 1


def _recreated(run: _Search, slices: int) -> int:
    """Ruin and recreate from the best sequence, slice by slice; about the runs times steps that it took."""
    given, _ = run.context.incumbent()
    best = run.best
    assert best is not None
    is_better = given is not None and not given.moves and given.objective < best.objective
    if is_better and len(given.sequence) <= run.insertion.room:
        run.best = best = given
    mean = float(sum(run.structure.cost)) / max(1, run.structure.ops)
    warmth = mean * float(run.chance.choice([0.0, 0.01, 0.1]))
    noise = int(run.chance.choice([50, 300, 1000]))
    rounds, sequence = _rounds(len(best.sequence)), list(best.sequence)
    for _ in range(slices):
        sequence = run.insertion.recreated(sequence, run.limit, int(run.chance.integers(1, 1 << 62)), noise, warmth, rounds)
        run.offer(sequence, "ruin and recreate")
        if run.is_done():
            break
    return slices * PARAMS.rounds * PARAMS.round_steps


def _cooled(run: _Search, start: Sequence[int], weight: float, hot: bool) -> int:
    """One cooling from a sequence, slice by slice; the runs times steps that it took."""
    structure, graph, work = run.structure, run.insertion.graph, run.insertion.work
    runs = np.zeros(run.insertion.room, np.int64)
    best = np.zeros_like(runs)
    scratch = np.empty(3 * len(runs) + 2 + structure.ops, np.int64)
    count = len(start)
    runs[:count] = start
    steps = max(PARAMS.fewest_steps, PARAMS.steps_per_run * count)
    slices = max(1, steps * count // PARAMS.slice)
    # From near the cost of an operator down to where no worse step is ever taken.
    mean = max(1.0, float(sum(structure.cost)) / max(1, structure.ops))
    top = mean * float(run.chance.choice([0.03, 0.1, 0.3, 1.0])) if hot else mean * 0.01
    size, at, began = max(1, steps // slices), 0, time.monotonic()
    chance = np.array([int(run.chance.integers(1, 1 << 62))], np.int64)
    while at < slices and not run.is_done():
        begin, end = (top * (1e-3 * mean / top) ** (done / slices) for done in (at, at + 1))
        best_cost = run.best.objective if run.best is not None else 1 << 62
        heat = np.array([begin, end, weight])
        count, length, _ = engine.anneal(graph, work, runs, count, run.limit, best, best_cost, chance, heat, size, scratch)
        if length:
            run.offer(best[:length].tolist(), "local search")
        at += 1
        if at == 1:
            # Cooled down within a part of the time, however slow this machine is.
            in_time, _ = run.context.limits(run.context.seconds(PARAMS.cooling_share) / (time.monotonic() - began + 1e-9), None)
            slices = max(1, min(slices, int(in_time)))
    return size * at * len(start)
