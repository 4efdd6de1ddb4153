"""Play MMapGame on a real module, at random and greedily: ``python examples/play_mmap_game.py [MODULE] [TARGET]``.

An agent sees what ``docs/reference/mmap-game.md`` lists under Gymnasium, and answers 0 (Copy), 1 (NoCopy) or 2 (Drop); one of
your own takes the place of ``greedy``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

try:
    import gymnasium
except ImportError as error:
    sys.exit(f"this example needs {error.name}: pip install '.[learned]'")
import numpy as np

import stowplan
from stowplan.learned_guidance.environments import MMAP_GAME
from stowplan.learned_guidance.memory_mapping.observation.layout import ActionFeature
from stowplan.models.memory_mapping.verify import verify

HERE = Path(__file__).parent
RANDOM_GAMES = 20


def play(env: gymnasium.Env[Any, Any], agent: Any) -> dict[str, Any]:
    observation, info = env.reset()
    is_over = False
    while not is_over:
        observation, _reward, is_over, _truncated, info = env.step(agent(observation))
    return info


def greedy(observation: dict[str, Any]) -> int:
    rewards = observation["actions"][:, ActionFeature.REWARD]
    return int(np.argmax(np.where(observation["action_mask"], rewards, -np.inf)))


def main() -> None:
    module = sys.argv[1] if len(sys.argv) > 1 else str(HERE / "data" / "alexnet_train_b32.hlo.txt.gz")
    target = sys.argv[2] if len(sys.argv) > 2 else "tpu-v4"
    problem = stowplan.read(module, target=target)
    # "raise": both agents look at the mask, and anything illegal would be a mistake of theirs.
    env = gymnasium.make(MMAP_GAME, problem=problem, on_illegal="raise")
    env.action_space.seed(0)
    random_games = [play(env, lambda seen: env.action_space.sample(mask=seen["action_mask"])) for _ in range(RANDOM_GAMES)]
    greedy_game = play(env, greedy)
    print(f"{problem.name}: {len(problem.steps)} steps, {problem.use_count} uses; return R is 0 with all slow, 1 with all fast")
    returns = [info["normalised_return"] for info in random_games]
    print(f"random: R {np.mean(returns):.3f} on average, {max(returns):.3f} at best of {RANDOM_GAMES} games")
    print(f"greedy: R {greedy_game['normalised_return']:.3f}")
    best = max([*random_games, greedy_game], key=lambda info: info["normalised_return"])
    assert verify(problem, best["plan"]).ok
    best["plan"].save("plan.json")
    print("the best plan is verified, and in plan.json")


if __name__ == "__main__":
    main()
