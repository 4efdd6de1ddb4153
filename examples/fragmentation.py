"""How much of what PyTorch reserved is fragmentation, and where: ``python examples/fragmentation.py [SNAPSHOT]``.

A snapshot is what ``torch.cuda.memory._dump_snapshot`` writes, after ``torch.cuda.memory._record_memory_history``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import stowplan
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input

HERE = Path(__file__).parent


def main() -> None:
    snapshot = sys.argv[1] if len(sys.argv) > 1 else HERE / "data" / "changing_batches.pickle.gz"
    opened = open_input(snapshot, ReadOptions())
    assert opened.findings is not None
    # Torch's own layout is a plan like any other: what is found is never above it.
    result = stowplan.solve(opened.problem, time_limit=20, plans=opened.findings.plans())
    facts = opened.findings.details(result.objective, result.bound)["snapshot"]
    reserved, arena = facts["peaks"]["reserved"], facts["arena"]
    print(f"reserved {reserved:,} bytes; {arena:,} are enough ({result.status}): {1 - arena / reserved:.1%} is fragmentation")
    for hole in facts["holes"][:5]:
        around = [hole[end]["buffer"] for end in ("below", "above", "last") if hole[end] is not None]
        print(f"{hole['bytes']:>14,} bytes are free of a segment of {hole['segment']:,}: {', '.join(around)}")


if __name__ == "__main__":
    main()
