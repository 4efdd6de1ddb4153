"""Tiers for the tensors of a network by trial and error, through Gymnasium.

``python examples/place_with_gymnasium.py [PROPOSALS]`` begins with everything in DRAM, proposes the best map so far with a few
tensors elsewhere, and keeps what earns more.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import gymnasium
except ImportError as error:
    sys.exit(f"this example needs {error.name}: pip install '.[learned]'")
import numpy as np

import stowplan
import stowplan.learned_guidance.environments  # registers the name

RESNET50 = Path(__file__).parent / "data" / "resnet50.layers.json"


def main() -> None:
    proposals = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
    problem = stowplan.read(RESNET50, target="nnp-i", precision="int8")
    env = gymnasium.make("stowplan/TierPlacement-v0", problem=problem, render_mode="ansi")
    chance = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    movable = np.flatnonzero(observation["mask"])
    best, best_reward, plan = np.zeros(env.action_space.shape, np.int64), float("-inf"), None
    for number in range(proposals):
        proposal = best.copy()
        if number:
            chosen = chance.choice(movable, size=1 + chance.geometric(0.5))
            proposal[chosen] = chance.integers(3, size=len(chosen))
        env.reset()
        _, reward, _, _, info = env.step(proposal)
        if reward >= best_reward:
            if reward > best_reward and info["speedup"]:
                print(f"{number:6}: {info['speedup']:.3f} times as fast as the compiler's map")
            best, best_reward, plan = proposal, float(reward), info["plan"]
    env.reset()
    env.step(best)
    print(env.render(), end="")
    if plan is not None:
        plan.save("plan.json")


if __name__ == "__main__":
    main()
