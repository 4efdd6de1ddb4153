"""Players of MMapGame as functions of (game, seed, seconds, settings), and players of whole modules for table 3."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lib.memory_mapping.evolution import evolve
from benchmarks.lib.memory_mapping.random_play import play_at_random
from benchmarks.lib.memory_mapping.small_programs import small_program
from benchmarks.lib.memory_mapping.tree_search import search_games
from stowplan.learned_guidance.memory_mapping.game.best import Best
from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame, CompiledState, play_greedy
from stowplan.learned_guidance.memory_mapping.game.local_search import improve
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.training.settings import with_settings
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan
from stowplan.portfolio.memory_mapping.learned import DRAWN

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.muzero.play import Played

Method = Callable[[CompiledGame, int, float, Sequence[str]], Best]
"""Game, seed, seconds, settings -> the best game and its curve."""

Player = Callable[[Problem], Plan]

#: Seconds of a first, short run that compiles and loads code.
WARM_UP_SECONDS = 3.0

#: Games that a policy searches side by side.
SIDE_BY_SIDE = 16

#: More training steps than any time limit here allows.
NO_END = 1_000_000_000

#: A setting of a series that names the device of torch.
DEVICE = "device="

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


def _demonstrated(game: CompiledGame, seed: int, seconds: float, settings: Sequence[str]) -> Best:
    """MMap-MuZero that begins with the plans of the constructive heuristics; making them is part of its time."""
    return _train(game, seed, seconds, settings, demonstrate=True)


def _search(game: CompiledGame, seed: int, seconds: float, _: Sequence[str]) -> Best:
    """Tree search on the true game, nothing learned (section 5.3, ablation)."""
    return search_games(game, seed=seed, time_limit=seconds)


def _train(
    game: CompiledGame,
    seed: int,
    seconds: float,
    settings: Sequence[str],
    *,
    demonstrate: bool = False,
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
    device = next((each.removeprefix(DEVICE) for each in settings if each.startswith(DEVICE)), "cpu")
    config = change(with_settings(preset(training_steps=NO_END), [each for each in settings if not each.startswith(DEVICE)]))
    trainer = Trainer([game.problem], config, seed=seed, device=device)
    if demonstrate:
        for plan in _constructed(game.problem, began + DEMONSTRATION_SHARE * seconds):
            trainer.demonstrate(0, actions_of(game.problem, plan, game).actions)
    if is_warm_start:
        # A time limit would leave half of the time to learning.
        run(trainer, should_stop=lambda: time.monotonic() >= began + seconds)
    else:
        run(trainer, time_limit=began + seconds - time.monotonic())
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
    "self-play": _self_play,
    "paper": _paper,
    "agent-demonstrated": _demonstrated,
    "warm-start": _warm_start,
    "evolution": _evolution,
    "random": _random,
    "search": _search,
    "local-search": _local_search,
    "greedy": _greedy,
}

#: Methods that settings of the training configuration change.
TRAINED = ("agent", "self-play", "paper", "agent-demonstrated", "warm-start")

#: Both, search only.
ABLATION = ("agent", "self-play", "search")


def settings_of(method: str, settings: Sequence[str]) -> tuple[str, ...]:
    """What of these settings concerns a method."""
    return tuple(settings) if method in TRAINED else ()


#: Ways to plan a module with a policy.
PLAYERS = ("policy", "policy+search")


class Policies:
    """A policy's ways to plan a module, none worse than its likeliest game; each within ``seconds``, but for that one game."""

    def __init__(self, path: Path, seconds: float, wanted: Sequence[str] = PLAYERS):
        import torch

        from stowplan.learned_guidance.memory_mapping.muzero.play import Policy

        torch.set_num_threads(1)
        self.policy = Policy.load(path)
        self._wanted = wanted
        # Code is compiled and loaded before anything is measured.
        self.seconds = WARM_UP_SECONDS
        for player in self.players().values():
            player(small_program("inference", 0))
        self.seconds = seconds

    @property
    def trained_on(self) -> tuple[str, ...]:
        """Names of the programs that it was trained on."""
        return self.policy.file.provenance.programs

    def players(self) -> dict[str, Player]:
        """The ways that are wanted, by name."""
        ways = dict(zip(PLAYERS, (self.rollout, self.searched), strict=True))
        return {name: ways[name] for name in self._wanted}

    def rollout(self, problem: Problem) -> Plan:
        """What the portfolio's candidate plays: with each rule of placing the likeliest actions, and some drawn near them."""
        played = self.policy.best_rollout(problem, drawn=DRAWN)
        assert played is not None
        return played.plan

    def searched(self, problem: Problem) -> Plan:
        """Likeliest, then each move searched, then games that explore, until time is up; the best."""
        end = time.monotonic() + self.seconds
        game = CompiledGame(problem)
        games = [self._likeliest(game)]
        for seed in count():
            found = self.policy.searched(
                game, count=SIDE_BY_SIDE if seed else 1, explore=seed > 0, seed=seed, should_stop=lambda: time.monotonic() > end
            )
            if not found or not game.moves:
                break
            games += found
        return max(games, key=lambda game: game.return_ps).plan

    def _likeliest(self, game: CompiledGame) -> Played:
        found = self.policy.rollout(game)
        assert found is not None
        return found
