"""Problem, plan and verifier."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from stowplan import verification
from stowplan.checks import expect
from stowplan.document import PlanDocument, ProblemDocument
from stowplan.models.decisions import Decision

if TYPE_CHECKING:
    from collections.abc import Mapping


class Problem(ProblemDocument["Plan"], frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """Jobs for machines that are alike, one job at a time each."""

    jobs: tuple[int, ...]
    """Time that each takes."""
    machines: int
    name: str = ""
    format: str = "stowplan.makespan.problem"
    version: int = 1

    def __post_init__(self) -> None:
        expect(self.machines >= 1, "machines", self.machines, "at least 1")
        expect(min(self.jobs, default=0) >= 0, "jobs", min(self.jobs, default=0), "times of at least 0")

    @cached_property
    def digest(self) -> str:
        """Of jobs and machines."""
        return hashlib.sha256(repr((self.jobs, self.machines)).encode()).hexdigest()

    @property
    def bound(self) -> int:
        """All machines work all the time, and one has the longest job."""
        return max(-(-sum(self.jobs) // self.machines), *self.jobs, 0)


class Plan(PlanDocument, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The objective is when the last machine is done."""

    machines: tuple[int, ...]
    """Number of the machine of each job."""
    name: str = ""
    format: str = "stowplan.makespan.plan"
    version: int = 1


def _machines(problem: Problem, plan: Plan) -> Mapping[int, dict[str, int | str | bool]]:
    return {job: {"machine": machine} for job, machine in enumerate(plan.machines)}


DECISIONS = (Decision("job", lambda problem, job: f"job {job}", _machines),)

Code = Literal["wrong_problem", "wrong_count", "unknown_machine", "wrong_objective"]
Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


def makespan(problem: Problem, machines: tuple[int, ...]) -> int:
    """When the last machine is done."""
    done = [0] * problem.machines
    for time, machine in zip(problem.jobs, machines, strict=True):
        done[machine] += time
    return max(done)


def verify(problem: Problem, plan: Plan) -> Verification:
    """All rules a plan breaks, and its makespan."""
    found = verification.of_problem(problem, plan)
    if len(plan.machines) != len(problem.jobs):
        found.append(Violation("wrong_count", f"{len(plan.machines)} machines for {len(problem.jobs)} jobs"))
        return Verification(tuple(found), None)
    strays = tuple(job for job, machine in enumerate(plan.machines) if not 0 <= machine < problem.machines)
    if strays:
        text = f"job {strays[0]} is on machine {plan.machines[strays[0]]} of {problem.machines}"
        found.append(Violation("unknown_machine", text, {"jobs": strays}))
        return Verification(tuple(found), None)
    objective = makespan(problem, plan.machines)
    if plan.objective != objective:
        found.append(Violation("wrong_objective", f"the plan says {plan.objective}, it is {objective}"))
    return Verification(tuple(found), objective)
