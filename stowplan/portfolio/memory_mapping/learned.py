"""The learned candidate for memory mapping: it plays MMapGame with a trained policy.

In MMapGame (``docs/reference/mmap-game.md``), a plan is made by a sequence of moves, one for each access of a tensor. A
*policy* is a neural network that gives a probability for each possible action of a move. The actions do not choose offsets in
fast memory. A fixed rule does, for example that a tensor gets the lowest free offset, and each game has one rule.
"""

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
    """Read a policy from a checkpoint file; raises InputError if the file is no policy, is damaged or of another version."""
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

    return Policy.load(path)


POLICY = PolicySource(
    file="mmap_muzero.pt",
    variable="STOWPLAN_POLICY",
    command="stowplan train muzero",
    training="trained by imitation of heuristics' plans, no games of its own",
    read=_read_policy,
)

#: The learned guide of the search: a network that computes a hint. It is stored as plain arrays, so that it does not need
#: torch.
GUIDE: PolicySource[None] = PolicySource(
    file="mmap_guide.npz", variable="STOWPLAN_GUIDE", command="python -m benchmarks.guidance.train train"
)

#: The source that hints of the learned guide name.
LEARNED = "learned"


class GamesParameters(Parameters, frozen=True):
    """Parameters of the games that the learned policy plays."""

    drawn: int = 3
    """Number of games with random actions for each rule that chooses offsets. The actions are drawn so that they are mostly the
    most likely ones."""
    move_seconds: float = 2e-3
    """Seconds for each move of a game in which every action is the most likely one, on one idle core."""


PARAMS = parameters(GamesParameters, __name__)


def candidate(problem: Problem, options: Options, others: int) -> Candidate:
    """Describe the learned candidate. If it cannot run, ``Candidate.unavailable`` gives the reason.

    ``others`` is the number of candidates of other families in the run. Raises OSError if the policy's file cannot be read.
    """
    return POLICY.candidate("policy", options, others, seconds=PARAMS.move_seconds * problem.use_count)


def policy(problem: Problem, context: Context) -> None:
    """The candidate ``policy``: it plays games with each rule for offsets and reports the best plan.

    At first, it plays only games in which every action is the most likely one. Then it plays them again, together with games of
    random actions. It reports nothing if the problem has no uses, or if no game ends in time. Raises InputError if the policy's
    file is no policy or is damaged.
    """
    if not problem.use_count:
        return
    player = POLICY.load()
    for drawn in (0, PARAMS.drawn):
        played = player.best_rollout(problem, drawn=drawn, seed=context.seed(), should_stop=context.closed)
        if played is not None:
            context.plan(played.plan, "policy")
