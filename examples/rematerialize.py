"""Peak against added cost of a graph: ``python examples/rematerialize.py [PROBLEM] [LIMITS] [SECONDS]``.

PROBLEM is a file of rematerialization, LIMITS how many limits are tried, SECONDS the time for each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import stowplan
from stowplan.portfolio.rematerialization.frontier import frontier
from stowplan.portfolio.rematerialization.peaks import least_peak

HERE = Path(__file__).parent


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "data" / "training.remat.json"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 3.0
    problem = stowplan.read(path)
    plan, bound = least_peak(problem)
    print(f"least peak: {plan.peak:,} bytes at an added cost of {plan.objective:,}; no plan is below {bound:,} bytes")
    for point in frontier(problem, count, time_limit=seconds):
        cost = "no plan" if point.added_cost is None else f"{point.added_cost:,}"
        proven = "none fits" if point.bound is None else f"{point.bound:,}"
        print(f"limit {point.limit:>14,}  added cost {cost:>8}  bound {proven:>8}")


if __name__ == "__main__":
    main()
