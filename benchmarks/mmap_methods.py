"""Players of MMapGame as functions of (game, seed, seconds, settings), and players of whole modules for table 3."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from mmap_runs import Method
from mmap_speedups import Player

from stowplan.learned_guidance.memory_mapping.baselines.evolution import evolve
from stowplan.learned_guidance.memory_mapping.baselines.random_play import play_at_random
from stowplan.learned_guidance.memory_mapping.baselines.tree_search import search_games
from stowplan.learned_guidance.memory_mapping.climbing import improve
from stowplan.learned_guidance.memory_mapping.curve import Best
from stowplan.learned_guidance.memory_mapping.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.kernel import CompiledGame, CompiledState, play_greedy
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan

#: More training steps than any time limit here allows.
NO_END = 1_000_000_000

#: Part of an agent's time that may go into demonstrations.
DEMONSTRATION_SHARE = 0.1


def _random(game: CompiledGame, seed: int, seconds: float, _: Sequence[str]) -> Best:
    return play_at_random(game, seed=seed, time_limit=seconds)


def _evolution(game: CompiledGame, seed: int, seconds: float, _: Sequence[str]) -> Best:
    return evolve(game, seed=seed, time_limit=seconds)


def _greedy(game: CompiledGame, seed: int, seconds: float, _: Sequence[str]) -> Best:
    """The one game that takes the largest reward at each move."""
    best, state = Best(), game.reset()
    play_greedy(game.tables, state.data)
    best.offer(state.return_ps, state.actions)
    return best


def _climb(game: CompiledGame, seed: int, seconds: float, _: Sequence[str]) -> Best:
    """Local search from the greedy game: what improves demonstrations, on its own."""
    state = CompiledState(game, game.reset().data)
    play_greedy(game.tables, state.data)
    return improve(game, state.actions, seed=seed, time_limit=seconds)


def _agent(game: CompiledGame, seed: int, seconds: float, settings: Sequence[str]) -> Best:
    """MMap-MuZero from scratch."""
    return _train(game, seed, seconds, settings)


def _demonstrated(game: CompiledGame, seed: int, seconds: float, settings: Sequence[str]) -> Best:
    """MMap-MuZero that begins with the plans of the constructive heuristics; making them is part of its time."""
    return _train(game, seed, seconds, settings, demonstrate=True)


def _search(game: CompiledGame, seed: int, seconds: float, _: Sequence[str]) -> Best:
    """Tree search on the true game, nothing learned (section 5.3, ablation)."""
    return search_games(game, seed=seed, time_limit=seconds)


def _learning(game: CompiledGame, seed: int, seconds: float, settings: Sequence[str]) -> Best:
    """The network alone: no search, the policy learns by policy gradient (section 5.3, ablation)."""
    return _train(game, seed, seconds, settings, use_search=False)


def _train(
    game: CompiledGame,
    seed: int,
    seconds: float,
    settings: Sequence[str],
    *,
    demonstrate: bool = False,
    use_search: bool = True,
) -> Best:
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
    from stowplan.learned_guidance.memory_mapping.muzero.training_config import TrainingConfig, with_settings

    torch.set_num_threads(1)
    began = time.monotonic()
    config = with_settings(TrainingConfig.cpu(training_steps=NO_END), list(settings))
    trainer = Trainer([game.problem], config if use_search else config.learning_only(), seed=seed)
    if demonstrate:
        for plan in _constructed(game.problem, began + DEMONSTRATION_SHARE * seconds):
            trainer.demonstrate(0, actions_of(game.problem, plan, game).actions)
    trainer.run(time_limit=seconds - (time.monotonic() - began))
    return trainer.best[0]


def _constructed(problem: Problem, until: float) -> list[Plan]:
    """Plans of the heuristics that the portfolio begins with, as far as they are done by a moment."""
    data = arrays.build(problem)
    plans = []
    for _, steps in heuristics.constructive(data):
        state, is_complete = heuristics.run(steps, lambda: time.monotonic() > until)
        if not is_complete:
            break
        plans.append(export_plan(problem, data, state))
    return plans


METHODS: dict[str, Method] = {
    "agent": _agent,
    "agent-demonstrated": _demonstrated,
    "evolution": _evolution,
    "random": _random,
    "search": _search,
    "learning": _learning,
    "climb": _climb,
    "greedy": _greedy,
}

#: Methods that settings of the training configuration change.
TRAINED = ("agent", "agent-demonstrated", "learning")

#: Both, search only, learning only.
ABLATION = ("agent", "search", "learning")


def settings_of(method: str, settings: Sequence[str]) -> tuple[str, ...]:
    """What of these settings concerns a method."""
    return tuple(settings) if method in TRAINED else ()


def players(path: Path, seconds: float) -> tuple[dict[str, Player], list[str]]:
    """The policy's ways to plan a module, and the names of the programs that it was trained on."""
    from stowplan.learned_guidance.memory_mapping.muzero.play import Played, Policy

    policy = Policy.load(path)

    def plan_of(problem: Problem, played: Played | None) -> Plan:
        if played is not None:
            return played.plan
        return Plan(problem=problem.digest, objective_ps=problem.all_slow_ps)

    def rollout(problem: Problem) -> Plan:
        return plan_of(problem, policy.rollout(problem))

    def searched(problem: Problem) -> Plan:
        end = time.monotonic() + seconds
        games = policy.searched(problem, should_stop=lambda: time.monotonic() > end)
        return plan_of(problem, max(games, key=lambda game: game.return_ps, default=None))

    def tuned(problem: Problem) -> Plan:
        return plan_of(problem, policy.fine_tune(problem, time_limit=seconds).best)

    found = {"policy": rollout, "policy+search": searched, "fine-tuned": tuned}
    return found, list(policy.file.provenance.programs)
