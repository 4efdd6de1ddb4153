"""Hints for tier placement: a value in [0, 1] for each tensor and each tier, which says how good it is to put the tensor there.

A *tier* is one memory of the hierarchy, and a tensor is the weights or the output of a layer. Tensors are numbered as in
:func:`stowplan.models.tier_placement.plan.placed`: by layer, and weights before the output. There is a list of values for each
tier, with the name of the tier. The values of a tensor are compared with each other and need not add up to 1.

A hint for an earlier version of a network can be transferred to the current version. Layers are then matched by their
properties (:mod:`stowplan.models.hint`) and tiers by name. Tensors without a counterpart get confidence 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.hint import Hint, HintValues, Steps, carried, check_hint, matched, of_values, trust
from stowplan.models.tier_placement.plan import Placed, Plan, placed
from stowplan.models.tier_placement.problem import Problem


def counts(problem: Problem) -> dict[str, int]:
    """The number of values that a hint has under each name: one for each tensor. The names are those of the tiers."""
    return dict.fromkeys((tier.name for tier in problem.tiers), len(placed(problem)))


def hint(
    problem: Problem,
    shares: Sequence[Sequence[float]],
    *,
    confidence: Sequence[float] = (),
    plan: Plan | None = None,
    source: str = "",
) -> Hint:
    """Build a hint for a problem from values in [0, 1], ``shares``, of shape ``[tiers, tensors]``.

    ``confidence`` has a number in [0, 1] for each tensor, which says how reliable its values are; empty for full confidence.
    ``plan`` is part of the hint unless it is None. Nothing is checked, except that ``shares`` has a row for each tier:
    otherwise ValueError is raised.
    """
    return of_values(
        problem,
        {tier.name: row for tier, row in zip(problem.tiers, shares, strict=True)},
        confidence=confidence,
        plan=plan,
        source=source,
    )


def of_plan(problem: Problem, plan: Plan, source: str = "plan") -> Hint:
    """Build a hint that contains a valid plan, and the values 0 and 1 that correspond to it.

    ``source`` names the origin of the plan, for people.
    """
    tier_of = [tensor.tier(plan) for tensor in placed(problem)]
    shares = [[float(at == tier) for at in tier_of] for tier in range(len(problem.tiers))]
    return hint(problem, shares, plan=plan, source=source)


def transferred(problem: Problem, earlier: Problem, given: Hint) -> Hint:
    """Transfer a hint from an earlier version of a network to the current one.

    Parameters
    ----------
    problem
        The current version.
    earlier
        The version that the hint is for.
    given
        A hint with values for ``earlier``. Its plan is not transferred.

    Raises
    ------
    InputError
        The hint is not for the earlier version, or its values are not valid.
    UsageError
        ``earlier`` is not a problem.
    """
    check_hint(earlier, given, VALUES)
    number_of = {decision: number for number, decision in enumerate(placed(earlier))}
    before = matched_layers(problem, earlier)
    numbers = [number_of.get(Placed(before[layer], is_output)) for layer, is_output in placed(problem)]
    shares = [carried(given, tier.name, numbers, 0.0) for tier in problem.tiers]
    return hint(problem, shares, confidence=trust(given, numbers), source=given.source)


def matched_layers(problem: Problem, earlier: Problem) -> list[int]:
    """For each layer of a network, the corresponding layer of an earlier version, or -1; shape ``[layers]``."""
    return matched(_steps(problem), _steps(earlier))


def _steps(problem: Problem) -> Steps:
    """The layers of a network as steps in the form for matching."""
    layers = problem.layers
    return Steps(
        [layer.name for layer in layers],
        [(layer.op, layer.output_bytes, layer.weight_bytes, len(layer.inputs)) for layer in layers],
        [(layer.op, bool(layer.weight_bytes)) for layer in layers],
        [layer.inputs for layer in layers],
    )


#: The lists of values that hints for tier placement may have.
VALUES = HintValues(counts, of_plan, transferred)
