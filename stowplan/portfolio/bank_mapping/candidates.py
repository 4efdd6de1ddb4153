"""The candidates for bank mapping, as functions of (problem, context).

A *candidate* is one method of a run of ``solve``. It returns nothing and raises no errors of its own: it reports plans and
bounds to its :class:`~stowplan.kernel.context.Context`.

A scratchpad consists of many equal *banks* that work in parallel, and a *layout* says how a tensor is spread over them. A plan
chooses an *option* for every operator, that is, a layout for each tensor that the operator reads or writes. It also decides
which tensors stay on chip. A *mapping* is a list with the option of every operator, as an index into ``Operator.options``.
:mod:`.choose` explains *propagation* and *local mapping*, two ways to choose options.
"""

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
    """Whether all operators that write the same tensor write it in the same layout under a mapping, as valid plans must.

    Heuristics try to ensure this, but they cannot always.
    """
    for tensor, writers in enumerate(problem.writers):
        layouts = {choose.written_layout(problem, number, options[number], tensor) for number in writers}
        if len(layouts) > 1:
            return False
    return True


def search(problem: Problem, context: Context) -> None:
    """The heuristic: the plan of propagation, then local search from several mappings.

    Local search alternates between two steps as long as the plan improves: descent over the options, and the choice of the
    tensors that stay on chip. It starts from three mappings: the fixed point of propagation, a single pass of propagation, and
    local mapping (:mod:`.choose`). The fixed point is better than the single pass, but descent from the single pass sometimes
    ends lower. If writers of one tensor disagree in the plan of propagation, the candidate reports only a note. The other two
    mappings are skipped if writers disagree in them.
    """
    best = choose.propagated_plan(problem)
    if not agrees(problem, best.options):
        context.note("writers of one tensor do not agree: left to the exact models")
        return
    context.plan(best, "propagation")
    for start in ([*best.options], choose.propagate_once(problem), choose.local(problem)):
        if agrees(problem, start):
            best = _improve(problem, context, best, start)


def _improve(problem: Problem, context: Context, best: Plan, options: list[int]) -> Plan:
    """Local search from the mapping ``options``. It reports plans that are better than ``best``, and returns the best plan."""
    may_stay: Sequence[bool] = [True] * len(problem.tensors)
    while not context.closed():
        options = choose.descend(problem, options, may_stay, context.closed)
        stays = choose.by_density(problem, options)
        plan = assemble(problem, options, stays)
        if plan.objective >= best.objective or not agrees(problem, options):
            break
        best = plan
        context.plan(plan, "descent")
        # In the next descent, matching layouts save nothing for tensors that found no space on chip.
        may_stay = stays
    return best


def cpsat(problem: Problem, context: Context) -> None:
    """Solve the CP-SAT model, from the best plan so far if there is one; report its plans, bounds and proofs."""
    from stowplan.models.bank_mapping.cpsat import solve

    report_proof(
        context, solve(problem, hint=context.incumbent()[0], **solver_options(context, "cpsat", work_rates.BANK_CPSAT)), "cpsat"
    )


def milp(problem: Problem, context: Context) -> None:
    """Solve the MILP with HiGHS in stages; report bounds, and plans that are rounded from its points.

    A *point* is a value for each variable of the MILP. A *stage* is the MILP with only some variables integral, and each stage
    has more integral variables than the one before (:func:`stowplan.models.bank_mapping.milp.stages_of`). The next stage is
    solved only if this one was solved to optimality. Bounds are lowered by a millionth against rounding errors. How far HiGHS
    gets depends on the load of the machine, so in deterministic runs only its bounds are reported. A problem without variables
    is left to the other candidates.
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
    """Keeps the best plan, and rounds points of the MILP to plans.

    It begins with the plan ``best``, or with none. If ``may_tell`` is set, better plans that it makes are reported.
    """

    def __init__(self, context: Context, built: model.Model, best: Plan | None, *, may_tell: bool):
        self.best = best
        self._context, self._built, self._may_tell = context, built, may_tell

    def take(self, plan: Plan | None) -> bool:
        """Keep a plan if it is better than all before, and return whether it is; None is ignored, and the result is False."""
        if plan is None or (self.best is not None and plan.objective >= self.best.objective):
            return False
        self.best = plan
        return True

    def offer(self, values: FloatArray) -> None:
        """Round a point of the MILP to a plan, and improve the plan by descent, as long as it is better than all before.

        Each operator gets the option whose variable is largest. Tensors are taken on chip in the order of their variables, the
        largest first, as long as they fit.
        """
        problem = self._built.problem
        options = list(self._built.extract(values).options)
        preferred = [float(must_stay or 0.0) for must_stay in self._built.structure.on_chip]
        for tensor, column in self._built.stay_columns.items():
            preferred[tensor] = float(values[column])
        # One plan by rounding, and at most three by descent: each choice of tensors changes which options are best.
        for _ in range(4):
            if not agrees(problem, options):
                return
            stays = choose.by_density(problem, options, preferred)
            plan = assemble(problem, options, stays)
            if not self.take(plan):
                return
            if self._may_tell:
                self._context.plan(plan, "rounding")
            options = choose.descend(problem, options, stays, self._context.closed)


def _relax(context: Context, built: model.Model, plans: _Plans) -> None:
    """Solve the linear relaxation in at most 40 % of the remaining time; report its bound, and a plan rounded from its
    point."""
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
