"""Added cost and bound of problems that have their limits, several solved side by side.

    python -m benchmarks.torch_memory.limits --models gpt8,unet -o out/torch_memory.jsonl --problems out/problems
    python -m benchmarks.rematerialization.bounds out/problems/*.json [--seconds 60] [--jobs 1]

Each is given two workers. Costs are in percent of what every operator costs once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import run
from sys import executable
from typing import NamedTuple

import msgspec

import stowplan
from benchmarks.lib.tables import table
from stowplan.models.rematerialization.problem import Problem

#: A gap that is small.
SMALL = 1.05


class Row(NamedTuple):
    """What came of one problem."""

    name: str
    operators: int
    once: int
    """Cost of every operator once."""
    added: int | None
    bound: int
    is_optimal: bool
    seconds: float

    @property
    def is_near(self) -> bool:
        """Whether the plan is within 5 % of its bound."""
        return self.added is not None and self.added <= SMALL * self.bound

    def cells(self) -> list[str]:
        """For the table."""
        added, bound = (None if each is None else f"{100 * each / self.once:.2f}" for each in (self.added, self.bound))
        how = "proven" if self.is_optimal else "near" if self.is_near else ""
        return [self.name, str(self.operators), added or "none", bound or "", how, f"{self.seconds:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="problems of rematerialization with a limit, in JSON")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each")
    parser.add_argument("--jobs", type=int, default=1, help="problems at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(msgspec.json.encode(row(given.files[0], given.seconds, given.seed)).decode())
        return
    with ThreadPoolExecutor(given.jobs) as pool:
        rows = []
        for each in pool.map(partial(process, seconds=given.seconds, seed=given.seed), given.files):
            print(*each.cells(), flush=True)
            rows.append(each)
    print(table([each.cells() for each in rows], ["problem", "operators", "added %", "bound %", "", "seconds"]))
    print(summary(rows))


def process(path: Path, seconds: float, seed: int) -> Row:
    """A problem in a process of its own."""
    command = [executable, "-m", "benchmarks.rematerialization.bounds", str(path), "--alone"]
    command += ["--seconds", str(seconds), "--seed", str(seed)]
    made = run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return msgspec.json.decode(made.stdout.splitlines()[-1], type=Row)


def row(path: Path, seconds: float, seed: int) -> Row:
    """Solve one problem."""
    problem = Problem.load(path)
    result = stowplan.solve(problem, time_limit=seconds, seed=seed, workers=2)
    once, is_optimal = sum(op.cost for op in problem.ops), result.status == "optimal"
    return Row(path.stem, len(problem.ops), once, result.objective, int(result.bound or 0), is_optimal, result.seconds)


def summary(rows: Iterable[Row]) -> str:
    """How many are near their bounds, and the median of the gaps."""
    rows = list(rows)
    near, proven = sum(each.is_near for each in rows), sum(each.is_optimal for each in rows)
    gaps = [100 * (1 - each.bound / each.added) if each.added else 0.0 for each in rows if each.added is not None]
    middle = f"median gap {median(gaps):.2f} %" if gaps else "no plans"
    return f"{len(rows)} problems: {proven} proven, {near} within 5 % of the bound, {middle}."


if __name__ == "__main__":
    main()
