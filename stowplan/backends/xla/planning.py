"""Plans of ours for a program under what its trials have shown, from which steers are made."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.score import with_freedoms
from stowplan.hardware.costs import make_problem
from stowplan.hardware.costs.roofline import CycleTable, StepCycles
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.solve import solve

PlanModel = Literal["table", "signatures"]

#: Seconds that a plan may take; the heuristics' plan is within a percent by then, and a compile takes longer.
PLAN_SECONDS = 6.0

#: What it gets where the time is nearly over.
_LEAST_SECONDS = 0.2


def problem_of(evidence: Evidence, model: PlanModel, capacity: int | None = None) -> Problem:
    """The program's problem under a cost model that knows the trials; ``capacity`` in bytes, the target's where None."""
    program, target = evidence.program, evidence.judge.target
    if model == "table":
        return make_problem(program, target, cost_model="table", capacity=capacity, cycles=cycle_table(evidence))
    return make_problem(program, target, cost_model="signatures", capacity=capacity, signatures=evidence.costs)


class Planned(NamedTuple):
    """A plan of ours, and the problem it is for."""

    problem: Problem
    plan: Plan

    @property
    def tensors(self) -> set[int]:
        """Tensors that some step finds in fast memory."""
        uses = [use.tensor for step in self.problem.steps for use in step.uses]
        return {uses[number] for number in self.plan.fast_uses}


def planned(
    evidence: Evidence, model: PlanModel, chance: random.Random, start: Trial | None = None, capacity: int | None = None
) -> Planned:
    """A plan of the heuristics; the same for equal evidence and seed, unless the evidence's deadline cuts it short.

    It begins from what XLA made of ``start``, within that trial's capacity or ``capacity`` bytes. Then it has XLA's freedoms,
    too, is no worse than XLA's plan by the model, and differs from it only where that gains something.
    """
    hint = None
    if start is None:
        problem = problem_of(evidence, model, capacity)
    else:
        problem = with_freedoms(problem_of(evidence, model, start.steer.capacity if capacity is None else capacity))
        if start.has_fast_memory:
            hint = evidence.judge.plan(start.compiled, problem).plan
    found = solve(
        problem,
        hint=hint,
        time_limit=min(PLAN_SECONDS, max(evidence.deadline.remaining, _LEAST_SECONDS)),
        candidates=["heuristic"],
        workers=1,
        deterministic=True,
        seed=chance.randrange(1 << 30),
        cancel=evidence.deadline.cancelled,
    )
    return Planned(problem, found.plan)


def cycle_table(evidence: Evidence) -> CycleTable:
    """Cycles of all in slow memory and of XLA's default, as the cost model ``table`` takes them."""
    default = evidence.trials[0]
    slow = evidence.all_slow or default
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
