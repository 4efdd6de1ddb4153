"""The candidate that plays MMapGame with a trained policy: games of its likeliest actions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Candidate
from stowplan.models.memory_mapping.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.policies import PolicySource

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy


def _read_policy(path: Path) -> Policy:
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    return Policy.load(path)


POLICY = PolicySource(
    file="mmap_muzero.pt",
    variable="STOWPLAN_POLICY",
    command="stowplan train muzero",
    training="trained by imitation of heuristics' plans, no games of its own",
    read=_read_policy,
)

#: The search's guide: plain arrays, which need no torch.
GUIDE: PolicySource[None] = PolicySource(
    file="mmap_guide.npz", variable="STOWPLAN_GUIDE", command="python -m benchmarks.guidance.train train"
)

#: Source of the hints that are the guide's.
LEARNED = "learned"


class GamesParameters(Parameters, frozen=True):
    """Parameters of games of the learned policy."""

    drawn: int = 3
    """Games with each rule of placing whose actions are drawn near the likeliest."""
    move_seconds: float = 2e-3
    """Seconds a move of a likeliest game, on one core at leisure."""


PARAMS = parameters(GamesParameters, __name__)


def candidate(problem: Problem, options: Options, others: int) -> Candidate:
    """The learned candidate; where it cannot run it says why.

    ``others`` is how many candidates of other families run.
    """
    return POLICY.candidate("policy", options, others, seconds=PARAMS.move_seconds * problem.use_count)


def policy(problem: Problem, context: Context) -> None:
    """Games with each rule of placing: the likeliest actions, then these and some drawn near them."""
    if not problem.use_count:
        return
    player = POLICY.load()
    for drawn in (0, PARAMS.drawn):
        played = player.best_rollout(problem, drawn=drawn, seed=context.seed(), should_stop=context.closed)
        if played is not None:
            context.plan(played.plan, "policy")
