"""The candidates for packing, as functions of (problem, context); each runs in a process of its own.

With a capacity, a candidate is done as soon as it, or another, has a plan that fits.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np

from stowplan.models.packing.bounds import find_overload, load_bound
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.portfolio.context import Context
from stowplan.portfolio.packing import arrays, canonical, explain, greedy, orders
from stowplan.portfolio.packing.arrays import Data, Ints

#: Work of deterministic runs for each second of the limit: buffer pairs of the greedy, and nodes times buffers of the search.
PAIRS, NODES = 60_000_000, 80_000_000

#: Orders to climb from where there is no time for more: by size, and by size and sections lived through.
_FEW_ORDERS = (0, 2)

#: Seconds that explaining an infeasibility may take at least.
EXPLAIN_SECONDS = 3.0

#: Higher than any plan.
_NEVER = 1 << 62

#: Rounds without a better plan after which a climb goes back to its best.
_PATIENCE = 15


def _overloaded(problem: Problem, context: Context) -> bool:
    """Report an infeasibility that shows at once."""
    found = find_overload(problem)
    if found is not None:
        context.note(found.reason)
        context.proven_infeasible("load")
    return found is not None


def _closed(problem: Problem, context: Context) -> bool:
    """Whether someone has what there is to find."""
    plan, bound = context.incumbent()
    if context.options.deterministic or plan is None:
        return False
    return problem.capacity is not None or (bound is not None and plan.objective <= bound)


def search(problem: Problem, context: Context) -> None:
    """Greedy by simple orders, then orders in which what stood too high comes sooner."""
    _search(problem, context, range(orders.PEAK + 1), "orders", context.options.seed)


def climb(problem: Problem, context: Context) -> None:
    """The same from few orders, for large problems, where trying them all takes long."""
    _search(problem, context, _FEW_ORDERS, "climb", context.options.seed + 1)


def _search(problem: Problem, context: Context, chosen_orders: Sequence[int], source: str, seed: int) -> None:
    if _overloaded(problem, context):
        return
    data = arrays.build(problem)
    if len(data.size) == 0:
        context.plan(arrays.export_plan(problem, data, np.zeros(0, np.int64)), "greedy")
        return
    target = (load_bound(problem) if problem.capacity is None else problem.capacity) // data.unit
    best = _NEVER

    def place(key: orders.Floats, best_fit: bool, source: str) -> tuple[int, Ints]:
        nonlocal best
        offsets = np.zeros(len(data.size), np.int64)
        order = orders.by_key(data, key)
        height = greedy.greedy(order, data.size, data.align, data.fixed, data.piece, data.first, data.last, best_fit, offsets)
        if height < best:
            best = height
            if problem.capacity is None or height <= target:
                context.plan(arrays.export_plan(problem, data, offsets), source)
        return height, offsets

    climbs: list[Climb] = []
    chance = np.random.default_rng(seed)
    for number, key in enumerate(orders.greedy_keys(data)):
        for best_fit in (False, True) if number in chosen_orders else ():
            height, offsets = place(key, best_fit, source if climbs or number else "greedy")
            climbs.append(Climb(key, best_fit, height, offsets, target, chance, first=number == orders.PEAK))
            if height <= target or context.stop() or _closed(problem, context):
                return
    # Two of the best, and the order that does best where few moments are crowded.
    ranked = sorted(climbs, key=lambda climb: climb.best)
    chosen = [*ranked[:2], *(climb for climb in climbs[: 2 * orders.PEAK + 1] if climb.first)]
    n = len(data.size)
    rounds = max(20, int(PAIRS * context.options.time_limit / (n * n + 20_000))) if context.options.deterministic else None
    for done in itertools.count():
        if best <= target or done == rounds or context.stop() or _closed(problem, context):
            return
        climb = chosen[done % len(chosen)]
        climb.take(*place(climb.next_key(data), climb.best_fit, source))


class Climb:
    """Hill climbing over the keys of one greedy order: buffers that end above some line get a larger key.

    Heights are in units; ``target`` is one that is good enough.
    """

    def __init__(
        self,
        key: orders.Floats,
        best_fit: bool,
        height: int,
        offsets: Ints,
        target: int,
        chance: np.random.Generator,
        first: bool,
    ):
        self.best_fit = best_fit
        self.best = height
        self.first = first
        self._target, self._chance = target, chance
        self._key = self._best_key = key
        self._height, self._offsets = height, offsets
        self._stale = 0

    def next_key(self, data: Data) -> orders.Floats:
        """The key to try next."""
        if self._stale > _PATIENCE:
            self._key = self._best_key + 0.02 * self._chance.normal(size=len(self._key))
            self._stale = 0
        line = self._target + (self.best - self._target) * self._chance.choice([0.0, 0.5, 0.9])
        high = np.flatnonzero(self._offsets + data.size > min(line, self._height - 1))
        self._key = self._key.copy()
        self._key[high] += self._chance.exponential(self._chance.choice([0.02, 0.1, 0.3]), len(high))
        return self._key

    def take(self, height: int, offsets: Ints) -> None:
        """What became of the key that was tried."""
        self._height, self._offsets = height, offsets
        self._stale = 0 if height < self.best else self._stale + 1
        # Equal is good enough: most changes do not show in the height.
        if height <= self.best:
            self.best, self._best_key = height, self._key


def exact(problem: Problem, context: Context) -> None:
    """Search over canonical plans."""
    _exact(problem, context, "canonical", context.options.seed)


def second(problem: Problem, context: Context) -> None:
    """The same with other orders: how long it takes is a matter of luck, and the luckier of two is soon done."""
    _exact(problem, context, "canonical2", context.options.seed + 1, simple_orders=False)


def _exact(problem: Problem, context: Context, source: str, seed: int, simple_orders: bool = True) -> None:
    began = time.monotonic()
    if _overloaded(problem, context):
        return
    data = arrays.build(problem)
    known = _known(context)
    offsets = None if known is None else np.array([known.offsets[number] for number in data.numbers], np.int64) // data.unit
    capacity = None if problem.capacity is None else problem.capacity // data.unit
    found = canonical.start(data, capacity, seed, offsets, simple_orders=simple_orders)
    limit = _node_limit(context, len(data.size)) if context.options.deterministic else None

    def improved() -> None:
        if found.infeasible:
            return
        context.bound(found.bound * data.unit, source)
        if found.height is not None:
            every = np.zeros(len(data.size), np.int64)
            index = {int(number): at for at, number in enumerate(data.numbers)}
            for part in found.parts:
                every[[index[int(number)] for number in part.data.numbers]] = part.offsets
            context.plan(arrays.export_plan(problem, data, every), source)

    if found.finished:
        improved()
    found.run(improved, lambda: context.stop() or _closed(problem, context), limit)
    if found.infeasible:
        _explain(problem, context, source, began)


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model, hinted with the best plan known."""
    if _overloaded(problem, context):
        return
    from stowplan.models.packing import cpsat as model

    began = time.monotonic()
    outcome = model.solve(
        problem,
        time_limit=context.remaining(),
        seed=context.options.seed,
        deterministic_limit=context.options.time_limit / 4 if context.options.deterministic else None,
        hint=_known(context),
        on_plan=lambda plan: context.plan(plan, "cpsat"),
        on_bound=lambda bound: context.bound(bound, "cpsat"),
        should_stop=lambda: context.stop() or _closed(problem, context),
    )
    if outcome.status == "infeasible":
        _explain(problem, context, "cpsat", began)


def _explain(problem: Problem, context: Context, source: str, began: float) -> None:
    """Report that nothing fits, and why; finding out why takes no longer than the proof, and some seconds."""
    now = time.monotonic()
    until = now + min(context.remaining() / 2, max(EXPLAIN_SECONDS, now - began))
    should_stop = context.stop if context.options.deterministic else lambda: time.monotonic() >= until
    conflict = explain.find_conflict(problem, context.options.seed, _node_limit(context, len(problem.buffers)), should_stop)
    context.proven_infeasible(source, conflict.details(problem))


def _node_limit(context: Context, buffers: int) -> int:
    return int(NODES * context.options.time_limit / (buffers + 50))


def _known(context: Context) -> Plan | None:
    """The best plan so far; none in deterministic runs, where it is a matter of load which plan that is."""
    plan: Plan | None = None if context.options.deterministic else context.incumbent()[0]
    return plan
