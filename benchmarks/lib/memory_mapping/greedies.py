"""Production-style greedies, with stalls and without: the stronger one is what policies are judged against."""

from __future__ import annotations

import msgspec

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping.arrays import build
from stowplan.portfolio.memory_mapping.convert import export_plan
from stowplan.portfolio.memory_mapping.heuristics import WITHOUT_STALLS, production_greedy, run

#: Name of the one that plans as the problem is; the other's is :data:`WITHOUT_STALLS`.
AS_ALLOWED = "greedy"


def greedies(problem: Problem) -> dict[str, Plan]:
    """The production-style greedy's plans by name, of a problem as it is and with stalls forbidden.

    Both are plans of ``problem``. There is one where stalls are forbidden anyway.
    """
    found: dict[str, Plan] = {}
    for name, rule in ((AS_ALLOWED, problem.stalls), (WITHOUT_STALLS, "forbidden")):
        if found and rule == problem.stalls:
            continue
        ruled = msgspec.structs.replace(problem, stalls=rule)
        data = build(ruled)
        state, _ = run(production_greedy(data), lambda: False)
        found[name] = msgspec.structs.replace(export_plan(ruled, data, state), problem=problem.digest)
    return found


def stronger_greedy(problem: Problem) -> tuple[str, Plan]:
    """The better one and its name."""
    found = greedies(problem)
    name = min(found, key=lambda name: found[name].objective)
    return name, found[name]
