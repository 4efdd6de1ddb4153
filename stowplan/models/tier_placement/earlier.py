"""A hint for one version of a network from a hint for an earlier one, as a build sees them: most layers are the same.

Layers are matched by what they are (:mod:`stowplan.models.earlier`), tiers by name. What has no counterpart is left
open, with a confidence of 0.
"""

from __future__ import annotations

from stowplan.models.earlier import Steps, carried, matched, trust
from stowplan.models.hint import Hint, check
from stowplan.models.tier_placement.hint import decisions, hint
from stowplan.models.tier_placement.problem import Problem


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
    check(earlier, given)
    known = {decision: number for number, decision in enumerate(decisions(earlier))}
    before = matched_layers(problem, earlier)
    numbers = [known.get((before[layer], is_output)) for layer, is_output in decisions(problem)]
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
