"""Order the operators of a graph for the least peak of memory: ``python examples/order_operators.py [GRAPH] [SECONDS]``.

GRAPH is a graph file, an ONNX model, a program of ``torch.export`` (.pt2) or an HLO module.
"""

from __future__ import annotations

import sys
from pathlib import Path

import stowplan

HERE = Path(__file__).parent


def main() -> None:
    graph = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "data" / "cells.graph.json"
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    problem = stowplan.read(graph) if ".json" in graph.suffixes else stowplan.read(graph, target="order")
    result = stowplan.solve(problem, time_limit=seconds)
    print(result.summary())
    if result.plan is not None:
        print(f"peak {result.plan.objective:,} bytes, arena {result.plan.arena:,} bytes")
        for step, number in enumerate(result.plan.order):
            op = problem.ops[number]
            places = ", ".join(f"{problem.tensors[each].id} at {result.plan.offsets[each]:,}" for each in op.writes)
            print(f"{step:>5}  {op.id}  {places}")


if __name__ == "__main__":
    main()
