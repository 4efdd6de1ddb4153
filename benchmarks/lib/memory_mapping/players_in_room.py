"""Players of one case with policies, and their controls: rows as ``benchmarks/muzero/room.py`` keeps them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.lib.memory_mapping.guided_rollouts import guided
from benchmarks.lib.memory_mapping.priced_play import evolve_prices, priced
from stowplan.learned_guidance.mcts.search import search
from stowplan.learned_guidance.memory_mapping.game.best import Best
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.rollouts import Rollouts
from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame
from stowplan.models.memory_mapping.problem import Problem

#: Simulations with the learned model, ``c_scale``, and the least range of values over the value's error; most moves of a game.
SEARCHES = ((16, 0.1, 0.0), (16, 0.1, 1.0), (64, 0.1, 0.0), (64, 0.1, 1.0), (64, 0.02, 0.0))
MOST_SEARCHED = 450

#: Weights of completions beside a policy's logits; the one that is measured with all seeds; and processor seconds of evolution.
WEIGHTS, WEIGHT, EVOLUTION_SECONDS = (0.0, 0.1, 0.3, 1.0), 0.3, 0.5


def measure(
    name: str,
    problem: Problem,
    policies: Sequence[Policy],
    shipped: Policy,
    seeds: Sequence[int],
    again: bool,
    until: float,
) -> Iterator[dict[str, Any]]:
    """Rows of a case: everything with the first policy and what needs none; or, ``again``, the other policies."""
    from benchmarks.muzero.policy import without_training

    game = CompiledGame(problem, placing=policies[0].config.placing)

    def row(way: str, seed: int, began: float, found: Best | int) -> dict[str, Any]:
        return_ps = found if isinstance(found, int) else found.return_ps
        if isinstance(found, Best):
            state = game.reset()
            state.play(found.actions)
            assert state.is_over
            assert state.return_ps == found.return_ps
        reward = float(problem.normalised_return(problem.all_slow_ps - int(return_ps or 0)))
        seconds = round(time.process_time() - began, 3)
        return {"case": name, "way": way, "seed": seed, "moves": len(game.moves), "seconds": seconds, "R": {way: reward}}

    if again:
        for seed, policy in zip(seeds[1:], policies[1:], strict=True):
            for weight in (0.0, WEIGHT):
                began = time.process_time()
                yield row(f"policy, {weight:g}", seed, began, guided(policy, game, weight))
        return
    began = time.process_time()
    yield row("priced", 0, began, priced(game))
    began = time.process_time()
    rollouts, state = Rollouts(game), game.reset()
    while not state.is_over and time.monotonic() < until:
        rollouts.play(state, 50)
    yield row("rollouts", 0, began, rollouts.return_ps)
    taken = 0.0
    for weight in WEIGHTS:
        began = time.process_time()
        yield row(f"policy, {weight:g}", seeds[0], began, guided(policies[0], game, weight))
        taken = max(taken, time.process_time() - began)
    if len(game.moves) <= MOST_SEARCHED:
        for which, policy in (("policy", policies[0]), ("shipped", shipped)):
            played = policy.rollout(CompiledGame(problem, placing=policy.config.placing))
            assert played is not None
            if which == "shipped":
                yield row(which, 0, began, played.return_ps)
            misses = [value - (played.return_ps - so_far) / game.unit_ps for _, value, so_far in played.estimates]
            error = float(np.abs(misses).mean())
            for simulations, scale, of_error in SEARCHES if which == "shipped" else SEARCHES[:1]:
                began = time.process_time()
                found = searched(policy, problem, simulations, scale, of_error * error)
                yield row(f"{which}, {simulations} at {scale:g}, error x {of_error:g}", 0, began, found)
    untrained = without_training(policies[0], 0)
    for weight in (0.0, WEIGHT):
        began = time.process_time()
        yield row(f"untrained, {weight:g}", 0, began, guided(untrained, game, weight))
    began = time.process_time()
    yield row("evolved, equal time", 0, began, evolve_prices(game, time_limit=taken))
    for seed in range(3):
        began = time.process_time()
        yield row("evolved", seed, began, evolve_prices(game, seed=seed, time_limit=EVOLUTION_SECONDS))


def searched(policy: Policy, problem: Problem, simulations: int, scale: float, least_span: float) -> int:
    """Return (ps) of a game whose moves are searched with the learned model."""
    played = ProgramGame(problem, policy.config)
    config = policy.config.search_at(policy.file.provenance.training_steps)
    config = config.changed(simulations=simulations, c_scale=scale, min_span=max(least_span, config.min_span))
    rng = np.random.default_rng(0)

    def found(observations: Any, legal: Any, _: Any) -> tuple[Any, Any]:
        result = search(policy.model, observations, legal, config, rng, explore=False)
        return result.action, result.value

    return policy._play([played], found, None)[0].return_ps
