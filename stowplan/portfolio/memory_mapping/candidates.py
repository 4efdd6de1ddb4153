"""The candidates for memory mapping, as functions of (problem, context); each runs in a process of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from stowplan.compiled import mark_warm
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.context import Context
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_best, export_plan, import_plan
from stowplan.portfolio.memory_mapping.search import new_search, note_best, ruin_and_recreate
from stowplan.portfolio.memory_mapping.state import State

#: Seconds between two reports of a better plan by the search.
REPORT_EVERY = 0.5

#: Rounds of ruin and recreate that a deterministic run does for each second of its limit, times uses. A run at full speed does
#: about three times as many.
DETERMINISTIC_ROUNDS = 300_000

#: Rounds between two looks at the clock in a deterministic run, and seconds in another.
DETERMINISTIC_PIECE = 20
LOOK_EVERY = 0.01

#: Largest loss that a round may make at the beginning, of what lies between the first plan and the floor.
LOSS = 2e-3


def greedy(problem: Problem, context: Context) -> None:
    """The production-style greedy and nothing more: what runs while compiled code is not there yet."""
    data = arrays.build(problem)
    state, complete = heuristics.run(heuristics.production_greedy(data), context.stop)
    if complete:
        context.plan(export_plan(problem, data, state), "greedy")


def search(problem: Problem, context: Context) -> None:
    """Greedy, then constructive heuristics, then ruin and recreate from the best of them until time is up."""
    data = arrays.build(problem)
    best: State | None = None
    for source, steps in heuristics.constructive(data):
        state, _ = heuristics.run(steps, context.stop)
        if source == "greedy" or best is None or state.totals[0].total < best.totals[0].total:
            context.plan(export_plan(problem, data, state), source)
        if best is None or state.totals[0].total < best.totals[0].total:
            best = state
        if context.stop():
            return
    if best is None or not problem.use_count:
        return
    if context.start_plan is not None:
        given = import_plan(problem, data, context.start_plan)
        if given.totals[0].total < best.totals[0].total:
            best = given
    _ruin_and_recreate(problem, context, data, best)


def _ruin_and_recreate(problem: Problem, context: Context, data: arrays.Data, state: State) -> None:
    search = new_search(data, state, heuristics.densities(data, 1), context.options.seed)
    status = search.status[0]
    started = reported = int(status.best)
    report_at = time.monotonic() + REPORT_EVERY
    floor = problem.floor_ps
    for part, rounds in _schedule(problem, context):
        # Threshold that falls to nothing: small losses are accepted early on.
        ruin_and_recreate(data, state, search, rounds, LOSS * (started - floor) * (1.0 - part) ** 2)
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + REPORT_EVERY
            _, bound = context.incumbent()
            if status.best < reported:
                reported = int(status.best)
                context.plan(export_best(problem, data, search), "search")
            if bound is not None and reported <= bound:
                return
            adopted = _adopt(problem, context, data, reported)
            if adopted is not None:
                state = adopted
                note_best(state, search)
                reported = int(status.best)
    mark_warm()
    if status.best < reported:
        context.plan(export_best(problem, data, search), "search")


def _schedule(problem: Problem, context: Context) -> Iterator[tuple[float, int]]:
    """Progress from 0 to 1, and rounds until the next look at the clock: by rounds in deterministic runs, else by time."""
    if context.options.deterministic:
        total = max(50, int(DETERMINISTIC_ROUNDS * context.options.time_limit / (problem.use_count + 50)))
        for done in range(0, total, DETERMINISTIC_PIECE):
            if context.stop():
                return
            yield done / total, min(DETERMINISTIC_PIECE, total - done)
    else:
        began, left = time.monotonic(), max(1e-3, context.remaining())
        rounds = 1
        while not context.stop():
            now = time.monotonic()
            yield min(1.0, (now - began) / left) if math.isfinite(left) else 0.5, rounds
            rounds = max(1, rounds // 2) if time.monotonic() - now > LOOK_EVERY else rounds + 1


def _adopt(problem: Problem, context: Context, data: arrays.Data, objective: int) -> State | None:
    """A plan of another candidate, where it is better and this state can hold it."""
    plan, _ = context.incumbent()
    if plan is None or plan.objective_ps >= objective:
        return None
    given = import_plan(problem, data, plan)
    return given if given.totals[0].total < objective else None


def relaxation(problem: Problem, context: Context) -> None:
    """Bounds from detailed relaxations of segments of the program, first linear, then with cuts and integers."""
    from stowplan.models.memory_mapping.milp.segments import SegmentBounds
    from stowplan.models.memory_mapping.milp.solve import Effort

    options = context.options
    SegmentBounds(
        problem,
        Effort(
            end=time.monotonic() + context.remaining(),
            seed=options.seed,
            iteration_limit=int(2000 * options.time_limit) if options.deterministic else None,
            node_limit=int(5 * options.time_limit) if options.deterministic else None,
            should_stop=context.stop,
        ),
        on_bound=lambda bound: context.bound(bound, "relaxation"),
    ).run()


def complete(problem: Problem, context: Context) -> None:
    """The complete CP-SAT model, hinted with the best plan known; where the problem is beyond it, a note."""
    from stowplan.models.memory_mapping.cpsat import solve as solve_complete

    plan, bound = context.incumbent()
    try:
        outcome = solve_complete(
            problem,
            time_limit=context.remaining(),
            workers=1,
            seed=context.options.seed,
            deterministic_limit=context.options.time_limit / 12 if context.options.deterministic else None,
            hint=plan,
            lower_bound_ps=bound,
            on_plan=lambda found: context.plan(found, "cpsat"),
            on_bound=lambda bound: context.bound(bound, "cpsat"),
            should_stop=context.stop,
        )
    except NotImplementedError as error:
        context.note(f"the complete model does not take this problem: {error}")
        return
    context.plan(outcome.plan, "cpsat")
    context.bound(outcome.bound_ps, "cpsat")
