"""A loop body mapped by the policy that the package brings: ``python examples/map_with_policy.py [GRAPH]``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

try:
    import torch
except ImportError as error:
    sys.exit(f"this example needs {error.name}: pip install '.[learned]'")

import stowplan
from stowplan.learned_guidance.modulo_scheduling.body import Body
from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy, best_of, particles
from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling.learned import POLICY

GRAPH = Path(__file__).parent / "data" / "fir.dfg.json"


def main() -> None:
    torch.set_num_threads(1)
    problem = stowplan.read(sys.argv[1] if len(sys.argv) > 1 else GRAPH, target="se")
    policy, chance, body = Policy.load(POLICY.path), np.random.default_rng(0), Body(problem)
    for ii in range(least_ii(problem), problem.machine.spoke_depth + 1):
        found = policy.place(particles(body, ii, 32), chance, resample=True)
        best = best_of(found)
        print(f"II {ii}: {sum(each.current < 0 for each in found)} of {len(found)} mappings complete")
        if best is not None:
            plan = best.plan(list_scheduled=True)
            assert verify(problem, plan).ok
            print(f"II {plan.ii}, latency {plan.makespan}: tiles {list(plan.tiles)}")
            plan.save("plan.json")
            return
    sys.exit("no mapping found")


if __name__ == "__main__":
    main()
