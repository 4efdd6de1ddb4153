"""Candidates that map with a trained policy: roll-outs, the best of many, and a policy trained on for this loop body first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.portfolio.context import Context, Options
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.policies import PolicySource

if TYPE_CHECKING:
    from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy

POLICY = PolicySource(
    file="ppo.pt",
    variable="STOWPLAN_PPO_POLICY",
    command="stowplan train ppo",
    training="trained by imitation of plans, then on mappings of its own",
)

#: What a step of a first batch takes for an instruction: seconds, on one core at leisure.
STEP_SECONDS = 5e-3

#: Evaluations at most, and instructions placed in a deterministic run for each second of its limit.
BUDGET, DETERMINISTIC_PLACEMENTS = 20_000, 1_000


def candidates(problem: Problem, options: Options, others: int) -> list[Candidate]:
    """The learned candidates, the quick one first; where they cannot run they say why.

    ``others`` is how many candidates of other families run.
    """
    seconds = STEP_SECONDS * len(problem.instructions)
    return POLICY.candidates(options, others, quick="ppo", seconds=seconds, slow=("ppo_tuned",), module=__name__)


def ppo(problem: Problem, context: Context) -> None:
    """Roll-outs of the policy as it is, until time is up; the best of them."""
    from stowplan.portfolio.modulo_scheduling import candidates as heuristics
    from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts

    tally = heuristics.prepare(problem, context, "ppo")
    if tally is None or not problem.instructions or context.closed():
        return
    run = RollOuts(tally, _load(), context.seed(), repair=True)
    budget = _budget(context, tally.body.count)
    while tally.evaluations < budget and not context.closed():
        run.step(heuristics.least_open(context, tally), context.closed, budget - tally.evaluations)
    heuristics.report(context, tally, "ppo")


def ppo_tuned(problem: Problem, context: Context) -> None:
    """A batch of roll-outs, then the policy trained on for this loop body alone, until time is up."""
    from stowplan.portfolio.modulo_scheduling import candidates as heuristics
    from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts

    tally = heuristics.prepare(problem, context, "ppo_tuned")
    if tally is None or not problem.instructions or context.closed():
        return
    policy = _load()
    run = RollOuts(tally, policy, context.seed(), repair=True)
    budget = _budget(context, tally.body.count)
    while tally.best is None and tally.evaluations < budget and not context.closed():
        run.step(tally.body.least_ii, context.closed, budget - tally.evaluations)

    def take(plan: Plan) -> None:
        tally.offer(plan.ii, list(plan.tiles), list(plan.times))

    known: Plan | None = context.incumbent()[0]
    shown = [plan for plan in (tally.best, known) if plan is not None and all(len(route) <= 1 for route in plan.routes)]
    tuned = policy.fine_tune(
        run.problem,
        evaluations=max(1, budget - tally.evaluations) if context.options.deterministic else None,
        seed=context.seed(),
        demonstrations=[msgspec.structs.replace(plan, problem=run.problem.digest) for plan in shown],
        should_stop=context.closed,
        on_better=take,
    )
    tally.placements += tuned.trainer.evaluations * tally.body.count
    heuristics.report(context, tally, "ppo_tuned")


def _budget(context: Context, instructions: int) -> int:
    """Evaluations at most."""
    placements = context.work(DETERMINISTIC_PLACEMENTS)
    return BUDGET if placements is None else min(BUDGET, placements // max(1, instructions) + 1)


def _load() -> Policy:
    import torch

    from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy

    # Other candidates have the other cores; and sums must not depend on how many there are.
    torch.set_num_threads(1)
    return Policy.load(POLICY.path)
