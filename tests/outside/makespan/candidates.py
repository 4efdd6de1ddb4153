"""How plans are found."""

from __future__ import annotations

from makespan.model import Plan, Problem, makespan

from stowplan.kernel.context import Context


def longest_first(problem: Problem, context: Context) -> None:
    """The longest job first, each to the machine that is free first (Graham 1969)."""
    done = [0] * problem.machines
    machines = [0] * len(problem.jobs)
    for job in sorted(range(len(problem.jobs)), key=lambda number: -problem.jobs[number]):
        machine = min(range(problem.machines), key=done.__getitem__)
        machines[job] = machine
        done[machine] += problem.jobs[job]
    context.plan(plan_of(problem, tuple(machines)), "longest_first")
    context.bound(problem.bound, "longest_first")


def plan_of(problem: Problem, machines: tuple[int, ...]) -> Plan:
    """A plan with its objective."""
    return Plan(problem=problem.digest, objective=makespan(problem, machines), machines=machines)
