"""What policies are judged against: the stronger of two production-style greedies.

Where a problem allows stalls, the greedy that plans with them is often worse than the one that plans without
(``docs/results/muzero.md``), and a plan without stalls is valid either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan

#: Names of the two.
AS_ALLOWED, WITHOUT_STALLS = "greedy", "greedy, no stalls"


def greedies(problem: Problem, stop: Callable[[], bool] = lambda: False) -> dict[str, Plan]:
    """The production-style greedy's plans by name, of a problem as it is and with stalls forbidden.

    Both are plans of ``problem``. There is one where stalls are forbidden anyway; those that were stopped are left out.
    """
    found: dict[str, Plan] = {}
    for name, rule in ((AS_ALLOWED, problem.stalls), (WITHOUT_STALLS, "forbidden")):
        if found and rule == problem.stalls:
            continue
        ruled = msgspec.structs.replace(problem, stalls=rule)
        data = arrays.build(ruled)
        state, is_complete = heuristics.run(heuristics.production_greedy(data), stop)
        if is_complete:
            found[name] = msgspec.structs.replace(export_plan(ruled, data, state), problem=problem.digest)
    return found


def stronger_greedy(problem: Problem, stop: Callable[[], bool] = lambda: False) -> tuple[str, Plan | None]:
    """The better one and its name; no plan where both were stopped."""
    found = greedies(problem, stop)
    name = min(found, key=lambda name: found[name].objective_ps, default=AS_ALLOWED)
    return name, found.get(name)


def without_stalls(problem: Problem, stop: Callable[[], bool] = lambda: False) -> tuple[str, float]:
    """Name and objective of the greedy without stalls; infinite where it was stopped."""
    plan = greedies(problem, stop).get(AS_ALLOWED if problem.stalls == "forbidden" else WITHOUT_STALLS)
    return WITHOUT_STALLS, math.inf if plan is None else plan.objective_ps
