"""The learned candidate for tier placement: it places all tensors by one forward pass of a trained graph network.

The network is a *policy* of EGRL: it gives, for every tensor (the weights or the output of a layer), a probability of each
*tier* of the chip's memory hierarchy. *Decoding* chooses the tiers by these probabilities so that no capacity is exceeded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stowplan.errors import InputError
from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Candidate
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import find_overload
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.policies import PolicySource
from stowplan.portfolio.presolve import report_if_overloaded

if TYPE_CHECKING:
    from stowplan.learned_guidance.tier_placement.egrl.policy import Policy


def _read_policy(path: Path) -> Policy:
    """Read a policy from a checkpoint file; raises InputError if the file is no policy, is damaged or of another version."""
    from stowplan.learned_guidance.tier_placement.egrl.policy import Policy

    return Policy.load(path)


POLICY = PolicySource(
    file="egrl.pt",
    variable="STOWPLAN_EGRL_POLICY",
    command="stowplan train egrl",
    training="trained by imitation of linear relaxations, no evaluations of its own",
    read=_read_policy,
)


class PolicyParameters(Parameters, frozen=True):
    """Parameters of the learned policy."""

    layer_seconds: float = 1e-4
    """Seconds for each layer of the network, for a forward pass and decoding on one idle core."""
    large: int = 1_500
    """Number of layers above which the policy always runs. With so many layers, the local search finds its first plan later
    than the policy does, and that plan is worse than the policy's."""


PARAMS = parameters(PolicyParameters, __name__)


def candidate(problem: Problem, options: Options, others: int) -> Candidate:
    """Describe the learned candidate. If it cannot run, ``Candidate.unavailable`` gives the reason.

    ``others`` is the number of candidates of other families in the run. Raises OSError if the policy's file cannot be read.
    """
    unavailable = "" if problem.features else "needs node features, as reading a network gives; the problem has none"
    return POLICY.candidate(
        "egrl",
        options,
        others,
        seconds=PARAMS.layer_seconds * len(problem.layers),
        unavailable=unavailable,
        always=len(problem.layers) > PARAMS.large,
    )


def egrl(problem: Problem, context: Context) -> None:
    """The candidate ``egrl``: it reports the plan of one forward pass.

    It leaves a note instead if the policy is for a chip with another number of tiers or for other node features, or if some
    tensor finds no place. Raises InputError if the policy's file is no policy or is damaged.
    """
    if report_if_overloaded(context, find_overload(problem)):
        return
    policy = POLICY.load()
    if context.closed():
        return
    try:
        context.plan(policy.place(problem), "egrl")
    except InputError as error:
        context.note(f"egrl: {error}")
