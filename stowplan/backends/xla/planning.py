"""Plans of ours for a program under what its trials have shown, from which steers are made."""

from __future__ import annotations

import random
from typing import NamedTuple

from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.score import with_freedoms
from stowplan.hardware.costs import make_problem
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.solve import solve

#: Seconds that a plan may take; the heuristics' plan is within a percent by then, and a compile takes longer.
PLAN_SECONDS = 6.0

#: What it gets where the time is nearly over.
_LEAST_SECONDS = 0.2


class Planned(NamedTuple):
    """A plan of ours, and the problem it is for."""

    problem: Problem
    plan: Plan

    @property
    def tensors(self) -> set[int]:
        """Tensors that some step finds in fast memory."""
        uses = [use.tensor for step in self.problem.steps for use in step.uses]
        return {uses[number] for number in self.plan.fast_uses}


def planned(evidence: Evidence, chance: random.Random, start: Trial, capacity: int | None = None) -> Planned:
    """A plan of the heuristics; the same for equal evidence and seed, unless the evidence's deadline cuts it short.

    It has XLA's freedoms, begins from what XLA made of ``start``, within that trial's capacity or ``capacity`` bytes, is no
    worse than XLA's plan by what the trials have shown, and differs from it only where that gains something.
    """
    problem = with_freedoms(
        make_problem(
            evidence.program,
            evidence.scorer.target,
            cost_model="signatures",
            capacity=start.steer.capacity if capacity is None else capacity,
            signatures=evidence.costs,
        )
    )
    hint = evidence.scorer.plan(start.compiled, problem).plan if start.has_fast_memory else None
    result = solve(
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
    assert result.plan is not None
    return Planned(problem, result.plan)
