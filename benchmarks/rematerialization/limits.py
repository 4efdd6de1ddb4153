"""Added cost and bound within limits on the peak, of made-up training steps: greedy, ours, ours without large neighbourhoods.

    python -m benchmarks.rematerialization.limits [--layers 4 16] [--at 0.4 0.6] [--seconds 30] [--control]

A limit is said as a part of the way from the largest operator's own bytes to the peak of the order given. Costs are in percent
of what every operator costs once.
"""

from __future__ import annotations

import argparse

import msgspec

import stowplan
from benchmarks.lib.tables import table
from benchmarks.rematerialization.graphs import transformer
from stowplan.models.rematerialization.bounds import load_bound
from stowplan.models.rematerialization.structure import build
from stowplan.portfolio.rematerialization.greedy import simulate

#: All candidates but ``neighbourhoods``.
CONTROL = ("search", "stages", "cuts", "cpsat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--at", type=float, nargs="+", default=[0.4, 0.6])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--control", action="store_true", help="run without large neighbourhoods, too")
    given = parser.parse_args()
    rows = []
    for layers in given.layers:
        problem = transformer(layers)
        structure = build(problem)
        low, high, once = load_bound(structure), structure.ordering.peak(structure.order), sum(structure.cost)

        def percent(cost: int | None, once: int = once) -> str:
            return "none" if cost is None else f"{100 * cost / once:.2f}"

        for part in given.at:
            limit = int(low + part * (high - low))
            within = msgspec.structs.replace(problem, limit=limit)
            sequence = simulate(structure, structure.order, limit)
            greedy = None if sequence is None else structure.made(sequence).objective
            cells = []
            for candidates in (("heuristic", "exact"), *([CONTROL] if given.control else [])):
                found = stowplan.solve(within, time_limit=given.seconds, candidates=candidates)
                gap = "none" if not found.objective else f"{100 * (1 - (found.bound or 0) / found.objective):.1f}"
                near = next((f"{each.seconds:.1f}" for each in found.history if _is_near(each.objective, found.bound)), "")
                cells += [percent(found.objective), percent(found.bound), gap, near]
            rows.append([layers, structure.ops, part, percent(greedy), *cells])
            print(rows[-1], flush=True)
    head = ["ours", "bound", "gap", "seconds to 5 %"]
    again = [f"{each}, control" for each in head] if given.control else []
    print(table(rows, ["layers", "operators", "limit", "greedy", *head, *again]))


def _is_near(objective: int | None, bound: int | None) -> bool:
    return objective is not None and bound is not None and objective <= 1.05 * bound


if __name__ == "__main__":
    main()
