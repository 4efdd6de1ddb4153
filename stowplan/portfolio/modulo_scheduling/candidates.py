"""The candidates for modulo scheduling, as functions of (problem, context); each runs in a process of its own.

What depends on the load of the machine (incumbents of others, the clock) is left alone in deterministic runs.
"""

from __future__ import annotations

from collections.abc import Callable

from stowplan.models.modulo_scheduling.bounds import find_obstacle
from stowplan.models.modulo_scheduling.plan import Plan, decode_objective, describe_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.portfolio.context import Context
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.evolution import Evolution
from stowplan.portfolio.modulo_scheduling.guided import follow
from stowplan.portfolio.modulo_scheduling.search import Search, Tally, begin, is_least, list_scheduling, random_play

#: Placements of deterministic runs, for each second of the limit.
PLACEMENTS = 2_500

#: Evaluations that random play and evolution get where work is not limited.
BUDGET = 20_000

#: Placements of the search, for each instruction, that may pass without an improvement.
PATIENCE = 20_000

#: Part of a deterministic run's seconds that CP-SAT gets, in its own.
_DETERMINISTIC_PART = 0.25


def prepare(problem: Problem, context: Context, source: str) -> Tally | None:
    """What every heuristic needs; None where there is nothing to search."""
    reason = find_obstacle(problem)
    if reason is not None:
        context.proven_infeasible(source, {"explanation": reason})
        return None
    if problem.rules.pass_through and not _single_links_do(problem):
        context.note("values that pass through tiles are quicker here than single links: left to CP-SAT")
        return None
    return Tally(Body(problem), on_better=lambda plan: context.plan(plan, source))


def _single_links_do(problem: Problem) -> bool:
    """Whether no way over several links is quicker than a single one: then plans of single links are valid in either case."""
    one, several = problem.machine.one_link, problem.machine.any_links
    return all(clocks is None or clocks == several[a][b] for a, row in enumerate(one) for b, clocks in enumerate(row))


def report(context: Context, tally: Tally, source: str) -> None:
    """Note what a heuristic has found, and in how many evaluations."""
    found = "nothing" if tally.best is None else describe_objective(tally.best.objective)
    context.note(f"{source}: {found} after {tally.evaluations} evaluations")


def _closed(context: Context) -> bool:
    """Whether someone has a plan that is proven to be the best."""
    return not context.options.deterministic and is_least(*context.incumbent())


def stopper(context: Context) -> Callable[[], bool]:
    """Whether time is up, or there is nothing left to find."""
    return lambda: context.stop() or _closed(context)


def least_open(context: Context, tally: Tally) -> int:
    """The least II that nobody has refuted."""
    bound = None if context.options.deterministic else context.incumbent()[1]
    return max(tally.body.least_ii, 0 if bound is None else decode_objective(bound)[0])


def list_alone(problem: Problem, context: Context) -> None:
    """List scheduling, the baseline, and nothing more."""
    plan = list_plan(problem, context.options.seed, context.stop)
    if plan is not None:
        context.plan(plan, "list")


def search(problem: Problem, context: Context) -> None:
    """List scheduling with eviction (``list``), what follows hints, then smaller IIs and shorter iterations (``search``).

    Large loop bodies have their places annealed before.
    """
    tally = prepare(problem, context, "list")
    if tally is None:
        return
    report(context, tally, begin(tally, context.options.seed, context.stop))
    taken = _follow(tally, context, 0)
    tally.on_better = lambda plan: context.plan(plan, "search")
    if not problem.instructions:
        return
    run = Search(tally, context.options.seed + 1)
    stop = stopper(context)
    limit = int(PLACEMENTS * context.options.time_limit) if context.options.deterministic else None
    improved = tally.work
    known = tally.best
    while not stop():
        taken = _follow(tally, context, taken)
        if not context.options.deterministic:
            plan = context.incumbent()[0]
            if plan is not None:
                run.adopt(plan)
        least = least_open(context, tally)
        if tally.best is not known:
            known, improved = tally.best, tally.work
        if limit is not None and tally.work >= limit:
            break
        if limit is None and tally.work - improved > PATIENCE * tally.body.count:
            break
        run.step(least, stop)
    report(context, tally, "search")


def _follow(tally: Tally, context: Context, taken: int) -> int:
    """Try what hints say that were not taken up before; returns how many there are."""
    hints = context.hints()
    if len(hints) > taken:
        offered, tally.on_better = tally.on_better, lambda plan: context.plan(plan, "guided")
        for hint in hints[taken:]:
            follow(tally, hint, context.options.seed, context.stop)
        tally.on_better = offered
    return len(hints)


def random(problem: Problem, context: Context) -> None:
    """Random legal play."""
    tally = prepare(problem, context, "random")
    if tally is not None and problem.instructions:
        random_play(tally, context.options.seed, budget(context, tally), stopper(context))
        report(context, tally, "random")


def evolution(problem: Problem, context: Context) -> None:
    """Evolutionary search over placements."""
    tally = prepare(problem, context, "evolution")
    if tally is None or not problem.instructions:
        return
    most = budget(context, tally)
    run = Evolution(tally, context.options.seed)
    stop = stopper(context)
    while tally.evaluations < most and not stop():
        run.generation(stop)
    report(context, tally, "evolution")


def budget(context: Context, tally: Tally, placements: int = PLACEMENTS) -> int:
    """Evaluations at most; of a deterministic run so many placements for each second of its limit."""
    if not context.options.deterministic:
        return BUDGET
    return min(BUDGET, int(placements * context.options.time_limit) // max(1, tally.body.count) + 1)


def cpsat(problem: Problem, context: Context) -> None:
    """The exact models, from the best schedule known: of the others, or of list scheduling, which costs little."""
    from stowplan.models.modulo_scheduling import cpsat as model

    options = context.options
    outcome = model.solve(
        problem,
        time_limit=context.remaining(),
        seed=options.seed,
        deterministic_limit=_DETERMINISTIC_PART * options.time_limit if options.deterministic else None,
        hint=_hint(problem, context),
        on_plan=lambda plan: context.plan(plan, "cpsat"),
        on_bound=lambda bound: context.bound(bound, "cpsat"),
        should_stop=stopper(context),
        incumbent=None if options.deterministic else lambda: context.incumbent()[0],
    )
    if outcome.status == "infeasible":
        context.proven_infeasible("cpsat", {"explanation": outcome.reason} if outcome.reason else None)
    elif outcome.bound is not None:
        context.bound(outcome.bound, "cpsat")


def _hint(problem: Problem, context: Context) -> Plan | None:
    if context.options.deterministic:
        return list_plan(problem, context.options.seed, context.stop)
    # Whatever others find in the meantime does as well.
    plan = list_plan(problem, context.options.seed, lambda: context.stop() or context.incumbent()[0] is not None)
    return plan or context.incumbent()[0]


def list_plan(problem: Problem, seed: int, should_stop: Callable[[], bool]) -> Plan | None:
    """The plan of list scheduling; None where it finds none, or there is none for it to find."""
    if find_obstacle(problem) is not None or not problem.instructions:
        return None
    if problem.rules.pass_through and not _single_links_do(problem):
        return None
    tally = Tally(Body(problem))
    list_scheduling(tally, seed, should_stop)
    return tally.best
