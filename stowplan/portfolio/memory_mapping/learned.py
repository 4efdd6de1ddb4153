"""The learned candidate: plays MMapGame, memory mapping as a game of one move for each access, with a trained policy."""

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
    """Read a policy from a checkpoint file."""
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    return Policy.load(path)


POLICY = PolicySource(
    file="mmap_muzero.pt",
    variable="STOWPLAN_POLICY",
    command="stowplan train muzero",
    training="trained by imitation of heuristics' plans, no games of its own",
    read=_read_policy,
)

#: The learned guide of the search, stored as plain arrays, which need no torch.
GUIDE: PolicySource[None] = PolicySource(
    file="mmap_guide.npz", variable="STOWPLAN_GUIDE", command="python -m benchmarks.guidance.train train"
)

#: Source of hints that the learned guide has computed.
LEARNED = "learned"


class GamesParameters(Parameters, frozen=True):
    """Parameters of games of the learned policy."""

    drawn: int = 3
    """Games with random actions, drawn close to the most likely ones, for each placement rule."""
    move_seconds: float = 2e-3
    """Seconds for each move of a game of most likely actions, on one idle core."""


PARAMS = parameters(GamesParameters, __name__)


def candidate(problem: Problem, options: Options, others: int) -> Candidate:
    """The learned candidate; if it cannot run, it carries the reason.

    ``others`` is the number of candidates of other families in the run.
    """
    return POLICY.candidate("policy", options, others, seconds=PARAMS.move_seconds * problem.use_count)


def policy(problem: Problem, context: Context) -> None:
    """The candidate ``policy``: games with each placement rule, of the most likely actions first, then also of random ones."""
    if not problem.use_count:
        return
    player = POLICY.load()
    for drawn in (0, PARAMS.drawn):
        played = player.best_rollout(problem, drawn=drawn, seed=context.seed(), should_stop=context.closed)
        if played is not None:
            context.plan(played.plan, "policy")
