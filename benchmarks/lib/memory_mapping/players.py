"""Players of MMapGame as functions of (game, seed, seconds, settings), and a policy as a player of whole modules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from benchmarks.lib.memory_mapping.evolution import evolve
from benchmarks.lib.memory_mapping.random_play import play_at_random
from benchmarks.lib.memory_mapping.small_programs import small_program
from benchmarks.lib.memory_mapping.tree_search import search_games
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState, play_greedy
from stowplan.learned_guidance.memory_mapping.game.game import Best
from stowplan.learned_guidance.memory_mapping.game.local_search import improve
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.training.settings import with_settings
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping.learned import PARAMS

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

Method = Callable[[CompiledGame, int, float, Sequence[str]], Best]
"""Game, seed, seconds, settings -> the best game and its curve."""

Player = Callable[[Problem], Plan]

#: Seconds of a first, short run that compiles and loads code.
WARM_UP_SECONDS = 3.0

#: More training steps than any time limit here allows.
NO_END = 1_000_000_000

#: A setting of a series that names the device of torch.
DEVICE = "device="


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


def _local_search(game: CompiledGame, seed: int, seconds: float, _: Sequence[str]) -> Best:
    """Local search from the greedy game: what improves demonstrations, on its own."""
    state = CompiledState(game, game.reset().data)
    play_greedy(game.tables, state.data)
    return improve(game, state.actions, seed=seed, time_limit=seconds)


def _agent(game: CompiledGame, seed: int, seconds: float, settings: Sequence[str]) -> Best:
    """MMap-MuZero from scratch."""
    return _train(game, seed, seconds, settings)


def _self_play(game: CompiledGame, seed: int, seconds: float, settings: Sequence[str]) -> Best:
    """The ``cpu`` preset by self-play alone: small network, 16 Gumbel simulations, nothing that the paper does not have."""

    def change(config: TrainingConfig) -> TrainingConfig:
        # No biases, local search, restarts, and imitation of the best games.
        return config.changed(
            warm_start_moves=0,
            exploration_bias_fraction=0.0,
            local_search_moves=0,
            restart_fraction=0.0,
            elite_games=0,
            kept_fraction=0.0,
            imitation=0.0,
        )

    return _train(game, seed, seconds, settings, change=change)


def _paper(game: CompiledGame, seed: int, seconds: float, settings: Sequence[str]) -> Best:
    """The ``paper`` preset: table 6, a network of 10 million weights, PUCT with 400 simulations."""
    return _train(game, seed, seconds, settings, preset=TrainingConfig.paper)


def _warm_start(game: CompiledGame, seed: int, seconds: float, settings: Sequence[str]) -> Best:
    """The agent's warm-start episodes and nothing else: exploration biases and restarts, no network, no search."""

    def change(config: TrainingConfig) -> TrainingConfig:
        return config.changed(warm_start_moves=NO_END, local_search_moves=0)

    return _train(game, seed, seconds, settings, change=change, is_warm_start=True)


def _search(game: CompiledGame, seed: int, seconds: float, _: Sequence[str]) -> Best:
    """Tree search on the true game, nothing learned (section 5.3, ablation)."""
    return search_games(game, seed=seed, time_limit=seconds)


def _train(
    game: CompiledGame,
    seed: int,
    seconds: float,
    settings: Sequence[str],
    *,
    is_warm_start: bool = False,
    preset: Callable[..., TrainingConfig] = TrainingConfig.cpu,
    change: Callable[[TrainingConfig], TrainingConfig] = lambda config: config,
) -> Best:
    import torch

    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
    from stowplan.learned_guidance.training.run import run

    torch.set_num_threads(1)
    began = time.monotonic()
    # Where the network is belongs to no configuration.
    device = next((setting.removeprefix(DEVICE) for setting in settings if setting.startswith(DEVICE)), "cpu")
    hyperparameters = [setting for setting in settings if not setting.startswith(DEVICE)]
    config = change(with_settings(preset(training_steps=NO_END), hyperparameters))
    trainer = Trainer([game.problem], config, seed=seed, device=device)
    if is_warm_start:
        # A time limit would leave half of the time to learning.
        run(trainer, should_stop=lambda: time.monotonic() >= began + seconds)
    else:
        run(trainer, time_limit=began + seconds - time.monotonic())
    return trainer.best[0]


METHODS: dict[str, Method] = {
    "agent": _agent,
    "self-play": _self_play,
    "paper": _paper,
    "warm-start": _warm_start,
    "evolution": _evolution,
    "random": _random,
    "search": _search,
    "local-search": _local_search,
    "greedy": _greedy,
}

#: Methods that settings of the training configuration change.
TRAINED = ("agent", "self-play", "paper", "warm-start")


def settings_of(method: str, settings: Sequence[str]) -> tuple[str, ...]:
    """What of these settings concerns a method."""
    return tuple(settings) if method in TRAINED else ()


def policy_player(policy: Policy) -> Player:
    """What the portfolio's candidate plays: with each rule of placing the likeliest actions, and some drawn near them."""

    def plan(problem: Problem) -> Plan:
        played = policy.best_rollout(problem, drawn=PARAMS.drawn)
        assert played is not None
        return played.plan

    # Code is compiled and loaded before anything is measured.
    plan(small_program("inference", 0))
    return plan
