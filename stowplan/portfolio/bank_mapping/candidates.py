"""The candidates for bank mapping, as functions of (problem, context)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import assemble
from stowplan.portfolio.bank_mapping import choose
from stowplan.portfolio.presolve import report_proof
from stowplan.portfolio.solver_limits import solver_options

if TYPE_CHECKING:
    # These load HiGHS and SciPy.
    from stowplan.models.bank_mapping import milp as model
    from stowplan.models.mip.matrix import FloatArray


def agrees(problem: Problem, options: Sequence[int]) -> bool:
    """Whether all writers of a tensor write one layout; the ways to choose try, and contradictory rules defeat them."""
    for tensor, writers in enumerate(problem.writers):
        layouts = {choose.written_layout(problem, number, options[number], tensor) for number in writers}
        if len(layouts) > 1:
            return False
    return True


def search(problem: Problem, context: Context) -> None:
    """Propagation, then descent and keeping in turns while the plan gets better, from several mappings.

    The fixed point of propagation is better than one pass, but descent from one pass sometimes ends lower.
    """
    best = choose.propagated_plan(problem)
    if not agrees(problem, best.options):
        context.note("writers of one tensor do not agree: left to the exact models")
        return
    context.plan(best, "propagation")
    for start in ([*best.options], choose.one_pass(problem), choose.local(problem)):
        if agrees(problem, start):
            best = _improve(problem, context, best, start)


def _improve(problem: Problem, context: Context, best: Plan, options: list[int]) -> Plan:
    may_stay: Sequence[bool] = [True] * len(problem.tensors)
    while not context.closed():
        options = choose.descended(problem, options, may_stay, context.closed)
        stays = choose.by_density(problem, options)
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
    from stowplan.models.bank_mapping.cpsat import solve

    report_proof(
        context, solve(problem, hint=context.incumbent()[0], **solver_options(context, "cpsat", work_rates.BANK_CPSAT)), "cpsat"
    )


def milp(problem: Problem, context: Context) -> None:
    """Bounds and rounded plans of all stages; bounds are a millionth below what HiGHS proves.

    How far HiGHS comes depends on the load of the machine: in deterministic runs its bounds count, its plans do not.
    """
    from stowplan.models.bank_mapping import milp as model
    from stowplan.models.mip.matrix import Options

    built = model.build(problem)
    if built.matrix.columns == 0:
        return
    nodes = context.work(work_rates.BANK_NODES, least=1)
    plans = _Plans(context, built, context.incumbent()[0], may_tell=nodes is None)
    if nodes is None:
        _relax(context, built, plans)
    stages = model.stages_of(built)
    for number, matrix in enumerate(stages):
        if context.remaining() <= 0 or context.closed():
            return
        plans.take(context.incumbent()[0])
        options = Options(
            time_limit=max(0.1, context.longest()),
            seed=context.seed(),
            start=None if plans.best is None else built.add_hint(plans.best),
            node_limit=nodes,
            on_bound=lambda bound: context.bound(built.bound(bound), "milp"),
            should_stop=context.closed,
        )
        outcome = model.solve_stage(matrix, options, plans.offer)
        if outcome.status == "infeasible":
            context.note("the MILP is infeasible: left to CP-SAT to prove")
            return
        if outcome.bound is not None:
            context.bound(built.bound(outcome.bound), "milp")
        if outcome.values is not None:
            plans.offer(outcome.values)
        is_solved = outcome.status == "optimal"
        context.note(f"stage {number + 1} of {len(stages)}: {'solved' if is_solved else 'not solved'}")
        if not is_solved:
            return


class _Plans:
    """The best plan so far, and a way to get better ones from points of the matrix."""

    def __init__(self, context: Context, built: model.Model, best: Plan | None, *, may_tell: bool):
        self.best = best
        self._context, self._built, self._may_tell = context, built, may_tell

    def take(self, plan: Plan | None) -> bool:
        """Whether it is better than all before; then it is kept."""
        if plan is None or (self.best is not None and plan.objective >= self.best.objective):
            return False
        self.best = plan
        return True

    def offer(self, values: FloatArray) -> None:
        """Round a point: the options it likes best, and what stays in the order of how much it lets stay."""
        problem = self._built.problem
        options = list(self._built.extract(values).options)
        wish = [float(known or 0.0) for known in self._built.structure.on_chip]
        for tensor, column in self._built.stay_columns.items():
            wish[tensor] = float(values[column])
        for _ in range(4):
            if not agrees(problem, options):
                return
            stays = choose.by_density(problem, options, wish)
            plan = assemble(problem, options, stays)
            if not self.take(plan):
                return
            if self._may_tell:
                self._context.plan(plan, "rounding")
            options = choose.descended(problem, options, stays, self._context.closed)


def _relax(context: Context, built: model.Model, plans: _Plans) -> None:
    """Bound and rounded point of the linear relaxation."""
    from stowplan.models.mip.solve import solve as solve_matrix

    outcome = solve_matrix(
        built.matrix.relaxed(),
        "highs",
        time_limit=max(0.1, 0.4 * context.remaining()),
        seed=context.seed(),
        should_stop=context.closed,
    )
    if outcome.status == "optimal" and outcome.bound is not None:
        context.bound(built.bound(outcome.bound), "relaxation")
    if outcome.values is not None:
        plans.offer(outcome.values)
