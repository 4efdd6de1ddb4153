"""Candidates that play MMapGame with a trained policy: likeliest games, games drawn, and a policy trained on first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.context import Context, Options
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.policies import PolicySource

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
    from stowplan.learned_guidance.memory_mapping.muzero.play import Played, Policy

POLICY = PolicySource(
    file="mmap_muzero.pt",
    variable="STOWPLAN_POLICY",
    command="stowplan train muzero",
    training="trained by imitation of heuristics' plans, no games of its own",
    policy="stowplan.learned_guidance.memory_mapping.muzero.play:Policy",
)

#: The search's guide: plain arrays, which need no torch.
GUIDE = PolicySource(file="mmap_guide.npz", variable="STOWPLAN_GUIDE", command="python -m benchmarks.guidance.train train")

#: Source of the hints that are the guide's.
LEARNED = "learned"

#: What a move of a likeliest game takes: seconds, on one core at leisure.
MOVE_SECONDS = 2e-3

#: Games side by side, and temperatures at which they are drawn in turn.
GAMES, TEMPERATURES = 16, (0.3, 0.6, 1.0)

#: What a move costs that is drawn with others beside it, in moves of a likeliest game; to size deterministic work.
DRAWN_COST = 4

#: Part of the time, and rounds in a deterministic run, of local search from the plan to learn from.
LOCAL_SEARCH_SHARE, LOCAL_SEARCH_ROUNDS = 0.1, 2000

#: Training steps of a deterministic run for each second of its limit.
DETERMINISTIC_STEPS = 2


def candidates(problem: Problem, options: Options, others: int) -> list[Candidate]:
    """The learned candidates, the quick one first; where they cannot run they say why.

    ``others`` is how many candidates of other families run.
    """
    slow, seconds = ("policy_search", "policy_tuned"), MOVE_SECONDS * problem.use_count
    return POLICY.candidates(options, others, quick="policy", seconds=seconds, slow=slow, module=__name__)


def policy(problem: Problem, context: Context) -> None:
    """One game of the policy's likeliest actions."""
    if problem.use_count:
        _report(context, "policy", [POLICY.load().rollout(problem, should_stop=context.closed)])


def policy_search(problem: Problem, context: Context) -> None:
    """Likeliest actions, then games drawn, until time is up."""
    if not problem.use_count:
        return
    from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame

    player = POLICY.load()
    for played in _games(player, CompiledGame(problem, placing=player.config.placing), context):
        _report(context, "policy_search", played)
        if context.closed():
            return


def policy_tuned(problem: Problem, context: Context) -> None:
    """The policy trained on for this program alone, with the best plan known to learn from; the best game on the way."""
    if not problem.use_count:
        return
    from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
    from stowplan.learned_guidance.memory_mapping.game.local_search import improve_plan
    from stowplan.learned_guidance.memory_mapping.muzero.play import TUNING, Played

    player = POLICY.load()
    game = CompiledGame(problem, placing=player.config.placing)
    first = player.rollout(game, should_stop=context.closed)
    _report(context, "policy_tuned", [first])
    shown = [] if first is None else [first.actions]
    known: Plan | None = context.incumbent()[0]
    if known is not None and known.residencies:
        limit: dict[str, Any] = {"time_limit": LOCAL_SEARCH_SHARE * context.remaining()}
        if context.options.deterministic:
            limit = {"rounds": LOCAL_SEARCH_ROUNDS}
        improved = improve_plan(game, known, seed=context.seed(), should_stop=context.closed, **limit)
        # Under a name of its own: that it is better than the plan it began with is not the policy's doing.
        if improved.actions is not None:
            context.plan(Played.of(game, improved.actions).plan, "local_search")
            shown.append(improved.actions)
    player.fine_tune(
        problem,
        training_steps=context.work(DETERMINISTIC_STEPS, least=1),
        seed=context.seed(),
        demonstrations=shown,
        changes=TUNING,
        should_stop=context.closed,
        on_better=lambda played: context.plan(played.plan, "policy_tuned"),
    )


def _games(player: Policy, game: CompiledGame, context: Context) -> Iterator[list[Played | None]]:
    """Games as they are asked for: without end, or as many as a deterministic run has time for at leisure."""
    seed, stop = context.seed(), context.closed
    yield [player.rollout(game, should_stop=stop)]
    # Likeliest games and drawn ones, in a third of the limit.
    seconds = DRAWN_COST * MOVE_SECONDS * len(game.moves)
    rounds, number = context.work(1, 3 * max(seconds, 1e-3), least=1), 0
    while rounds is None or number < rounds:
        # No two games from the same random numbers.
        mixed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        heat = TEMPERATURES[number % len(TEMPERATURES)]
        yield [*player.rollouts(game, GAMES, temperature=heat, seed=mixed, should_stop=stop)]
        number += 1


def _report(context: Context, source: str, played: list[Played | None]) -> None:
    """Report the best of some games, where any was finished."""
    finished = [each for each in played if each is not None]
    if finished:
        context.plan(max(finished, key=lambda each: each.return_ps).plan, source)
