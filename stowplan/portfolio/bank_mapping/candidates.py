"""The candidates for bank mapping, as functions of (problem, context); each runs in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stowplan.models.bank_mapping.assemble import assemble
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.portfolio.bank_mapping import choose, keep
from stowplan.portfolio.context import Context

#: Nodes of branch and bound in deterministic runs, for each second of the limit.
NODES = 200


def local_plan(problem: Problem) -> Plan:
    """Local mapping: every operator by itself, outputs on chip for the next operator only."""
    options = choose.local(problem)
    return assemble(problem, options, keep.next_only(problem, options))


def propagated_plan(problem: Problem) -> Plan:
    """The paper's global mapping, with what saves most kept on chip."""
    options = choose.propagated(problem)
    return assemble(problem, options, keep.by_density(problem, options))


def agrees(problem: Problem, options: Sequence[int]) -> bool:
    """Whether all writers of a tensor write one layout; the ways to choose try, and contradictory rules defeat them."""
    for tensor, writers in enumerate(problem.writers):
        layouts = {
            problem.operators[number].options[options[number]][choose.write_place(problem, number, tensor)]
            for number in writers
        }
        if len(layouts) > 1:
            return False
    return True


def search(problem: Problem, context: Context) -> None:
    """Propagation, then descent and keeping in turns while the plan gets better."""
    options = choose.propagated(problem)
    if not agrees(problem, options):
        context.note("writers of one tensor do not agree: left to the exact models")
        return
    stays = keep.by_density(problem, options)
    best = assemble(problem, options, stays)
    context.plan(best, "propagation")
    for start in (options, choose.local(problem)):
        if agrees(problem, start):
            best = _improve(problem, context, best, start)


def _improve(problem: Problem, context: Context, best: Plan, options: list[int]) -> Plan:
    may_stay: Sequence[bool] = [True] * len(problem.tensors)
    while not context.stop():
        options = choose.descended(problem, options, may_stay, _stopper(context))
        stays = keep.by_density(problem, options)
        plan = assemble(problem, options, stays)
        if plan.objective >= best.objective or not agrees(problem, options):
            break
        best = plan
        context.plan(plan, "descent")
        # What found no room is not worth agreeing for.
        may_stay = stays
    return best


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model, hinted with the best plan known."""
    from stowplan.models.bank_mapping import cpsat as model

    outcome = model.solve(
        problem,
        time_limit=context.remaining(),
        seed=context.options.seed,
        deterministic_limit=context.options.time_limit / 4 if context.options.deterministic else None,
        hint=_known(problem, context),
        on_plan=lambda plan: context.plan(plan, "cpsat"),
        on_bound=lambda bound: context.bound(bound, "cpsat"),
        should_stop=_stopper(context),
    )
    if outcome.status == "infeasible":
        context.proven_infeasible("cpsat")
    elif outcome.bound is not None:
        context.bound(outcome.bound, "cpsat")


def milp(problem: Problem, context: Context) -> None:
    """The linear relaxation, rounded, then the MILP by HiGHS from the best plan known.

    Its bounds are a millionth below what it proves.
    """
    from stowplan.models.bank_mapping import milp as model

    start = _known(problem, context)
    # How far HiGHS comes depends on the load of the machine: in deterministic runs its bounds count, its plans do not.
    rounded = None if context.options.deterministic else _rounded(problem, context)
    if rounded is not None and (start is None or rounded.objective < start.objective):
        start = rounded
    if _stopper(context)():
        return
    outcome, plan, bound = model.solve(
        problem,
        "mathopt-highs",
        # It says what it has proven only when it ends, so it ends by itself.
        time_limit=max(0.1, 0.9 * context.remaining() - 1.0),
        seed=context.options.seed,
        plan=start,
        node_limit=int(NODES * context.options.time_limit) if context.options.deterministic else None,
        on_bound=lambda bound: context.bound(bound, "milp"),
        should_stop=_stopper(context),
    )
    if outcome.status == "infeasible":
        context.note("the MILP is infeasible: left to CP-SAT to prove")
    if plan is not None and not context.options.deterministic:
        context.plan(plan, "milp")
    if bound is not None:
        context.bound(bound, "milp")


def _rounded(problem: Problem, context: Context) -> Plan | None:
    """Plan from the linear relaxation: the options it likes best, and what stays in the order of how much it lets stay."""
    from stowplan.models.bank_mapping import milp as model
    from stowplan.models.mip.solve import solve as solve_matrix

    built = model.build(problem)
    outcome = solve_matrix(
        built.matrix.relaxed(),
        "mathopt-highs",
        time_limit=max(0.1, 0.4 * context.remaining()),
        seed=context.options.seed,
        should_stop=_stopper(context),
    )
    if outcome.status == "optimal" and outcome.bound is not None:
        context.bound(built.bound(outcome.bound), "relaxation")
    if outcome.values is None:
        return None
    options = list(built.extract(outcome.values).options)
    wish = [float(known or 0.0) for known in built.structure.on_chip]
    for tensor, column in built.stay_columns.items():
        wish[tensor] = float(outcome.values[column])
    best: Plan | None = None
    for _ in range(4):
        if not agrees(problem, options):
            break
        stays = keep.by_density(problem, options, wish)
        plan = assemble(problem, options, stays)
        if best is not None and plan.objective >= best.objective:
            break
        best = plan
        context.plan(plan, "rounding")
        options = choose.descended(problem, options, stays, _stopper(context))
    return best


def _known(problem: Problem, context: Context) -> Plan | None:
    """The best plan so far; in deterministic runs the propagated one, since it is a matter of load which is the best."""
    if not context.options.deterministic:
        plan: Plan | None = context.incumbent()[0]
        return plan
    options = choose.propagated(problem)
    return assemble(problem, options, keep.by_density(problem, options)) if agrees(problem, options) else None


def _stopper(context: Context) -> Callable[[], bool]:
    """Time is up, or someone has proven what there is to prove."""

    def stop() -> bool:
        if context.stop():
            return True
        if context.options.deterministic:
            return False
        plan, bound = context.incumbent()
        return plan is not None and bound is not None and plan.objective <= bound

    return stop
