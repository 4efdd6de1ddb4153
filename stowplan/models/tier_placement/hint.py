"""Hints for tier placement: for each tensor and each tier how much speaks for putting the one in the other.

Tensors are numbered as in :mod:`stowplan.models.tier_placement.structure`: layer by layer, weights where there are any,
then the output. Values are named by the tiers; those of a tensor count beside each other, and need not add up to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.hint import Hint, of_values
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem


def decisions(problem: Problem) -> list[tuple[int, bool]]:
    """(layer, whether it is its output) of each tensor, in the order of a hint's values."""
    found = []
    for number, layer in enumerate(problem.layers):
        found += [(number, False)] * bool(layer.weight_bytes) + [(number, True)]
    return found


def counts(problem: Problem) -> dict[str, int]:
    """How many values of each name a hint has: one for each tensor, by the names of the tiers."""
    return dict.fromkeys((tier.name for tier in problem.tiers), len(decisions(problem)))


def hint(
    problem: Problem,
    shares: Sequence[Sequence[float]],
    *,
    confidence: Sequence[float] = (),
    plan: Plan | None = None,
    source: str = "",
) -> Hint:
    """A hint of values of shape ``[tiers, tensors]``, in [0, 1], for a problem."""
    return of_values(
        problem,
        {tier.name: row for tier, row in zip(problem.tiers, shares, strict=True)},
        confidence=confidence,
        plan=plan,
        source=source,
    )


def of_plan(problem: Problem, plan: Plan, source: str = "plan") -> Hint:
    """The values that a valid plan has, 0 or 1, and the plan itself."""
    stands = [plan.output_tiers[layer] if is_output else plan.weight_tiers[layer] for layer, is_output in decisions(problem)]
    shares = [[float(at == tier) for at in stands] for tier in range(len(problem.tiers))]
    return hint(problem, shares, plan=plan, source=source)
