"""Bounds by prices, step by step: ``python -m benchmarks.memory_mapping.first_bounds [MODULE ...]``.

For each module of ../shared/corpus/tpu_v4 how far bounds are below the best known (``benchmarks/calls/tpu_v4_bounds.json``), in
%: the floor, after some steps from constant prices, and after the last; the same from the last prices of such a run, which is
as good as a start can be; and the plain linear relaxation. Times are of the processor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import stowplan
from benchmarks.calls.short_limits import BOUNDS
from benchmarks.lib.places import SHARED
from benchmarks.lib.tables import table
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import arrays
from stowplan.portfolio.memory_mapping.priced import PARAMS, Priced, ascend, new_priced

#: Steps after which bounds are looked at.
LOOKS = (10, 30, 100, PARAMS.most_steps)


def ascent(problem: Problem, start: Priced | None = None) -> tuple[list[int], float, Priced]:
    """Bounds after each number of steps, seconds, and the last prices; from the prices of ``start``, or from constant ones."""
    began = time.process_time()
    data = arrays.build(problem)
    priced = new_priced(problem, data)
    assert priced is not None
    if start is not None:
        for own, given in zip(
            (priced.memory, priced.channel, priced.share), (start.memory, start.channel, start.share), strict=True
        ):
            own[:] = given
        priced.squares[:] = start.squares
    done, best, bounds = 0, problem.floor_ps, []
    for steps in LOOKS:
        best = max(best, ascend(data, priced, steps - done, done == 0 and start is None))
        bounds.append(best)
        done = steps
    return bounds, time.process_time() - began, priced


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="names of modules; all without any")
    parser.add_argument("--folder", type=Path, default=SHARED / "corpus" / "tpu_v4")
    arguments = parser.parse_args()
    known = {name: row["bound"] for name, row in json.loads(BOUNDS.read_bytes()).items()}
    rows: list[list[float]] = []
    names = []
    for path in sorted(arguments.folder.glob("*.hlo.txt.gz")):
        name = path.name.partition(".")[0]
        if arguments.modules and name not in arguments.modules:
            continue
        problem = stowplan.read(path, target="tpu-v4")
        bounds, seconds, priced = ascent(problem)
        again, _, _ = ascent(problem, priced)
        began = time.process_time()
        _, linear = relaxation_hint(problem, Effort(end=time.monotonic() + 60.0))
        of_linear = time.process_time() - began
        best = known[name]
        gaps = [100.0 * (best - bound) / best for bound in (problem.floor_ps, *bounds, again[0], linear)]
        names.append(name)
        rows.append([*gaps, 1e3 * seconds, 1e3 * of_linear])
        print(name, *(f"{value:.3f}" for value in rows[-1]), file=sys.stderr, flush=True)
    if not rows:
        sys.exit(f"{arguments.folder}: no modules (*.hlo.txt.gz) of these names")
    heads = ["module", "floor", *(f"{steps} steps" for steps in LOOKS), f"{LOOKS[0]} from last", "linear", "ms", "linear, ms"]
    columns = [[row[at] for row in rows] for at in range(len(heads) - 1)]
    shown = [[name, *(f"{value:.2f}" for value in row)] for name, row in zip(names, rows, strict=True) if row[0] >= 0.05]
    shown.append([f"mean of {len(rows)}", *(f"{statistics.fmean(column):.2f}" for column in columns)])
    print(table(shown, heads))


if __name__ == "__main__":
    main()
