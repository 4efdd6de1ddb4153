"""The candidates for memory mapping, as functions of (problem, context); each runs in a process of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np

from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.compiled import mark_warm
from stowplan.portfolio.context import Context
from stowplan.portfolio.memory_mapping import arrays, engine, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan, import_plan
from stowplan.portfolio.memory_mapping.search import densities, ruin_and_recreate

#: Seconds between two reports of a better plan by the search.
REPORT_EVERY = 0.5

#: Rounds of ruin and recreate that a deterministic run does for each second of its limit, times uses. A run at full speed does
#: about three times as many.
DETERMINISTIC_ROUNDS = 300_000


def greedy(problem: Problem, context: Context) -> None:
    """The production-style greedy and nothing more: what runs while compiled code is not there yet."""
    data = arrays.build(problem)
    _, state, complete = heuristics.run(heuristics.production_greedy(data), context.stop)
    if complete:
        context.plan(export_plan(problem, data, state), "greedy")


def search(problem: Problem, context: Context) -> None:
    """Greedy, then constructive heuristics, then ruin and recreate from the best of them until time is up."""
    data = arrays.build(problem)
    best: tuple[arrays.Ints, engine.State] | None = None
    for source, steps in heuristics.constructive(data):
        buffer, state, _ = heuristics.run(steps, context.stop)
        if source == "greedy" or best is None or state.counts[engine.TOTAL] < best[1].counts[engine.TOTAL]:
            context.plan(export_plan(problem, data, state), source)
        if best is None or state.counts[engine.TOTAL] < best[1].counts[engine.TOTAL]:
            best = buffer, state
        if context.stop():
            return
    if best is None or not problem.use_count:
        return
    if context.start_plan is not None:
        given = import_plan(data, context.start_plan)
        if given[1].counts[engine.TOTAL] < best[1].counts[engine.TOTAL]:
            best = given
    _ruin_and_recreate(problem, context, data, best)


def _ruin_and_recreate(problem: Problem, context: Context, data: arrays.Data, start: tuple[arrays.Ints, engine.State]) -> None:
    buffer, state = start
    best_buffer, best = engine.new_state(data)
    best_buffer[:] = buffer
    before = buffer.copy()
    seed = np.array([(context.options.seed * 2654435761 + 88172645463325252) % (1 << 64)], np.uint64)
    chance = np.random.default_rng(context.options.seed)
    keys = densities(data, engine.new_state(data)[1], 1)
    started = int(state.counts[engine.TOTAL])
    reported, report_at = started, time.monotonic() + REPORT_EVERY
    floor = int(data.steps[: data.horizon, arrays.FLOOR].sum())
    for part in _schedule(problem, context):
        before[:] = buffer
        was = int(state.counts[engine.TOTAL])
        ruin_and_recreate(data, state, seed, keys)
        now = int(state.counts[engine.TOTAL])
        # Threshold that falls to nothing: small losses are accepted early on.
        allowed = 2e-3 * (started - floor) * (1.0 - part) ** 2 * chance.random() ** 3
        if now < int(best.counts[engine.TOTAL]):
            best_buffer[:] = buffer
        elif now > was + allowed:
            buffer[:] = before
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + REPORT_EVERY
            _, bound = context.incumbent()
            if int(best.counts[engine.TOTAL]) < reported:
                reported = int(best.counts[engine.TOTAL])
                context.plan(export_plan(problem, data, best), "search")
            if bound is not None and reported <= bound:
                return
            adopted = _adopt(context, data, reported)
            if adopted is not None:
                buffer[:] = adopted[0]
                best_buffer[:] = adopted[0]
                reported = int(best.counts[engine.TOTAL])
    mark_warm()
    if int(best.counts[engine.TOTAL]) < reported:
        context.plan(export_plan(problem, data, best), "search")


def _schedule(problem: Problem, context: Context) -> Iterator[float]:
    """Progress from 0 to 1: by rounds in deterministic runs, else by time."""
    if context.options.deterministic:
        rounds = max(50, int(DETERMINISTIC_ROUNDS * context.options.time_limit / (problem.use_count + 50)))
        for number in range(rounds):
            if context.stop():
                return
            yield number / rounds
    else:
        began, left = time.monotonic(), max(1e-3, context.remaining())
        while not context.stop():
            yield min(1.0, (time.monotonic() - began) / left) if math.isfinite(left) else 0.5


def _adopt(context: Context, data: arrays.Data, objective: int) -> tuple[arrays.Ints, engine.State] | None:
    """A plan of another candidate, where it is better and this state can hold it."""
    plan, _ = context.incumbent()
    if plan is None or plan.objective_ps >= objective:
        return None
    given = import_plan(data, plan)
    return given if int(given[1].counts[engine.TOTAL]) < objective else None


def relaxation(problem: Problem, context: Context) -> None:
    """The bound of the linear relaxation, then of its MILP."""
    from stowplan.models.memory_mapping.milp import relaxation_bound

    relaxation_bound(
        problem,
        time_limit=context.remaining(),
        seed=context.options.seed,
        integer=True,
        iteration_limit=int(2000 * context.options.time_limit) if context.options.deterministic else None,
        on_bound=lambda bound: context.bound(bound, "relaxation"),
        should_stop=context.stop,
    )


def complete(problem: Problem, context: Context) -> None:
    """The complete CP-SAT model, hinted with the best plan known."""
    from stowplan.models.memory_mapping.cpsat import solve as solve_complete

    plan, bound = context.incumbent()
    outcome = solve_complete(
        problem,
        time_limit=context.remaining(),
        workers=1,
        seed=context.options.seed,
        deterministic_limit=context.options.time_limit / 4 if context.options.deterministic else None,
        hint=plan,
        lower_bound_ps=bound,
        on_plan=lambda found: context.plan(found, "cpsat"),
        on_bound=lambda bound: context.bound(bound, "cpsat"),
        should_stop=context.stop,
    )
    if outcome.plan is not None:
        context.plan(outcome.plan, "cpsat")
    if outcome.bound_ps is not None:
        context.bound(outcome.bound_ps, "cpsat")
