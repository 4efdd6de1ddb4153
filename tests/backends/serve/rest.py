"""A kind of problem whose exact candidate finds a plan and then rests until it is stopped: a request that is certainly running,
on any machine. Its heuristic finds another plan and ends."""

from __future__ import annotations

import threading
from dataclasses import replace

from stowplan.kernel.context import Context
from stowplan.kernel.kind import Baseline, Candidate
from stowplan.verification import Verification, Violation
from tests.toys.sums import kind as sums
from tests.toys.sums import plan as sums_plan
from tests.toys.sums import problem as sums_problem


class Problem(sums_problem.Problem, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two numbers of a list."""

    format: str = "stowplan.rest.problem"


class Plan(sums_plan.Plan, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Places in the list."""

    format: str = "stowplan.rest.plan"


def plan_of(problem: Problem, *chosen: int) -> Plan:
    return Plan(problem=problem.digest, objective=sum(problem.numbers[place] for place in chosen), chosen=chosen)


def _verify(problem: Problem, plan: Plan) -> Verification[str]:
    wrong = () if len({*plan.chosen}) == 2 == len(plan.chosen) else (Violation("wrong_count", "choose two"),)
    return Verification(wrong, sum(problem.numbers[place] for place in plan.chosen))


def quick(problem: Problem, context: Context) -> None:
    """The heuristic: the second and the third number."""
    context.plan(plan_of(problem, 1, 2), "quick")


def rests(problem: Problem, context: Context) -> None:
    """The exact candidate: the third and the fourth number, then nothing until it is stopped."""
    context.plan(plan_of(problem, 2, 3), "rests")
    while not context.closed():
        threading.Event().wait(0.01)


KIND = replace(
    sums.KIND,
    name="rest",
    problem=Problem,
    plan=Plan,
    verify=_verify,
    bound=lambda problem: 0,
    candidates=lambda problem, options: [
        Candidate("quick", "heuristic", place="thread"),
        Candidate("rests", "exact", place="thread"),
    ],
    function=lambda name: {"quick": quick, "rests": rests}[name],
    baselines=(Baseline(name="first", plan=lambda problem: plan_of(problem, 0, 1)),),
)
