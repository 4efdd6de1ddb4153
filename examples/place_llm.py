"""Place the layers of a language model on two GPUs and the host: ``python examples/place_llm.py [PROBLEM]``.

The problem is Llama 3 8B on a desktop with two small GPUs. For a model of your own, ``stowplan llm MODEL.gguf`` makes the
problem and llama.cpp's options (``stowplan.backends.llama.plan`` in Python).
"""

from __future__ import annotations

import sys
from pathlib import Path

import stowplan

HERE = Path(__file__).parent


def main() -> None:
    problem = stowplan.read(sys.argv[1] if len(sys.argv) > 1 else HERE / "data" / "llm.json")
    result = stowplan.solve(problem, time_limit=10)
    print(result.summary())
    if result.plan is not None:
        for number, memory in enumerate(problem.memories):
            layers = [layer for layer, at in enumerate(result.plan.memories) if at == number]
            spilled = sum(result.plan.spilled[layer] for layer in layers)
            print(f"{memory.name:>6}: {len(layers):2} layers, {spilled:2} of their feed-forward parts on the host")


if __name__ == "__main__":
    main()
