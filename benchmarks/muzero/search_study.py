"""Why search with the learned model adds so little: what the network knows of rewards, values and alternatives, and controls.

    python -m benchmarks.muzero.search_study ../shared/corpus/tpu_v4/{dlrm_inf_b256,mnasnet_b1_inf_b128}.hlo.txt.gz

For each program, along the policy's likeliest game: how far predicted rewards are from the true ones, by the number of steps
imagined; how far values are from what the game came to; and, where a choice matters, how often the best action by the policy,
by one imagined step (reward and value), and by one true step (true reward, value of the true state) is the best by playing on
(``benchmarks/lib/memory_mapping/deviations.py``).

Then games: likeliest, searched with more and more simulations, and searched by the true
game.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stowplan
from benchmarks.lib.memory_mapping.deviations import ILLEGAL, deviations
from benchmarks.lib.memory_mapping.true_game import TrueModel, searched
from benchmarks.lib.tables import table
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.programs import as_played
from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame
from stowplan.learned_guidance.memory_mapping.observation.layout import empty_observations
from stowplan.portfolio.memory_mapping.learned import POLICY

#: Steps imagined.
DEPTH = 5


def study(
    policy: Policy, path: Path, simulations: list[int], true: list[int]
) -> tuple[list[object], list[object], list[object]]:
    """Rows of the three tables for one module."""
    problem = as_played(stowplan.read(path, target="tpu-v4"))
    game = CompiledGame(problem)
    played, model = ProgramGame(game, policy.config), policy.model
    played = policy.rollout(game)
    assert played is not None
    state = game.reset()
    state.play(played.actions)
    actions = np.array(state.actions, np.int64)
    returns = deviations(game, actions)[1] / game.unit_ps
    legal = returns > ILLEGAL / game.unit_ps / 2
    spread = np.where(legal, returns, -np.inf).max(1) - np.where(legal, returns, np.inf).min(1)
    mean_reward = float(returns.max()) / len(actions)
    matters = np.flatnonzero((legal.sum(1) > 1) & (spread > mean_reward))
    name = path.name.split(".")[0]
    errors, value_error, agreement = _looked(played, model, actions, returns, legal, matters)
    scale = float(np.abs(errors[0]).mean())
    first: list[object] = [name, len(actions), len(matters), f"{value_error[0]:.3f}", f"{value_error[1]:.3f}"]
    first += [f"{float(np.abs(each).mean()):.4f}" for each in errors[1:]] + [f"{scale:.4f}"]
    second: list[object] = [name, *(f"{100 * float(np.mean(each)):.0f}" if len(each) else "" for each in agreement)]

    def reward(play: Callable[[], Any]) -> str:
        began = time.process_time()
        found = play()
        return f"{problem.normalised_return(problem.all_slow_ps - found.return_ps):.4f} ({time.process_time() - began:.1f} s)"

    third: list[object] = [name, reward(lambda: policy.rollout(game))]
    third += [reward(lambda count=count: policy.searched(game, simulations=count)[0]) for count in simulations]
    third += [reward(lambda count=count: searched(policy, game, count)) for count in true]
    return first, second, third


def _looked(
    played: ProgramGame, model: Any, actions: Any, returns: Any, legal: Any, matters: Any
) -> tuple[list[Any], tuple[float, float], list[list[bool]]]:
    """Errors of rewards (true ones first) by depth, of values (and of a constant in their place); agreement with the best."""
    state, rewards, states = played.game.reset(), [], []
    for action in actions.tolist():
        states.append(state.copy())
        rewards.append(state.step(action) / played.game.unit_ps)
    seen = empty_observations(played.observer.config, len(states))
    for row, each in enumerate(states):
        played.observer.observe(each, seen, row)
    hidden, logits, values = model.initial(seen)
    to_come = np.append(np.cumsum(rewards[::-1])[::-1], 0.0)[: len(rewards)]
    value_error = (float(np.abs(values - to_come).mean()), float(np.abs(to_come - to_come.mean()).mean()))
    errors: list[Any] = [np.array(rewards)]
    imagined = hidden
    for depth in range(DEPTH):
        last = len(actions) - depth
        imagined, found, _, _ = model.recurrent(imagined[:last], actions[depth:])
        errors.append(found - np.array(rewards[depth:]))
    by_policy, by_imagined, by_true = [], [], []
    true = TrueModel(model, played.observer)
    for at in matters.tolist():
        allowed = np.flatnonzero(legal[at])
        best = returns[at, allowed].max() - 1e-9
        by_policy.append(bool(returns[at, allowed[logits[at, allowed].argmax()]] >= best))
        _, reward, _, value = model.recurrent(hidden[at : at + 1].expand(len(allowed), -1), allowed.astype(np.int64))
        by_imagined.append(bool(returns[at, allowed[(reward + value).argmax()]] >= best))
        root, _, _ = true.initial([states[at]] * len(allowed))
        _, reward, _, value = true.recurrent(root, allowed)
        by_true.append(bool(returns[at, allowed[(reward + value).argmax()]] >= best))
    return errors, value_error, [by_policy, by_imagined, by_true]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--policy", type=Path, default=POLICY.path)
    parser.add_argument("--simulations", type=int, nargs="*", default=[16, 64, 256], help="with the learned model")
    parser.add_argument("--true", type=int, nargs="*", default=[16], help="with the true game")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = Policy.load(options.policy)
    rows = [study(policy, path, options.simulations, options.true) for path in options.modules]
    one, two, three = (list(each) for each in zip(*rows, strict=True))
    depths = [f"reward error, step {depth + 1}" for depth in range(DEPTH)]
    print(table(one, ["program", "moves", "that matter", "value error", "a constant's", *depths, "mean |reward|"]), end="\n\n")
    print(table(two, ["best action by (%)", "policy", "one imagined step", "one true step"]), end="\n\n")
    columns = [f"{count} simulations" for count in options.simulations] + [f"{count}, true game" for count in options.true]
    print(table(three, ["R (processor s)", "likeliest", *columns]))


if __name__ == "__main__":
    main()
