"""The candidate that maps with a trained policy: roll-outs, the best of many."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stowplan import work_rates
from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Candidate
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.policies import PolicySource

if TYPE_CHECKING:
    from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy


def _read_policy(path: Path) -> Policy:
    from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy

    return Policy.load(path)


POLICY = PolicySource(
    file="ppo.pt",
    variable="STOWPLAN_PPO_POLICY",
    command="stowplan train ppo",
    training="trained by imitation of plans, then on mappings of its own",
    read=_read_policy,
)


class PolicyParameters(Parameters, frozen=True):
    """Parameters of the learned policy."""

    step_seconds: float = 5e-3
    """Seconds an instruction of a step of a first batch, on one core at leisure."""
    budget: int = 20_000
    """Evaluations at most."""


PARAMS = parameters(PolicyParameters, __name__)


def candidate(problem: Problem, options: Options, others: int) -> Candidate:
    """The learned candidate; where it cannot run it says why.

    ``others`` is how many candidates of other families run.
    """
    return POLICY.candidate("ppo", options, others, seconds=PARAMS.step_seconds * len(problem.instructions))


def ppo(problem: Problem, context: Context) -> None:
    """Roll-outs of the policy as it is, until time is up; the best of them."""
    from stowplan.portfolio.modulo_scheduling import candidates as heuristics
    from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts

    tally = heuristics.prepare(problem, context, "ppo")
    if tally is None or not problem.instructions or context.closed():
        return
    run, budget = RollOuts(tally, POLICY.load(), context.seed(), repair=True), _budget(context, tally.body.count)
    while tally.evaluations < budget and not context.closed():
        run.step(heuristics.least_open(context, tally), context.closed, budget - tally.evaluations)
    heuristics.report(context, tally, "ppo")


def _budget(context: Context, instructions: int) -> int:
    """Evaluations at most."""
    placements = context.work(work_rates.MODULO_POLICY_PLACEMENTS)
    return PARAMS.budget if placements is None else min(PARAMS.budget, placements // max(1, instructions) + 1)
