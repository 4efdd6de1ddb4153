"""Candidates around the MILP: one proves a bound with a solver other than the built-in one, one makes a guess of it."""

from __future__ import annotations

import time

from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.context import Context

#: Decisions that a guess may have other than the best plan, and the part of the time that finding it may take.
RADIUS, GUESS_SHARE = 100, 0.2


def milp(problem: Problem, context: Context) -> None:
    """The bound of the MILP by CBC, or by GSCIP where CBC is not there or work is limited; starts from the best plan known."""
    from stowplan.models.memory_mapping.milp.external import bound_with
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


def milp_hint(problem: Problem, context: Context) -> None:
    """What the MILP would change in the best plan known, as a hint for the others; and the relaxation's bound."""
    from stowplan.models.memory_mapping.milp.around import guess_around
    from stowplan.models.memory_mapping.milp.matrix import formulate
    from stowplan.models.memory_mapping.milp.model import RelaxationModel
    from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch

    options = context.options
    model = RelaxationModel(problem)
    search = RelaxationSearch(model, Effort(time.monotonic() + context.remaining(), options.seed, should_stop=context.stop))
    search.linear()
    context.bound(search.bound, "relaxation")
    plan, _ = context.incumbent()
    if plan is None or search.solution is None or context.stop():
        context.note("found no plan to begin with" if plan is None else "no time is left")
        return
    hint = guess_around(
        formulate(model, [*search.windows.found], names=False),
        plan,
        radius=RADIUS,
        time_limit=min(context.remaining(), GUESS_SHARE * options.time_limit),
        seed=options.seed,
        should_stop=context.stop,
    )
    if hint is None:
        context.note("found nothing better around the best plan")
    else:
        context.hint(hint)
