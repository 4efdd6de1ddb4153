"""The kind."""

from __future__ import annotations

from typing import Any

from makespan.candidates import longest_first, plan_of
from makespan.certificate import proofs
from makespan.model import DECISIONS, Plan, Problem, verify

from stowplan.kernel.kind import Baseline, Candidate, Kind, identify
from stowplan.units import Unit
from stowplan.verification import Verification


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    return {"jobs": len(problem.jobs), "machines": problem.machines}


KIND = Kind(
    name="makespan",
    problem=Problem,
    plan=Plan,
    verify=verify,
    bound=lambda problem: max(problem.jobs, default=0),
    candidates=lambda problem, options: [Candidate("longest_first", "exact")],
    function=lambda name: longest_first,
    baselines=(Baseline(name="one_machine", plan=lambda problem: plan_of(problem, (0,) * len(problem.jobs))),),
    facts=_facts,
    counts=("jobs",),
    identity=lambda problem: identify(problem, "times of jobs", f"{problem.machines} machines"),
    unit=Unit("minutes"),
    assumptions=("machines",),
    decisions=DECISIONS,
    certificate=lambda: proofs,
)
