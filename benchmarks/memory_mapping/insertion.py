"""What insertion's passes are worth: in all ways or the likeliest alone, in each order, beside plans that follow a hint.

    python -m benchmarks.memory_mapping.insertion [--capacities 1 0.7 0.5 0.35 0.25]

All modules of the corpus, with parts of the fast memory. A row sets the best of some constructions, always with the greedy,
beside the best of others: on how many modules it is better and worse, by how much, and processor seconds of all together.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.lib.memory_mapping import scarce
from benchmarks.lib.memory_mapping.constructions import best_guided, quick_insertion
from benchmarks.lib.tables import table
from stowplan.learned_guidance.memory_mapping.guide.guide import filled_hint, learned_hint
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import heuristics
from stowplan.portfolio.memory_mapping.arrays import Data, build
from stowplan.portfolio.memory_mapping.state import State

ORDERS = (1, 3, 0, 2)

#: Objective and processor seconds of each construction.
Found = dict[str, tuple[int, float]]


def made(problem: Problem, data: Data) -> Found:
    """All constructions of one case."""

    def never() -> bool:
        return False

    def whole(built: heuristics.Built) -> State:
        return heuristics.run(built, never)[0]

    ways: dict[str, Callable[[], State]] = {"greedy": lambda: whole(heuristics.production_greedy(data))}
    for by in ORDERS:
        ways[f"likeliest {by}"] = lambda by=by: quick_insertion(data, by)  # type: ignore[misc]
        ways[f"all {by}"] = lambda by=by: whole(heuristics.best_insertion(data, by))  # type: ignore[misc]
    ways["learned"] = lambda: best_guided(data, learned_hint(problem), never)
    ways["filled"] = lambda: best_guided(data, filled_hint(problem), never)
    found = {}
    for name, build_one in ways.items():
        began = time.process_time()
        total = int(build_one().totals[0].total)
        found[name] = total, time.process_time() - began
    return found


def rows(found: Sequence[Found]) -> list[list[object]]:
    """Sets of constructions against others."""
    likeliest, every = ([f"{ways} {by}" for by in ORDERS] for ways in ("likeliest", "all"))
    pairs = {
        "all ways, for the likeliest": (likeliest, every),
        **{f"all ways, order {by} alone": (every, [f"all {by}"]) for by in ORDERS},
        **{f"all ways, without order {by}": (every, [each for each in every if each[-1] != str(by)]) for by in ORDERS},
        **{f"all ways, with {hint}": (every, [*every, hint]) for hint in ("filled", "learned")},
        **{
            f"all ways for the likeliest, beside {hint}": ([*likeliest, hint], [*every, hint]) for hint in ("filled", "learned")
        },
    }
    lines: list[list[object]] = []
    for name, (before, after) in pairs.items():
        best = [[min(each[way][0] for way in ways) for each in found] for ways in (["greedy", *before], ["greedy", *after])]
        gains = [100 * (one - other) / one for one, other in zip(*best, strict=True)]
        spent = [sum(each[way][1] for each in found for way in ways) for ways in (before, after)]
        lines.append(
            [
                name,
                sum(gain > 0 for gain in gains),
                sum(gain < 0 for gain in gains),
                f"{statistics.fmean(gains):+.3f}",
                f"{max(gains):+.2f}",
                f"{min(gains):+.2f}",
                f"{spent[0]:.2f} to {spent[1]:.2f}",
            ]
        )
    return lines


def main() -> None:
    """Print a table for each capacity."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--capacities", type=float, nargs="+", default=[1.0, 0.7, 0.5, 0.35, 0.25])
    arguments = parser.parse_args()
    names = [name for part in scarce.PARTS for name in scarce.modules(part)]
    if not names:
        sys.exit("needs ../shared/corpus")
    first = scarce.made(f"{names[0]} 0.5")
    made(first, build(first))
    for capacity in arguments.capacities:
        problems = (scarce.made(f"{name} {capacity:g}") for name in names)
        found = [made(problem, build(problem)) for problem in problems]
        print(f"\n{len(found)} modules at {capacity:g} of the memory\n")
        heads = [f"insertion, {len(found)} modules", "better", "worse", "mean %", "most", "least", "s"]
        print(table(rows(found), heads), flush=True)


if __name__ == "__main__":
    main()
