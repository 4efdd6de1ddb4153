"""A loop body on the Streaming Engine by trial and error, through Gymnasium.

``python examples/map_with_gymnasium.py [EPISODES]`` maps a filter at the least initiation interval: of the places that the
masks allow, each instruction takes one of the few where it can begin soonest. The best plan is written to ``plan.json``.
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

FIR = Path(__file__).parent / "data" / "fir.dfg.json"


def main() -> None:
    episodes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    problem = stowplan.read(FIR, target="se")
    env = gymnasium.make("stowplan/ModuloScheduling-v0", problem=problem, render_mode="ansi")
    chance = np.random.default_rng(0)
    best, picture = None, ""
    env.reset(seed=0)
    for number in range(episodes):
        env.reset()
        done = False
        while not done:
            actions = np.flatnonzero(env.unwrapped.action_masks())
            tile, slot = np.divmod(actions, env.unwrapped.limits.slots)
            mapping = env.unwrapped.mapping
            issue = mapping.ready[tile] + (slot - mapping.ready[tile]) % mapping.ii
            # The soonest four, ties broken by chance.
            soonest = np.lexsort((chance.random(len(actions)), issue))[:4]
            _, reward, done, _, info = env.step(actions[chance.choice(soonest)])
        plan = info.get("plan")
        if plan is not None and (best is None or plan.objective < best.objective):
            print(f"{number:6}: II {plan.ii}, {plan.makespan} clocks, reward {reward:.3f}")
            best, picture = plan, env.render()
    print(picture, end="")
    if best is not None:
        best.save("plan.json")


if __name__ == "__main__":
    main()
