"""Packing over CSV files of buffers: ``python benchmarks/packing.py FILE... [--capacity N] [--time-limit S]``.

Prints a markdown table: what was reached, how far above the proven bound, when the final plan was found and by whom.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import stowplan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--capacity", type=int, help="bytes to fit into; without it, the least height is sought")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each file")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("| file | buffers | load | height | above bound | status | found after | by |\n|---|--:|--:|--:|--:|---|--:|---|")
    total = 0.0
    for path in arguments.files:
        problem = stowplan.read(path, capacity=arguments.capacity)
        result = stowplan.solve(problem, time_limit=arguments.time_limit, seed=arguments.seed)
        found = [
            entry.seconds for entry in result.history if result.objective is not None and entry.objective == result.objective
        ]
        total += result.seconds
        cells = [
            path.stem,
            result.details["buffers"],
            f"{result.details['load']:,}",
            "" if result.objective is None else f"{result.objective:,}",
            "" if result.gap is None else f"{result.gap:.3%}",
            result.status,
            f"{found[0]:.1f} s" if found else "",
            result.provenance.candidate,
        ]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(f"\n{total:.1f} s in all")


if __name__ == "__main__":
    main()
