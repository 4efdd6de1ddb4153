"""What each part of memory mapping's relaxation is worth: bounds of the candidate alone, with parts left out or replaced.

    python -m benchmarks.memory_mapping.milp_ablation --seconds 10 --processes 2 --json-out ablation.json

Modules come from ../shared/corpus/tpu_v4 (or $STOWPLAN_SHARED/corpus/tpu_v4, or a folder that is named). Each bound is found
in a process of its own with one thread, nothing beside it. Limits are seconds of that process's CPU time, so that other work on
the machine weighs little; the variants of one module run one after the other. Gaps are measured to the best objectives known,
which ``tpu_v4_objectives.json`` beside this file has. Results are written to the JSON file as they come, so that a run that was
interrupted continues where it ended.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import highspy

from benchmarks.lib.places import SHARED
from stowplan import files
from stowplan.frontends.read import read
from stowplan.models.memory_mapping.milp import solve as solving
from stowplan.models.memory_mapping.milp.segments import SegmentBounds
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch, ScaledHighs
from stowplan.models.memory_mapping.milp.tightening import DetailedModel
from stowplan.models.memory_mapping.problem import Problem

#: A gap below this is called closed: some of the objectives known are rounded to four digits after the point of milliseconds.
CLOSED = 1e-4

#: The best objective known of each module, in picoseconds.
OBJECTIVES = Path(__file__).with_name("tpu_v4_objectives.json")

VARIANTS = {
    "full": "as the candidate `relaxation` does it: segments, cuts, integers",
    "no-cuts": "own cuts left out; HiGHS makes some of its own for integers",
    "no-integers": "linear programs with cuts only",
    "whole": "the whole program at once in place of segments",
}


class CpuHighs(ScaledHighs):
    """HiGHS whose limits are CPU seconds."""

    def __init__(self, model: Any, seed: int, should_stop: Any = None):
        self._end = math.inf
        super().__init__(model, seed, lambda: time.process_time() >= self._end)

    def run(self, time_limit: float) -> highspy.HighsModelStatus:
        """Solve."""
        self._end = time.process_time() + time_limit
        return super().run(20.0 * time_limit)


def bound(problem: Problem, variant: str, seconds: float, send: Any) -> None:
    """Run a variant in this process, which is to end afterwards; sends the bound and CPU seconds."""
    time.monotonic = time.process_time
    solving.ScaledHighs = CpuHighs  # type: ignore[misc]
    if variant == "no-cuts":
        RelaxationSearch.cut = lambda self: None  # type: ignore[method-assign]
    effort = Effort(time.process_time() + seconds)
    if variant == "whole":
        search = RelaxationSearch(DetailedModel(problem), effort)
        search.linear()
        search.cut()
        search.integral()
        found = search.bound
    else:
        bounds = SegmentBounds(problem, effort)
        bounds.run(integer=variant != "no-integers")
        found = bounds.bound
    send.send((found, time.process_time()))


def measure(problem: Problem, variant: str, seconds: float) -> dict[str, Any]:
    """Run a variant in a new process."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=bound, args=(problem, variant, seconds, there))
    process.start()
    there.close()
    try:
        value, used = here.recv()
    except EOFError:
        sys.exit(f"{problem.name}, {variant}: ended without a bound")
    process.join()
    return {"bound": value, "seconds": used}


def objectives(path: Path) -> dict[str, int]:
    """Objective of each module in picoseconds, from a file in the form that ``modules --json-out`` writes."""
    return {name: row["objective"] for name, row in json.loads(path.read_bytes()).items()}


def table(rows: dict[str, Any], known: dict[str, int], variants: list[str]) -> str:
    """Gap and CPU seconds of each variant for each module."""
    lines = ["| module | uses | best bound ms | " + " | ".join(f"{v} %" for v in variants) + " |"]
    lines.append("|" + " --- |" * (3 + len(variants)))
    gaps: dict[str, list[float]] = {variant: [] for variant in variants}
    best_of = dict.fromkeys(variants, 0)
    used = dict.fromkeys(variants, 0.0)
    for name, row in sorted(rows.items()):
        found = {variant: row[variant]["bound"] for variant in variants if variant in row}
        if len(found) < len(variants):
            continue
        best = max(found.values())
        objective = max(best, known.get(name, best))
        cells = []
        for variant in variants:
            gap = (objective - found[variant]) / objective
            gaps[variant].append(gap)
            best_of[variant] += found[variant] >= best * (1 - 1e-6)
            used[variant] += row[variant]["seconds"]
            cells.append(f"{100 * gap:.3f} ({row[variant]['seconds']:.0f} s)")
        lines.append(f"| {name} | {row['uses']:,} | {best / 1e9:.4f} | {' | '.join(cells)} |")
    for title, values in (
        ("mean gap", {v: f"{100 * statistics.fmean(gaps[v] or [0]):.3f}" for v in variants}),
        ("closed", {v: str(sum(gap < CLOSED for gap in gaps[v])) for v in variants}),
        ("best, to a millionth", {v: str(best_of[v]) for v in variants}),
        ("CPU seconds", {v: f"{used[v]:.0f}" for v in variants}),
    ):
        lines.append(f"| {title} | | | {' | '.join(values[v] for v in variants)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=SHARED / "corpus" / "tpu_v4")
    parser.add_argument("--target", default="tpu-v4")
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU seconds a bound")
    parser.add_argument("--processes", type=int, default=1, help="bounds at the same time")
    parser.add_argument("--variants", default=",".join(VARIANTS), help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--only", default="", help="modules whose names contain one of these, with commas between")
    parser.add_argument(
        "--objectives",
        type=Path,
        default=OBJECTIVES,
        help="best objectives known: a file that modules --json-out wrote (default: the one beside this file)",
    )
    parser.add_argument("--json-out", type=Path, default=Path("ablation.json"))
    options = parser.parse_args()
    variants = options.variants.split(",")
    rows: dict[str, Any] = json.loads(options.json_out.read_bytes()) if options.json_out.exists() else {}
    known = objectives(options.objectives)
    lock = Lock()
    paths = [
        path
        for path in sorted(options.folder.glob("*.hlo.txt.gz"))
        if any(part in path.name.removesuffix(".hlo.txt.gz") for part in options.only.split(","))
    ]
    if not paths:
        sys.exit(f"{options.folder}: no modules (*.hlo.txt.gz) of these names")

    def work(path: Path) -> None:
        name = path.name.removesuffix(".hlo.txt.gz")
        missing = [variant for variant in variants if variant not in rows.get(name, {})]
        if not missing:
            return
        problem = read(path, options.target)
        for variant in missing:
            found = measure(problem, variant, options.seconds)
            with lock:
                rows.setdefault(name, {"uses": problem.use_count, "limit": options.seconds})[variant] = found
                files.write_atomic(options.json_out, json.dumps(rows, indent=1).encode())
            print(f"{name}, {variant}: {found['bound'] / 1e9:.5f} ms, {found['seconds']:.1f} s", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(work, paths))
    print(table(rows, known, variants))
    for variant in variants:
        print(f"* {variant}: {VARIANTS[variant]}")


if __name__ == "__main__":
    main()
