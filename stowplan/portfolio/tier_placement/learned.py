"""Candidates that place with a trained graph network: one forward pass, and a policy trained on for this network first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stowplan.errors import InputError
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import find_overload
from stowplan.portfolio.context import Context, Options, is_overloaded
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.policies import PolicySource

if TYPE_CHECKING:
    from stowplan.learned_guidance.tier_placement.egrl.policy import Policy

POLICY = PolicySource(
    file="egrl.pt",
    variable="STOWPLAN_EGRL_POLICY",
    command="stowplan train egrl",
    training="trained by imitation of linear relaxations, no evaluations of its own",
    policy="stowplan.learned_guidance.tier_placement.egrl.policy:Policy",
)

#: What a forward pass and decoding take for a layer: seconds, on one core at leisure.
LAYER_SECONDS = 1e-4

#: Beyond this many layers, the local search has its first plan after the policy, and one that is further from the bound.
LARGE = 1_500

#: Evaluations of a deterministic run, with the steps of the learner that go with them, for each second of its limit, times the
#: layers of the network.
DETERMINISTIC_LAYERS = 400


def candidates(problem: Problem, options: Options, others: int) -> list[Candidate]:
    """The learned candidates, the quick one first; where they cannot run they say why.

    ``others`` is how many candidates of other families run.
    """
    unavailable = "" if problem.features else "needs node features, as reading a network gives; the problem has none"
    return POLICY.candidates(
        options,
        others,
        quick="egrl",
        seconds=LAYER_SECONDS * len(problem.layers),
        slow=("egrl_tuned",),
        module=__name__,
        unavailable=unavailable,
        always=len(problem.layers) > LARGE,
    )


def egrl(problem: Problem, context: Context) -> None:
    """The plan of one forward pass."""
    if not is_overloaded(context, find_overload(problem)):
        policy = POLICY.load()
        if not context.closed():
            _placed(policy, problem, context)


def egrl_tuned(problem: Problem, context: Context) -> None:
    """That, then the policy trained on for this network alone, until time is up; the best plan at hand is shown to it."""
    if is_overloaded(context, find_overload(problem)):
        return
    policy = POLICY.load()
    first = None if context.closed() else _placed(policy, problem, context)
    if first is None:
        return
    best = first.objective_ps

    def report(plan: Plan) -> None:
        nonlocal best
        if plan.objective_ps < best:
            best = plan.objective_ps
            context.plan(plan, "egrl_tuned")

    known: Plan | None = context.incumbent()[0]
    # With offsets, the chip may put what it is shown elsewhere.
    shown = [] if problem.address_spaces else [each for each in (first, known) if each is not None]
    try:
        tuned = policy.fine_tune(
            problem,
            evaluations=context.work(DETERMINISTIC_LAYERS, len(problem.layers), least=1),
            seed=context.seed(),
            demonstrations=shown,
            should_stop=context.closed,
            on_better=report,
        )
    except InputError as error:  # the chip's compiler finds no map to measure others by
        context.note(f"egrl_tuned: {error}")
    else:
        context.note(f"egrl_tuned: {tuned.trainer.evaluations} evaluations")


def _placed(policy: Policy, problem: Problem, context: Context) -> Plan | None:
    """The plan of one forward pass, reported; None where there is none, or the policy is for other chips."""
    try:
        plan = policy.place(problem)
    except InputError as error:
        context.note(f"egrl: {error}")
        return None
    context.plan(plan, "egrl")
    return plan
