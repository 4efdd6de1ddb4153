"""Tiers for the tensors of a network, from the library: ``python examples/place_network.py [LAYER FILE]``."""

from __future__ import annotations

import sys
from pathlib import Path

import stowplan
from stowplan.hardware.nnp_i.compiler import compiler_plan
from stowplan.report.tier_placement import contiguity, transitions

RESNET50 = Path(__file__).parent / "data" / "resnet50.layers.json"


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESNET50
    problem = stowplan.read(path, target="nnp-i", precision="int8")
    result = stowplan.solve(problem, time_limit=30)
    print(result.summary())
    if result.plan is None:
        sys.exit(result.exit_code)
    compiled = compiler_plan(problem)
    if compiled is not None:
        print("from the compiler's tiers (rows) to the best (columns):")
        print(transitions(problem, compiled, result.plan))
    alike = contiguity(problem, result.plan, "weights")
    print(f"weights of neighbouring layers in one tier: {alike.part:.0%}, by chance {alike.by_chance:.0%}")
    result.plan.save("plan.json")


if __name__ == "__main__":
    main()
