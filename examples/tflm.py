"""Plan a TensorFlow Lite model for TensorFlow Lite Micro, and run it there where that is installed.

    python examples/tflm.py [MODEL [PLANNED]]

The planned model is written to PLANNED where that is given. Needs ``pip install '.[tflm]'`` to run it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stowplan.backends.tflm import plan_and_run


def main() -> None:
    model, *written = map(Path, sys.argv[1:] or ["examples/data/branches.tflite"])
    planned, run, why = plan_and_run(model)
    summary = planned.summary
    proof = "proven least" if summary.is_proven else f"at least {summary.bound:,}"
    print(f"head: the runtime's own planner {summary.greedy:,} bytes, now {summary.head:,} ({proof})")
    print(f"operators that were moved: {summary.moved}")
    for name, sizes in summary.scratch.items():
        print(f"operator {name} asks for {' + '.join(map(str, sizes))} bytes while it runs")
    if run is None:
        print(f"nothing was run: {why}")
    else:
        print(f"arena: {run.greedy_arena:,} bytes, now {run.arena:,}")
        print(f"outputs equal: {run.differs is None}, of {run.compared} inferences that came to their end")
    for path in written:
        path.write_bytes(planned.data)


if __name__ == "__main__":
    main()
