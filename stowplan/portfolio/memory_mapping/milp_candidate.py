"""The candidate that proves a bound of the MILP with a solver other than the built-in one."""

from __future__ import annotations

from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.context import Context


def milp(problem: Problem, context: Context) -> None:
    """The bound of the MILP by CBC, or by GSCIP where CBC is not there or work is limited; starts from the best plan known."""
    from stowplan.models.memory_mapping.milp.matrix import bound_with
    from stowplan.models.mip import with_pulp

    plan, _ = context.incumbent()
    deterministic = context.options.deterministic
    solver = "cbc" if not deterministic and "cbc" in with_pulp.available() else "gscip"
    left = context.remaining()
    found = bound_with(
        problem,
        solver,
        # CBC says what it proved when it ends, so it has to end before this process is ended.
        time_limit=max(0.5, 0.8 * left - 1.0) if solver == "cbc" else left,
        seed=context.options.seed,
        plan=plan,
        node_limit=int(100 * context.options.time_limit) if deterministic else None,
        on_bound=lambda bound: context.bound(bound, "milp"),
        should_stop=context.stop,
    )
    context.bound(found.bound_ps, "milp")
    context.note(f"{solver}, {found.formulation.matrix.columns} columns" + (", solved to the end" if found.optimal else ""))
