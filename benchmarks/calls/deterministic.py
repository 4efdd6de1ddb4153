"""Whether deterministic runs end in time, and make one plan: ``python -m benchmarks.calls.deterministic [--count N]``.

Small random problems of each kind, as many, and the examples. Each is solved twice with ``deterministic``: as it is, and while
a busy loop runs on each processor. Prints a markdown table by kind: wall-clock and processor seconds, the longest as a part of
the limit, runs that their ceiling ended before all work was done, and plans that differ: those of which one run says so, and
those of which none does. The exit code is 1 where one of the latter is, or a run without load took more than twice the limit.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

import stowplan
from benchmarks.calls.limits import INPUTS
from benchmarks.lib.busy import beside
from benchmarks.lib.places import EXAMPLES
from benchmarks.lib.processor import seconds_of_children
from tests.kernel.test_deterministic_small import MAKERS

#: The example of the kind that has none among those of limits.
MORE = {"rematerialization": [("training.remat.json", None)]}

#: Beyond a ceiling, for what is not the run's: seconds.
SLACK = 0.5


class Solved(NamedTuple):
    """One run, in seconds."""

    plan: bytes
    wall: float
    processor: float
    is_repeatable: bool


def used() -> float:
    """Processor seconds of this process and its workers so far."""
    return sum(os.times()[:4]) + seconds_of_children()


def solve(problem: Any, limit: float) -> Solved:
    """One deterministic run."""
    began, before = time.monotonic(), used()
    result = stowplan.solve(problem, deterministic=True, time_limit=limit)
    wall = time.monotonic() - began
    return Solved(msgspec.json.encode(result.plan), wall, max(0.0, used() - before), result.is_reproducible)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=200, help="random problems of each kind")
    parser.add_argument("--time-limit", type=float, default=2.0)
    parser.add_argument("--examples", action="store_true", help="the examples alone")
    arguments = parser.parse_args()
    limit = arguments.time_limit
    print("| problems | of them | wall s | processor s | longest, limits | ended by ceiling | loaded | differ, told | untold |")
    print("|---|---|---|---|---|---|---|---|---|")
    is_broken = False
    for name, problems in rows(0 if arguments.examples else arguments.count):
        quiet = [solve(each, limit) for each in problems]
        with beside(os.cpu_count() or 1):
            loaded = [solve(each, limit) for each in problems]
        pairs = [pair for pair in zip(quiet, loaded, strict=True) if pair[0].plan != pair[1].plan]
        untold = sum(a.is_repeatable and b.is_repeatable for a, b in pairs)
        longest = max(each.wall for each in quiet)
        is_broken |= untold > 0 or longest > 2 * limit + SLACK
        cut, cut_under_load = (sum(not each.is_repeatable for each in found) for found in (quiet, loaded))
        figures = (
            f"{sum(each.wall for each in quiet):.1f} | {sum(each.processor for each in quiet):.1f} | {longest / limit:.2f}"
        )
        told = len(pairs) - untold
        print(f"| {name} | {len(quiet)} | {figures} | {cut} | {cut_under_load} | {told} | {untold} |", flush=True)
    print(f"\nload of the machine {os.getloadavg()[0]:.1f}, with {os.cpu_count()} processors")
    raise SystemExit(1 if is_broken else 0)


def rows(count: int) -> Iterator[tuple[str, list[Any]]]:
    """Random problems of each kind, and its examples."""
    for kind, makers in MAKERS.items():
        if count:
            yield kind, [makers[number % len(makers)](1000 + number) for number in range(count)]
    for kind, inputs in (INPUTS | MORE).items():
        yield f"{kind}, examples", [stowplan.read(EXAMPLES / name, target=target) for name, target in inputs]


if __name__ == "__main__":
    main()
