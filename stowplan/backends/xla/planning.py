"""Plans of ours for a program under what its trials have shown, from which steers are made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.score import with_freedoms
from stowplan.backends.xla.steer import Prefetch
from stowplan.hardware.costs import make_problem
from stowplan.hardware.costs.roofline import CycleTable, StepCycles
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem, Use
from stowplan.portfolio.solve import solve

PlanModel = Literal["roofline", "table", "signatures"]

#: Seconds that a plan may take; the heuristics' plan is within a percent by then, and a compile takes longer.
PLAN_SECONDS = 6.0

#: What it gets where the time is nearly over.
_LEAST_SECONDS = 0.2

#: Entries of a text of prefetches: XLA looks them up one by one.
MOST_PREFETCHES = 200


def problem_of(evidence: Evidence, model: PlanModel, capacity: int | None = None) -> Problem:
    """The program's problem under a cost model that knows the trials; ``capacity`` in bytes, the target's where None."""
    program, target = evidence.program, evidence.judge.target
    if model == "roofline":
        return make_problem(program, target, cost_model="roofline", capacity=capacity)
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
        return {use.tensor for _, use in self.fast_uses()}

    def fast_uses(self) -> Iterator[tuple[int, Use]]:
        """Step and use, of all that are served from fast memory."""
        uses = ((at, use) for at, step in enumerate(self.problem.steps) for use in step.uses)
        fast = set(self.plan.fast_uses)
        return (each for number, each in enumerate(uses) if number in fast)


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
    # All in main memory is a plan.
    assert found.plan is not None
    return Planned(problem, found.plan)


def planned_prefetches(evidence: Evidence, found: Planned) -> frozenset[Prefetch]:
    """The plan's copies to fast memory, largest first: the step that needs each of them, and the one that it begins after.

    Copies from within loops, or for what is no operand by itself, are left out: XLA could not be told of them.
    """
    problem, plan = found
    reads: dict[int, list[int]] = {}
    for at, use in found.fast_uses():
        if not use.is_output:
            reads.setdefault(use.tensor, []).append(at)
    prefetches: dict[tuple[int, int], Prefetch] = {}
    copies = [copy for copy in plan.copies if copy.direction == "in" and copy.start > 0]
    for copy in sorted(copies, key=lambda copy: (-problem.tensors[copy.tensor].size, copy.start)):
        user = next((at for at in reads.get(copy.tensor, ()) if at >= copy.end), None)
        before = problem.steps[copy.start - 1].name
        if user is None or "/" in before or "/" in problem.steps[user].name:
            continue
        operand = evidence.operands.get((problem.steps[user].name, copy.tensor))
        if operand is not None and len(prefetches) < MOST_PREFETCHES:
            prefetches.setdefault((user, operand), Prefetch(problem.steps[user].name, operand, before))
    return frozenset(prefetches.values())


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
