"""The learned candidate for modulo scheduling: it maps instructions to tiles and slots by roll-outs of a trained policy.

A *tile* is a processing element, and a *slot* is a clock modulo the initiation interval. A *policy* is a neural network that
gives a probability for each place (tile and slot) of the next instruction. A *roll-out* is one attempt to place all
instructions (:mod:`.rollouts`).
"""

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
    """Read a policy from a checkpoint file; raises InputError if the file is no policy, is damaged or of another version."""
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
    """Seconds for each instruction in the first batch of roll-outs, on one idle core."""
    budget: int = 20_000
    """Largest number of evaluations that the candidate makes. An evaluation is the work of placing every instruction once."""


PARAMS = parameters(PolicyParameters, __name__)


def candidate(problem: Problem, options: Options, others: int) -> Candidate:
    """Describe the learned candidate. If it cannot run, ``Candidate.unavailable`` gives the reason.

    ``others`` is the number of candidates of other families in the run. Raises OSError if the policy's file cannot be read.
    """
    return POLICY.candidate("ppo", options, others, seconds=PARAMS.step_seconds * len(problem.instructions))


def ppo(problem: Problem, context: Context) -> None:
    """The candidate ``ppo``: it makes roll-outs of the policy until the time or the budget of evaluations is used up.

    If the machine has registers in which values wait, it only leaves a note. Raises InputError if the policy's file is no
    policy or is damaged.
    """
    from stowplan.portfolio.modulo_scheduling import candidates as heuristics
    from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts

    if problem.machine.registers:
        context.note("the policy has no registers: left to others")
        return
    tally = heuristics.prepare(problem, context, "ppo")
    if tally is None or not problem.instructions or context.closed():
        return
    run, budget = RollOuts(tally, POLICY.load(), context.seed(), repair=True), _budget(context, tally.body.count)
    while tally.evaluations < budget and not context.closed():
        run.step(heuristics.least_unrefuted_ii(context, tally), context.closed, budget - tally.evaluations)
    heuristics.report(context, tally, "ppo")


def _budget(context: Context, instructions: int) -> int:
    """The largest number of evaluations, which the work limit of a deterministic run may lower."""
    placements = context.work(work_rates.MODULO_POLICY_PLACEMENTS)
    return PARAMS.budget if placements is None else min(PARAMS.budget, placements // max(1, instructions) + 1)
