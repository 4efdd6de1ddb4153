"""A policy of MMapGame as a guide: what one game of it says of each access, for searches and exact models."""

from __future__ import annotations

from collections.abc import Callable

from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledGame
from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.hint import of_plan
from stowplan.models.memory_mapping.problem import Problem


def policy_hint(
    policy: Policy,
    problem: Problem,
    *,
    shown: Hint | None = None,
    games: int = 1,
    temperature: float = 0.5,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> Hint | None:
    """The values of the best game that a policy plays, and its plan.

    Parameters
    ----------
    policy
        Any policy of MMapGame.
    problem
        The problem to guide; the game is played by its own rules (no stalls), so that the plan is valid for it.
    shown
        A hint that the policy may see, such as the relaxation's.
    games
        Games played: the one of the likeliest actions, the others drawn at ``temperature``, side by side.
    should_stop
        Asked between moves.

    Returns
    -------
    Hint
        Values 0 and 1 for every access, and the plan; None where the game was stopped, or there is nothing to decide.
    """
    game = CompiledGame(problem)
    if not game.moves:
        return None
    found = [played for played in [policy.rollout(game, hint=shown, should_stop=should_stop)] if played is not None]
    if games > 1 and found:
        found += policy.rollouts(game, games - 1, temperature=temperature, seed=seed, hint=shown, should_stop=should_stop)
    if not found:
        return None
    best = max(found, key=lambda played: played.return_ps)
    return of_plan(problem, best.plan, source="MMap-MuZero")
