"""Plan one compiled module and look at the result: ``python examples/plan_module.py [MODULE] [TARGET]``."""

from __future__ import annotations

import sys
from pathlib import Path

import stowplan

HERE = Path(__file__).parent


def main() -> None:
    module = sys.argv[1] if len(sys.argv) > 1 else str(HERE / "data" / "alexnet_train_b32.hlo.txt.gz")
    target = sys.argv[2] if len(sys.argv) > 2 else "tpu-v4"
    problem = stowplan.read(module, target=target)
    result = stowplan.solve(problem, time_limit=10)
    print(result.summary())
    print(f"served from fast memory: {result.details['fast_traffic']:.0%} of the traffic")


if __name__ == "__main__":
    main()
