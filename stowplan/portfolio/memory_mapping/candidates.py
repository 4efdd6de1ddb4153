"""The candidates for memory mapping, as functions of (problem, context).

A *candidate* is one method of a run of ``solve``. It returns nothing and raises no errors of its own: it reports plans, bounds
and hints to its :class:`~stowplan.kernel.context.Context`. A *hint* gives for each access of a tensor numbers in [0, 1] that
say how likely the tensor is in fast memory there in a good plan. The *linear relaxation* is a MILP of the problem without
integrality; its optimum is a bound, and its solution is a hint. A *state* is a plan as tables, on which compiled heuristics
work (:mod:`.state`). A *use* is the read or write of a tensor by a step; problems without uses have nothing to improve.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.memory_mapping.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_best, export_plan, import_plan
from stowplan.portfolio.memory_mapping.guided import (
    Guides,
    relaxes_in_search,
    solve_relaxation,
)
from stowplan.portfolio.memory_mapping.pace import Stagnation, ends_on_stagnation, report_every
from stowplan.portfolio.memory_mapping.search import new_search, ruin_and_recreate, save_best
from stowplan.portfolio.memory_mapping.state import State
from stowplan.portfolio.presolve import includes_heuristics, presolve_seconds
from stowplan.portfolio.solver_limits import solver_options


class SearchParameters(Parameters, frozen=True):
    """Parameters of the search."""

    deterministic_piece: int = 20
    """Number of rounds of ruin and recreate between two calls of :meth:`Context.closed` in a deterministic run."""
    look_every: float = 0.01
    """Seconds between two calls of :meth:`Context.closed` in other runs."""
    loss: float = 2e-3
    """Largest loss, that is, increase of the objective, that a round of ruin and recreate may cause at the beginning. It is a
    fraction of the difference between the objective of the first plan and the floor, a simple lower bound."""


PARAMS = parameters(SearchParameters, __name__)


def greedy(problem: Problem, context: Context) -> None:
    """The candidate that computes only the plan of the baseline ``greedy``: a heuristic in the style of production compilers.

    If it is stopped before its end, it reports nothing.
    """
    data = arrays.build(problem)
    state, complete = heuristics.run(heuristics.production_greedy(data), context.closed)
    if complete:
        context.plan(export_plan(problem, data, state), "greedy")


def presolve(problem: Problem, context: Context) -> None:
    """The presolver, which runs before all other candidates on small problems: heuristics, then the complete CP-SAT model.

    The constructive heuristics (:mod:`.heuristics`) are left out if the run has no heuristics.
    """
    if includes_heuristics(context):
        data = arrays.build(problem)
        for _ in _construct_and_report(problem, context, data):
            pass
    _solve_complete(problem, context, presolve_seconds(context))


def search(problem: Problem, context: Context) -> None:
    """The main heuristic: constructive heuristics (:mod:`.heuristics`), some of them guided by hints (:mod:`.guided`), then
    ruin and recreate (:mod:`.search`)."""
    data = arrays.build(problem)
    guides = Guides(problem, context, data)
    best: State | None = None
    for state in _construct_and_report(problem, context, data):
        for other in (state, guides.better(int(state.totals[0].total))):
            if other is not None and (best is None or other.totals[0].total < best.totals[0].total):
                best = other
    if best is None or context.closed() or not problem.use_count:
        return
    if context.start_plan is not None and context.start_plan.residencies:
        imported = import_plan(problem, data, context.start_plan)
        if imported.totals[0].total < best.totals[0].total:
            best = imported
    _ruin_and_recreate(problem, context, data, best, guides)


def _construct_and_report(problem: Problem, context: Context, data: arrays.Data) -> Iterator[State]:
    """Run the constructive heuristics; yields the state that each of them builds.

    The plan of the baseline ``greedy`` is reported, and so is every plan that is better than all before.
    """
    best_total = math.inf
    for source, steps in heuristics.constructive(data):
        state, is_complete = heuristics.run(steps, context.closed)
        # A greedy heuristic that was interrupted has not made the baseline's plan.
        source = source if is_complete else "search"
        if source == "greedy" or state.totals[0].total < best_total:
            context.plan(export_plan(problem, data, state), source)
        best_total = min(best_total, state.totals[0].total)
        yield state
        if context.closed():
            return


def _ruin_and_recreate(problem: Problem, context: Context, data: arrays.Data, state: State, guides: Guides) -> None:
    """Improve a state by ruin and recreate, and report better plans.

    The search continues from plans of other candidates, and from plans that follow hints, if these are better. It may end early
    to make way for another candidate (:func:`.pace.ends_on_stagnation`).
    """
    search = new_search(data, state, heuristics.densities(data, 1), context.seed())
    status = search.status[0]
    first_objective = reported = int(status.best)
    seconds_between = report_every(problem)
    report_at = time.monotonic() + seconds_between
    floor = problem.floor_ps
    may_end = ends_on_stagnation(problem, context.options)
    stagnation = Stagnation(time.monotonic())
    for progress, rounds in _schedule(problem, context):
        following_hint = guides.better(int(status.best))
        if following_hint is not None:
            state = following_hint
            save_best(state, search)
            reported = int(status.best)
        before = int(status.best)
        # As in threshold accepting, the loss that a round may cause falls to 0 during the search.
        ruin_and_recreate(data, state, search, rounds, PARAMS.loss * (first_objective - floor) * (1.0 - progress) ** 2)
        stagnation.add(before - int(status.best))
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + seconds_between
            if status.best < reported:
                reported = int(status.best)
                context.plan(export_best(problem, data, search), "search")
            adopted = _adopt(problem, context, data, reported)
            if adopted is not None:
                state = adopted
                save_best(state, search)
                reported = int(status.best)
        # The search does not end before it has followed a hint of another candidate, mostly that of the relaxation, because the
        # plans that follow hints are built here.
        if may_end and guides.has_followed_hint:
            gap = int(status.best) - max(floor, context.incumbent()[1] or 0)
            if stagnation.is_reached(time.monotonic(), context.remaining(), gap):
                break
    if status.best < reported:
        context.plan(export_best(problem, data, search), "search")


def _schedule(problem: Problem, context: Context) -> Iterator[tuple[float, int]]:
    """Yield, for each slice of the search, the progress from 0 to 1 and the number of rounds to do.

    In a deterministic run, the progress is the part of all rounds that is done. In other runs, it is the part of the time that
    is over, or 0.5 if the time is not limited.
    """
    total = context.work(work_rates.MAPPING_ROUNDS, problem.use_count + 50, least=50)
    if total is not None:
        for rounds_done in range(0, total, PARAMS.deterministic_piece):
            if context.closed():
                return
            yield rounds_done / total, min(PARAMS.deterministic_piece, total - rounds_done)
    else:
        began, available = time.monotonic(), max(1e-3, context.remaining())
        rounds = 1
        while not context.closed():
            now = time.monotonic()
            yield min(1.0, (now - began) / available) if math.isfinite(available) else 0.5, rounds
            rounds = max(1, rounds // 2) if time.monotonic() - now > PARAMS.look_every else rounds + 1


def _adopt(problem: Problem, context: Context, data: arrays.Data, objective: int) -> State | None:
    """The state of the best plan of all candidates; None if the state is not better than ``objective`` (ps).

    A state cannot represent every plan exactly (:func:`import_plan`), so the state may be worse than the plan.
    """
    plan, _ = context.incumbent()
    if plan is None or plan.objective >= objective:
        return None
    imported = import_plan(problem, data, plan)
    return imported if imported.totals[0].total < objective else None


def relaxation(problem: Problem, context: Context) -> None:
    """The exact candidate ``relaxation``: a hint from the linear relaxation, then bounds from relaxations of segments.

    The first part is left out if the search solves the linear relaxation itself (:func:`.guided.relaxes_in_search`). A
    *segment* is a part of the program between two boundaries. The relaxations of segments are more detailed: they are linear
    programs first, and later have cuts and integer variables.
    """
    from stowplan.models.memory_mapping.milp.segments import SegmentBounds
    from stowplan.models.memory_mapping.milp.solve import Effort

    if not relaxes_in_search(context):
        hint, bound = solve_relaxation(problem, context)
        context.bound(bound, "relaxation")
        if hint is not None:
            context.hint(hint)
    effort = Effort(
        end=time.monotonic() + context.remaining(),
        seed=context.seed(),
        iteration_limit=context.work(work_rates.MAPPING_SEGMENT_SIMPLEX),
        node_limit=context.work(work_rates.MAPPING_SEGMENT_NODES),
        should_stop=context.closed,
    )
    on_prices = (lambda prices: context.evidence(prices.encode())) if context.options.certify else None
    SegmentBounds(problem, effort, lambda bound: context.bound(bound, "relaxation"), on_prices).run()


def complete(problem: Problem, context: Context) -> None:
    """Solve the complete CP-SAT model, that of the whole problem. The solver starts from the best plan so far, if there is one.

    If the model does not support the problem, the candidate's entry in the result gets a note.
    """
    _solve_complete(problem, context, context.remaining())


def _solve_complete(problem: Problem, context: Context, seconds: float) -> None:
    """Solve the complete model for at most ``seconds``, and report its plan and bound."""
    from stowplan.models.memory_mapping.cpsat import solve as solve_complete

    plan, bound = context.incumbent()
    try:
        outcome = solve_complete(
            problem,
            hint=plan,
            lower_bound_ps=bound,
            **solver_options(context, "cpsat", work_rates.MAPPING_CPSAT, seconds=seconds),
        )
    except NotImplementedError as error:
        context.note(f"the complete model does not take this problem: {error}")
        return
    assert outcome.plan is not None
    assert outcome.bound is not None
    context.plan(outcome.plan, "cpsat")
    context.bound(outcome.bound, "cpsat")


def milp(problem: Problem, context: Context) -> None:
    """Report the bound of the complete MILP, whose solver starts from the best plan so far.

    The solver is CBC, or GSCIP if CBC is not installed or the run is deterministic.
    """
    from stowplan.models.memory_mapping.milp.external import bound_with
    from stowplan.models.mip import with_pulp

    plan, _ = context.incumbent()
    nodes = context.work(work_rates.MAPPING_MILP_NODES)
    solver = "cbc" if nodes is None and "cbc" in with_pulp.available() else "gscip"
    left = context.remaining()
    outcome = bound_with(
        problem,
        solver,
        # CBC reports its bound only when it ends, so it has to end before this process is stopped.
        time_limit=max(0.5, 0.8 * left - 1.0) if solver == "cbc" else left,
        seed=context.seed(),
        plan=plan,
        node_limit=nodes,
        on_bound=lambda bound: context.bound(bound, "milp"),
        should_stop=context.closed,
    )
    context.bound(outcome.bound_ps, "milp")
    context.note(f"{solver}, {outcome.formulation.matrix.columns} columns" + (", solved to the end" if outcome.optimal else ""))
