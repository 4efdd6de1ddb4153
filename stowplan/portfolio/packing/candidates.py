"""The candidates for packing, as functions of (problem, context); each runs in a process of its own.

With a capacity, a candidate is done as soon as it, or another, has a plan that fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from stowplan.models.packing.bounds import find_overload, load_bound
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.portfolio.context import Context
from stowplan.portfolio.packing import arrays, canonical, engine, orders
from stowplan.portfolio.packing.arrays import Data, Ints

_Place: TypeAlias = Callable[[orders.Floats, bool, str], tuple[int, Ints]]

#: Work of deterministic runs for each second of the limit: buffer pairs of the greedy, and nodes times buffers of the search.
PAIRS, NODES = 60_000_000, 5_000_000


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
    if _overloaded(problem, context):
        return
    data = arrays.build(problem)
    bound = load_bound(problem) if problem.capacity is None else problem.capacity
    best: int | None = None

    def place(key: orders.Floats, best_fit: bool, source: str) -> tuple[int, Ints]:
        nonlocal best
        offsets = np.zeros(len(data.size), np.int64)
        height = engine.greedy(
            orders.by_key(data, key), data.size, data.align, data.fixed, data.piece, data.first, data.last, best_fit, offsets
        )
        better = best is None or height < best
        if (better or source == "greedy") and (problem.capacity is None or height * data.unit <= problem.capacity):
            context.plan(arrays.export_plan(problem, data, offsets), source)
        best = height if better or best is None else best
        return height, offsets

    if len(data.size) == 0:
        context.plan(arrays.export_plan(problem, data, np.zeros(0, np.int64)), "greedy")
        return
    rows, pressed = orders.features(data), orders.pressure(data)
    place(rows[0], False, "greedy")
    tried: list[tuple[int, int, bool]] = []
    keys = [(1 - life) * rows[0] + life * rows[row] + crowd * pressed for row, life, crowd in _RECIPES]
    for number, key in enumerate(keys):
        for best_fit in (True, False):
            if context.stop() or _closed(problem, context) or (best is not None and best * data.unit <= bound):
                return
            tried.append((place(key, best_fit, "orders")[0], number, best_fit))
    _, number, best_fit = min(tried)
    _improve(problem, context, data, keys[number], best_fit, bound, place)


#: (row of the other feature, its weight against size, weight of the pressure) of the greedy's orders.
_RECIPES = (
    (1, 0.0, 0.0),
    (3, 1.0, 0.0),
    (2, 1.0, 0.0),
    (1, 0.95, 0.0),
    (1, 0.2, 3.0),
    (2, 0.5, 3.0),
    (1, 0.5, 0.0),
    (2, 0.9, 30.0),
)


def _improve(
    problem: Problem, context: Context, data: Data, key: orders.Floats, best_fit: bool, bound: int, place: _Place
) -> None:
    """Hill climbing over keys: buffers that end above a line between bound and height get a larger key."""
    chance = np.random.default_rng(context.options.seed)
    n = len(data.size)
    rounds = max(20, int(PAIRS * context.options.time_limit / (n * n + 20_000))) if context.options.deterministic else None
    best_key, (best, offsets), stale, done = key.copy(), place(key, best_fit, "orders"), 0, 0
    height = best
    while best * data.unit > bound and (rounds is None or done < rounds):
        if context.stop() or _closed(problem, context):
            return
        line = min(bound // data.unit + (best - bound // data.unit) * chance.choice([0.0, 0.5, 0.9]), height - 1)
        if stale > 15:
            key = best_key + 0.02 * chance.normal(size=n)
            stale = 0
        else:
            key = key.copy()
        high = np.flatnonzero(offsets + data.size > line)
        key[high] += chance.exponential(0.7, len(high))
        height, offsets = place(key, best_fit, "orders")
        stale, done = stale + 1, done + 1
        if height < best:
            best, best_key, stale = height, key.copy(), 0


def exact(problem: Problem, context: Context) -> None:
    """Search over canonical plans."""
    if _overloaded(problem, context):
        return
    data = arrays.build(problem)
    known = _known(context)
    offsets = None if known is None else np.array([known.offsets[number] for number in data.numbers], np.int64) // data.unit
    capacity = None if problem.capacity is None else problem.capacity // data.unit
    found = canonical.start(data, capacity, context.options.seed, offsets)
    limit = int(NODES * context.options.time_limit / (len(data.size) + 50)) if context.options.deterministic else None

    def improved() -> None:
        if found.infeasible:
            return
        context.bound(found.bound * data.unit, "canonical")
        if found.height is not None:
            every = np.zeros(len(data.size), np.int64)
            index = {int(number): at for at, number in enumerate(data.numbers)}
            for part in found.parts:
                every[[index[int(number)] for number in part.data.numbers]] = part.offsets
            context.plan(arrays.export_plan(problem, data, every), "canonical")

    if found.finished:
        improved()
    found.run(improved, lambda: context.stop() or _closed(problem, context), limit)
    if found.infeasible:
        context.proven_infeasible("canonical")


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model, hinted with the best plan known."""
    if _overloaded(problem, context):
        return
    from stowplan.models.packing import cpsat as model

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
        context.proven_infeasible("cpsat")


def _known(context: Context) -> Plan | None:
    """The best plan so far; none in deterministic runs, where it is a matter of load which plan that is."""
    plan: Plan | None = None if context.options.deterministic else context.incumbent()[0]
    return plan
