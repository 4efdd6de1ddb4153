"""The candidates for modulo scheduling: functions of (problem, context) that look for plans or bounds.

A *candidate* is one method of a run of ``solve``. It returns nothing and raises no errors of its own: it reports plans and
bounds to its :class:`~stowplan.kernel.context.Context`. A plan gives every instruction of a loop body a tile (a processing
element) and a clock. *II* is the initiation interval, the number of clocks from the start of one iteration to the start of the
next. *List scheduling* places one instruction after the other, the most urgent first (:mod:`.mapper`). A *hint* is a guess of
the caller or of another candidate, such as how likely each instruction is on each tile in a good plan. An *evaluation* is as
much work as placing every instruction once. In a deterministic run, candidates ignore everything that depends on the load of
the machine, such as plans and bounds that other candidates find in the meantime.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.modulo_scheduling.bounds import find_obstacle
from stowplan.models.modulo_scheduling.plan import Plan, decode_objective, describe_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.search import MappingSearch, Tally, begin, follow, list_scheduling
from stowplan.portfolio.presolve import includes_heuristics, report_proof
from stowplan.portfolio.solver_limits import solver_options


class SearchParameters(Parameters, frozen=True):
    """Parameters of the search."""

    patience: int = 20_000
    """Number of placements without an improvement, divided by the number of instructions, after which the search ends. In a
    deterministic run, the work limit ends it instead."""
    hint_placements: int = 5_000
    """Number of placements of the list scheduler without a schedule after which the exact models start without one. It takes
    some hundredths of a second."""


PARAMS = parameters(SearchParameters, __name__)


def prepare(problem: Problem, context: Context, source: str) -> Tally | None:
    """Returns an empty :class:`~.search.Tally`, which counts the work of a heuristic and has its best plan.

    Plans are reported under the name ``source``. The result is None if heuristics cannot work on the problem: because it is
    infeasible, or because its rules demand paths over several links (:func:`_direct_links_suffice`). The reason is reported.
    """
    reason = find_obstacle(problem)
    if reason is not None:
        context.proven_infeasible(source, {"explanation": reason})
        return None
    if problem.rules.pass_through and not _direct_links_suffice(problem):
        context.note("values that pass through tiles are quicker here than single links: left to CP-SAT")
        return None
    return Tally(Body(problem), on_better=lambda plan: context.plan(plan, source))


def _direct_links_suffice(problem: Problem) -> bool:
    """Whether values never gain by taking several links, whenever there is a direct link between the two tiles.

    Heuristics use direct links alone. Under the rule ``pass_through``, values may take several links, and plans must be timed
    by the fastest path. The plans of heuristics obey this rule only if no path over several links is faster than the direct
    link.
    """
    one, several = problem.machine.one_link, problem.machine.any_links
    return all(clocks is None or clocks == several[a][b] for a, row in enumerate(one) for b, clocks in enumerate(row))


def report(context: Context, tally: Tally, source: str) -> None:
    """Leave a note with the best objective of a heuristic and the number of its evaluations."""
    best = "nothing" if tally.best is None else describe_objective(tally.best.objective)
    context.note(f"{source}: {best} after {tally.evaluations} evaluations")


def least_unrefuted_ii(context: Context, tally: Tally) -> int:
    """Returns the smallest II that no bound of this candidate or of any other excludes so far."""
    bound = context.incumbent()[1]
    return max(tally.body.least_ii, 0 if bound is None else decode_objective(bound)[0])


def list_alone(problem: Problem, context: Context) -> None:
    """The candidate ``list``: list scheduling alone, which makes the plan of the baseline of that name.

    If it finds no plan, it reports nothing.
    """
    plan = list_plan(problem, context.seed(), context.closed)
    if plan is not None:
        context.plan(plan, "list")


def search(problem: Problem, context: Context) -> None:
    """The main heuristic. It begins with list scheduling, which may evict instructions that were placed before, and with
    schedules that follow hints. Then it looks for plans with a smaller II or a shorter iteration.

    For large loop bodies, it begins with parallel tempering of the placement, not with list scheduling.
    """
    tally = prepare(problem, context, "list")
    if tally is None:
        return
    is_given_up = begin(tally, context.seed(), context.closed)
    report(context, tally, "list")
    if tally.best is None and not is_given_up:
        context.no_plan("list")
    hints_read = _follow(tally, context, 0)
    tally.on_better = lambda plan: context.plan(plan, "search")
    if not problem.instructions:
        return
    run = MappingSearch(tally, context.seed(1))
    limit = context.work(work_rates.MODULO_PLACEMENTS)
    improved = tally.work
    last_best = tally.best
    while not context.closed():
        hints_read = _follow(tally, context, hints_read)
        plan = context.incumbent()[0]
        if plan is not None:
            run.adopt(plan)
        least = least_unrefuted_ii(context, tally)
        if tally.best is not last_best:
            last_best, improved = tally.best, tally.work
        if limit is not None and tally.work >= limit:
            break
        if limit is None and tally.work - improved > PARAMS.patience * tally.body.count:
            break
        run.step(least, context.closed)
    report(context, tally, "search")


def _follow(tally: Tally, context: Context, first: int) -> int:
    """Try schedules that follow the hints from number ``first`` on; returns the number of hints that have arrived so far."""
    hints = context.hints()
    if len(hints) > first:
        outer_on_better, tally.on_better = tally.on_better, lambda plan: context.plan(plan, "guided")
        for hint in hints[first:]:
            follow(tally, hint, context.seed(), context.closed)
        tally.on_better = outer_on_better
    return len(hints)


def cpsat(problem: Problem, context: Context) -> None:
    """Solve the exact CP-SAT models, and report their plans, bounds and proofs.

    The solver starts from a schedule of list scheduling, which is fast, or else from the best plan of other candidates, if
    there is one.
    """
    hint = _hint(problem, context)
    if hint is not None and context.incumbent()[0] is None and includes_heuristics(context):
        # The plan is reported before the solver is imported, because the import takes longer than list scheduling.
        context.plan(hint, "list")
    from stowplan.models.modulo_scheduling import cpsat as model

    outcome = model.solve(
        problem,
        hint=hint,
        incumbent=context.heard(),
        **solver_options(context, "cpsat", work_rates.MODULO_CPSAT),
    )
    report_proof(context, outcome, "cpsat")


def milp(problem: Problem, context: Context) -> None:
    """Solve the time-indexed MILP with HiGHS, for one initiation interval after the other.

    If values may pass through tiles, or if the machine has registers in which values wait, the candidate only leaves a note.
    """
    # The model is imported only here, because it imports SciPy, which the other candidates do not need.
    from stowplan.models.modulo_scheduling import milp as model

    for name, is_there in (
        ("values that pass through tiles", problem.rules.pass_through),
        ("registers", bool(problem.machine.registers)),
    ):
        if is_there:
            context.note(f"the MILP has no {name}")
            return
    outcome = model.solve(
        problem,
        time_limit=context.longest(),
        seed=context.seed(),
        node_limit=context.work(work_rates.MODULO_NODES),
        on_plan=lambda plan: context.plan(plan, "milp"),
        should_stop=context.closed,
    )
    report_proof(context, outcome, "milp")


def _hint(problem: Problem, context: Context) -> Plan | None:
    """A schedule from which the exact models start: that of list scheduling, or else the best plan so far; None if there is
    neither.

    List scheduling ends as soon as another candidate has a plan, and after :attr:`SearchParameters.hint_placements`.
    """

    def stop() -> bool:
        return context.closed() or context.incumbent()[0] is not None

    return list_plan(problem, context.seed(), stop, PARAMS.hint_placements) or context.incumbent()[0]


def list_plan(problem: Problem, seed: int, should_stop: Callable[[], bool], limit: float = math.inf) -> Plan | None:
    """The plan of list scheduling; None if it finds none before ``should_stop`` returns True or within ``limit`` placements, or
    cannot work on the problem."""
    if find_obstacle(problem) is not None or not problem.instructions:
        return None
    if problem.rules.pass_through and not _direct_links_suffice(problem):
        return None
    tally = Tally(Body(problem))
    list_scheduling(tally, seed, should_stop, limit)
    return tally.best
