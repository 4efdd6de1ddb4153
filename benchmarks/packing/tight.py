"""Searches for packings at the load, each by itself: ``python -m benchmarks.packing.tight [FILE.csv ...] --seconds 10``.

The instances are the files of minimalloc that are named, rectangles that are cut into buffers (their optimum is the load),
and made-up problems. Each of the searches ``valleys``, ``canonical`` and ``beam`` (:mod:`stowplan.portfolio.packing`) has
``--seconds`` seconds of the processor for each instance and seed; ``valleys, merged`` and ``beam, merged`` are for merged
buffers (:mod:`stowplan.portfolio.packing.merging`). The control ``valleys, at random`` is the search over valleys with buffers
tried in random orders. Prints, for each family and search, how many runs reached the load and the median of the seconds that
they took, and the median of how far they stay above the load; runs that do not reach it count with all their seconds.
``--write PAGE`` puts the table between the markers ``tight`` of a page.

With ``--runs``, whole runs of ``solve`` are compared instead: with merged buffers and the search over valleys, without merged
buffers, and without both. ``--seconds`` is then their time limit. The table has the same cells, with seconds since the call,
and is put between the markers ``tight-runs``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

import stowplan
from benchmarks.instances.families import packing_cut
from benchmarks.lib.parameter_files import environment
from benchmarks.lib.tables import table, write_into
from benchmarks.packing.instances import make
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.portfolio.packing import arrays, beam, canonical, merging, valleys
from stowplan.portfolio.packing.orders import Floats


@dataclass
class AtRandom(valleys.Part):
    """The search over valleys with buffers tried in random orders."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keys = self._random_keys()

    def _random_keys(self) -> Iterator[Floats]:
        chance = np.random.default_rng(self.seed)
        while True:
            yield chance.random(len(self.data.size))


SEARCHES: dict[str, type[canonical.Part]] = {
    "valleys": valleys.Part,
    "valleys, at random": AtRandom,
    "canonical": canonical.Part,
    "beam": beam.Part,
}

#: The searches that are also run for merged buffers (:mod:`stowplan.portfolio.packing.merging`).
MERGED = {f"{name}, merged": name for name in ("valleys", "beam")}


def made_up(kind: str, count: int, seed: int) -> Problem:
    """A problem of :mod:`benchmarks.packing.instances`."""
    rows = zip(*(each.tolist() for each in make(kind, count, seed)), strict=True)
    return Problem(
        buffers=tuple(Buffer(id=f"b{at}", lower=low, upper=up, size=size) for at, (low, up, size) in enumerate(rows))
    )


def instances(paths: list[Path]) -> Iterator[tuple[str, Problem]]:
    """Families with their problems; the seeds are not those of the library of instances."""
    for path in paths:
        problem = stowplan.read(path)
        yield "minimalloc", Problem(buffers=problem.buffers)
    for count in (200, 500, 1000, 2000, 4000):
        for seed in (101, 102, 103):
            yield f"cut, {count} buffers", packing_cut(count, seed)
    for kind in ("level", "training", "short"):
        for count in (150, 600):
            for seed in (101, 102, 103):
                yield f"{kind}, {count} buffers", made_up(kind, count, seed)


class Outcome(NamedTuple):
    """What a run found."""

    reached: bool
    """Whether the plan is at the load within the limit."""
    seconds: float
    """Seconds until then; the limit if it is not reached."""
    above: float
    """How far the height is above the load at the end, as a fraction of the load."""


def run(problem: Problem, search: str, seed: int, seconds: float) -> Outcome:
    """Run one search by itself, in seconds of the processor; a last step may take longer than the limit, and does not count."""
    data = arrays.build(problem)
    began = time.process_time()
    if search in MERGED:
        data = merging.merge(data).data
    tree = canonical.start(data, None, seed, part_type=SEARCHES[MERGED.get(search, search)])
    load = tree.bound
    tree.run(lambda: None, lambda: time.process_time() - began > seconds or tree.height == load)
    took, height = time.process_time() - began, tree.height or 0
    reached = height == load and took <= seconds
    return Outcome(reached, took if reached else seconds, height / load - 1)


def solved(problem: Problem, seed: int, seconds: float) -> Outcome:
    """What a run of ``solve`` finds, in seconds since the call."""
    load = load_bound(problem)
    result = stowplan.solve(problem, time_limit=seconds, seed=seed)
    at_load = [entry.seconds for entry in result.history if entry.objective == load]
    height = load if result.objective is None else result.objective
    return Outcome(bool(at_load), at_load[0] if at_load else seconds, height / load - 1)


#: Values of parameters: those of the package, without merged buffers, and without the search over valleys either.
VARIANTS = {
    "as it is": "",
    "without merging": "[packing.candidates]\nmost_merged = 0\n",
    "without both": "[packing.candidates]\nmost_merged = 0\nfirst_valley_work = 0\nvalley_work = 0\n",
}


def compared(arguments: argparse.Namespace) -> dict[tuple[str, str], list[Outcome]]:
    """Runs of the :data:`VARIANTS`, each in processes of its own."""
    found = defaultdict(list)
    command = [sys.executable, "-m", "benchmarks.packing.tight", "--child", "--seeds", str(arguments.seeds)]
    command += ["--seconds", str(arguments.seconds), *map(str, arguments.files)]
    for variant, parameters in VARIANTS.items():
        with environment(parameters) as variables:
            output = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout
        for line in output.splitlines():
            family, *row = json.loads(line)
            found[family, variant].append(Outcome(*row))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="CSV files of minimalloc.")
    parser.add_argument("--seconds", type=float, default=10.0, help="Processor seconds of each run (default: 10).")
    parser.add_argument("--seeds", type=int, default=5, help="Number of seeds (default: 5).")
    parser.add_argument("--write", type=Path, help="Put the table between the markers of this page.")
    parser.add_argument("--runs", action="store_true", help="Compare whole runs with and without these searches.")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    found: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    if arguments.child:
        for family, problem in instances(arguments.files):
            for seed in range(arguments.seeds):
                print(json.dumps([family, *solved(problem, seed, arguments.seconds)]), flush=True)
        return
    if arguments.runs:
        found = compared(arguments)
    else:
        for family, problem in instances(arguments.files):
            for search in (*SEARCHES, *MERGED):
                for seed in range(arguments.seeds):
                    found[family, search].append(run(problem, search, seed, arguments.seconds))
    searches = tuple(VARIANTS) if arguments.runs else (*SEARCHES, *MERGED)
    rows = []
    for family in dict.fromkeys(family for family, _ in found):
        cells = [family, str(len(found[family, searches[0]]))]
        for search in searches:
            runs = found[family, search]
            reached = sum(outcome.reached for outcome in runs)
            seconds, above = (statistics.median(values) for values in list(zip(*runs, strict=True))[1:])
            cells.append(f"{reached}, {seconds:.3g} s, {above:.2%}")
        rows.append(cells)
    text = table(rows, ("family", "runs", *searches))
    print(text)
    if arguments.write:
        write_into(arguments.write, {"tight-runs" if arguments.runs else "tight": text})


if __name__ == "__main__":
    main()
