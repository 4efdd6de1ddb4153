"""What it brings to a run: a verifier and one candidate."""

from __future__ import annotations

from stowplan.kernel.context import Context
from stowplan.kernel.kind import Baseline, Candidate, Kind, identify
from stowplan.units import Unit
from stowplan.verification import Verification, Violation
from tests.toys.sums.plan import Plan
from tests.toys.sums.problem import Problem


def plan_of(problem: Problem, *chosen: int) -> Plan:
    return Plan(problem=problem.digest, objective=sum(problem.numbers[place] for place in chosen), chosen=chosen)


def _verify(problem: Problem, plan: Plan) -> Verification[str]:
    total = sum(problem.numbers[place] for place in plan.chosen)
    wrong = () if len({*plan.chosen}) == 2 == len(plan.chosen) else (Violation("wrong_count", "choose two"),)
    return Verification(wrong, total)


def smallest(problem: Problem, context: Context) -> None:
    """The candidate: the two smallest numbers, and no others are smaller."""
    first, second, *_ = sorted(range(len(problem.numbers)), key=problem.numbers.__getitem__)
    context.plan(plan_of(problem, first, second), "smallest")
    context.bound(problem.numbers[first] + problem.numbers[second], "smallest")


KIND = Kind(
    name="sums",
    problem=Problem,
    plan=Plan,
    verify=_verify,
    bound=lambda problem: 2 * min(problem.numbers),
    candidates=lambda problem, options: [Candidate("smallest", "exact")],
    function=lambda name: smallest,
    baselines=(Baseline(name="first", plan=lambda problem: plan_of(problem, 0, 1)),),
    facts=lambda problem, plan, check: {"numbers": len(problem.numbers), "lists": {"long": list(range(20))}},
    identity=identify,
    unit=Unit("points"),
    counts=("numbers",),
)
