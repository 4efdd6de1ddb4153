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
from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling.learned import POLICY

GRAPH = Path(__file__).parent / "data" / "fir.dfg.json"


def main() -> None:
    torch.set_num_threads(1)
    problem = stowplan.read(sys.argv[1] if len(sys.argv) > 1 else GRAPH, target="se")
    policy, chance, body = Policy.load(POLICY.path), np.random.default_rng(0), Body(problem)
    for ii in range(least_ii(problem), problem.machine.spoke_depth + 1):
        found = policy.place([Mapping(body, ii) for _ in range(32)], chance, resample=True)
        complete = [mapping for mapping in found if mapping.current < 0]
        print(f"II {ii}: {len(complete)} of {len(found)} mappings complete")
        if complete:
            plan = min(complete, key=lambda mapping: mapping.makespan).plan(list_scheduled=True)
            assert verify(problem, plan).ok
            print(f"II {plan.ii}, latency {plan.makespan}: tiles {list(plan.tiles)}")
            plan.save("plan.json")
            return
    sys.exit("no mapping found")


if __name__ == "__main__":
    main()
