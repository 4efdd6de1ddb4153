"""Hints for tier placement: for each tensor and each tier how much speaks for putting the one in the other.

Tensors are numbered as in :func:`stowplan.models.tier_placement.plan.placed`: layer by layer, weights where there are any,
then the output. Values are named by the tiers; those of a tensor count beside each other, and need not add up to 1.

From a hint for an earlier version comes one for the version at hand: layers are matched by what they are
(:mod:`stowplan.models.hint`), tiers by name. What has no counterpart is left open, with a confidence of 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.hint import Hint, HintValues, Steps, carried, check_hint, matched, of_values, trust
from stowplan.models.tier_placement.plan import Placed, Plan, placed
from stowplan.models.tier_placement.problem import Problem


def counts(problem: Problem) -> dict[str, int]:
    """How many values of each name a hint has: one for each tensor, by the names of the tiers."""
    return dict.fromkeys((tier.name for tier in problem.tiers), len(placed(problem)))


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
    stands = [tensor.tier(plan) for tensor in placed(problem)]
    shares = [[float(at == tier) for at in stands] for tier in range(len(problem.tiers))]
    return hint(problem, shares, plan=plan, source=source)


def transferred(problem: Problem, earlier: Problem, given: Hint) -> Hint:
    """The hint for a network that a hint for an earlier version of it stands for.

    Parameters
    ----------
    problem
        What is to be solved.
    earlier
        The version that the hint is for.
    given
        With values, for ``earlier``; its plan is left behind.

    Raises
    ------
    InputError, UsageError
        The hint is not for the earlier version.
    """
    check_hint(earlier, given, VALUES)
    known = {decision: number for number, decision in enumerate(placed(earlier))}
    before = matched_layers(problem, earlier)
    numbers = [known.get(Placed(before[layer], is_output)) for layer, is_output in placed(problem)]
    shares = [carried(given, tier.name, numbers, 0.0) for tier in problem.tiers]
    return hint(problem, shares, confidence=trust(given, numbers), source=given.source)


def matched_layers(problem: Problem, earlier: Problem) -> list[int]:
    """For each layer of a network the layer of an earlier version that it was, -1 for none; shape ``[layers]``."""
    return matched(_steps(problem), _steps(earlier))


def _steps(problem: Problem) -> Steps:
    layers = problem.layers
    return Steps(
        [layer.name for layer in layers],
        [(layer.op, layer.output_bytes, layer.weight_bytes, len(layer.inputs)) for layer in layers],
        [(layer.op, bool(layer.weight_bytes)) for layer in layers],
        [layer.inputs for layer in layers],
    )


#: What hints for this kind may say.
VALUES = HintValues(counts, of_plan, transferred)
