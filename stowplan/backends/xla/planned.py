"""Tensors that a plan of ours keeps in fast memory, under what compiles have shown."""

from __future__ import annotations

import random
from typing import Literal

from stowplan.backends.xla.evidence import Evidence
from stowplan.hardware.costs import make_problem
from stowplan.hardware.costs.cycles import CycleTable, StepCycles
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.solve import solve

PlanModel = Literal["roofline", "table", "signatures"]

#: Seconds that a plan may take; the heuristics' plan is within a percent by then, and a compile takes longer.
PLAN_SECONDS = 6.0

#: What it gets where the time is nearly over.
_LEAST_SECONDS = 0.2


def problem_of(evidence: Evidence, model: PlanModel, capacity: int | None = None) -> Problem:
    """The program's problem under a cost model that knows the trials; ``capacity`` in bytes, the target's where None."""
    program, target = evidence.program, evidence.judge.target
    if model == "roofline":
        return make_problem(program, target, cost_model="roofline", capacity=capacity)
    if model == "table":
        return make_problem(program, target, cost_model="table", capacity=capacity, cycles=cycle_table(evidence))
    return make_problem(program, target, cost_model="signatures", capacity=capacity, signatures=evidence.costs)


def planned_tensors(evidence: Evidence, model: PlanModel, chance: random.Random, capacity: int | None = None) -> set[int]:
    """Tensors that some step finds in fast memory by a plan of the heuristics; the same for equal evidence and seed."""
    problem = problem_of(evidence, model, capacity)
    found = solve(
        problem,
        time_limit=min(PLAN_SECONDS, max(evidence.deadline.remaining, _LEAST_SECONDS)),
        candidates=["heuristic"],
        workers=1,
        deterministic=True,
        seed=chance.randrange(1 << 30),
        cancel=evidence.deadline.cancelled,
    )
    if found.plan is None:
        return set()
    fast, number, tensors = set(found.plan.fast_uses), 0, set()
    for step in problem.steps:
        for use in step.uses:
            if number in fast:
                tensors.add(use.tensor)
            number += 1
    return tensors


def cycle_table(evidence: Evidence) -> CycleTable:
    """Cycles of all in slow memory and of XLA's default, as the cost model ``table`` takes them."""
    default = evidence.trials[0]
    slow = next((trial for trial in evidence.trials if not evidence.fast_tensors(trial.assignment)), default)
    steps = {}
    for step in evidence.program.steps:
        signature = evidence.signatures.get(step.name)
        before, after = slow.assignment.steps.get(step.name), default.assignment.steps.get(step.name)
        if signature is None or before is None or before.cycles is None:
            continue
        if after is None or after.cycles is None:
            steps[step.name] = StepCycles(before.cycles)
            continue
        fast = {
            (step.uses[use].tensor, step.uses[use].is_output)
            for use, mask in signature.used_leaves().items()
            if after.pattern & mask
        }
        steps[step.name] = StepCycles(before.cycles, after.cycles, frozenset(fast))
    return CycleTable(steps)
