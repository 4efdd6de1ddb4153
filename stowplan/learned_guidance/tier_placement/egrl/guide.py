"""A trained graph network's posterior as a hint: how much it believes in each tier for each tensor."""

from __future__ import annotations

import numpy as np

from stowplan.learned_guidance.tier_placement.egrl.policy import Policy
from stowplan.models.hint import Hint
from stowplan.models.tier_placement.hint import decisions, hint
from stowplan.models.tier_placement.problem import Problem

SOURCE = "egrl"


def policy_hint(policy: Policy, problem: Problem) -> Hint:
    """The probabilities of one forward pass, as the values of a hint.

    Raises
    ------
    InputError
        As :meth:`~stowplan.learned_guidance.tier_placement.egrl.policy.Policy.posterior`.
    """
    posterior = np.clip(policy.posterior(problem), 0.0, 1.0).astype(np.float64)
    # Of each layer first the weights, then the output.
    shares = np.array([posterior[layer, int(is_output)] for layer, is_output in decisions(problem)])
    return hint(problem, shares.T.tolist(), source=SOURCE)
