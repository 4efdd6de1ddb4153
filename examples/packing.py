"""Give buffers of known life spans their offsets: ``python examples/packing.py [CSV] [CAPACITY]``."""

from __future__ import annotations

import sys
from pathlib import Path

import stowplan

HERE = Path(__file__).parent


def main() -> None:
    buffers = sys.argv[1] if len(sys.argv) > 1 else HERE / "data" / "buffers.csv"
    capacity = int(sys.argv[2]) if len(sys.argv) > 2 else None
    problem = stowplan.read(buffers, capacity=capacity)
    result = stowplan.solve(problem, time_limit=10)
    print(result.summary())
    if result.plan is not None:
        for buffer, offset in zip(problem.buffers, result.plan.offsets, strict=True):
            print(f"{buffer.id:>15} [{buffer.lower:>3}, {buffer.upper:>3})  at {offset:>9,}  {buffer.size:>9,} bytes")


if __name__ == "__main__":
    main()
