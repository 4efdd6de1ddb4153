"""Packing with reuse penalties on the instances of dsa-solver, beside its published results, judged by its validator.

    git clone https://github.com/tonibohnlein/dsa-solver && git -C dsa-solver submodule update --init third_party/json
    python -m benchmarks.foreign.dsa dsa-solver lifts --time-limit 60 -o lifts.json
    python -m benchmarks.foreign.dsa dsa-solver pairs --time-limit 60 -o pairs.json
    python -m benchmarks.foreign.dsa dsa-solver others --time-limit 60 -o others.json

``lifts`` are the eleven instances made from those of minimalloc, ``pairs`` the 204 captures of a compiler in which reuse costs
something, ``others`` all other captures, in which any plan within the capacities will do. Everything runs on one core with one
worker. Plans are written as solutions and judged by their validator, which ``judge.cpp`` beside this file calls; it is compiled
first, which needs a C++ compiler. Results are kept in the file of ``-o``, and what is there is not run again. ``--table`` only
prints the table. Nothing of that project is part of this one.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import stowplan
from benchmarks.lib.tables import table
from stowplan.errors import InputError
from stowplan.frontends.dsa import write_solution

#: What the validator consists of, in their folder ``src/dsa/model``.
SOURCES = ("model.cpp", "structured_json.cpp", "structured_problem.cpp", "validator.cpp")

#: In the names of the two problems that are made from one capture: some pairs may not share bytes, or pay for it.
HARD, SOFT = "-cross-pipe-hard", "-cross-pipe-soft"


def build_judge(folder: Path) -> Path:
    """Compiles the judge in their folder, if it is not there; returns its path."""
    judge = folder / "stowplan-judge"
    if not judge.exists():
        sources = [Path(__file__).with_name("judge.cpp"), *(folder / "src/dsa/model" / name for name in SOURCES)]
        includes = [f"-I{folder / 'src'}", f"-I{folder / 'third_party/json/single_include'}"]
        command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", *includes, *map(str, sources), "-o", str(judge)]
        subprocess.run(command, check=True)
    return judge


def inputs(folder: Path, which: str) -> list[Path]:
    """The files of a set, sorted."""
    if which == "lifts":
        return sorted((folder / "benchmarks/minimalloc-dsa-rp").glob("*.json"))
    captures = sorted(path for name in ("pypto", "pypto-lib") for path in (folder / "benchmarks" / name).rglob("*.json"))
    return [path for path in captures if (SOFT in path.name) == (which == "pairs")]


def published(folder: Path, which: str) -> dict[str, dict[str, Any]]:
    """Their best cost of each instance by any method, whether they proved it, and the seconds of that method's median run."""
    name = {"lifts": "minimalloc-dsa-rp-v1", "pairs": "dsa-rp-v1"}.get(which)
    best: dict[str, dict[str, Any]] = {}
    if name is None:
        return best
    with open(folder / "benchmarks/results" / name / "summary.csv", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            # A plan of the counterpart in which reuse is forbidden is one of this problem, too.
            instance = row["source"].replace(HARD, SOFT)
            entry = best.setdefault(instance, {"cost": None, "seconds": None, "proven": False, "longest": 0.0})
            entry["longest"] = max(entry["longest"], float(row["median_runtime_us"] or 0) / 1e6)
            if not int(row["valid_runs"] or 0) or (row["best_capacity_overflow"] or "0") != "0":
                continue
            cost = int(row["best_reuse_cost"] or 0)
            seconds = float(row["median_runtime_us"] or 0) / 1e6
            if entry["cost"] is None or (cost, seconds) < (entry["cost"], entry["seconds"]):
                entry |= {"cost": cost, "seconds": seconds, "method": row["method"]}
            entry["proven"] |= row["certified_optimal"] == "true" and row["source"] == instance
    for entry in best.values():
        entry["proven"] |= entry["cost"] == 0
    return best


def solve(path: Path, folder: Path, judge: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Solves an instance and has the plan judged."""
    began, cpu = time.monotonic(), time.process_time()
    problem = stowplan.read(path)
    more = {} if options.candidates is None else {"candidates": options.candidates}
    result = stowplan.solve(problem, time_limit=options.time_limit, workers=1, seed=options.seed, **more)
    row: dict[str, Any] = {
        "buffers": len(problem.buffers),
        "penalties": len(problem.penalties or ()),
        "status": result.status,
        "stop_reason": result.stop_reason,
        "objective": result.objective,
        "bound": result.bound,
        "seconds": round(time.monotonic() - began, 2),
        # Of this process, in which annealing runs; the exact candidate has another.
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "last_plan": result.history[-1].seconds if result.history else None,
        "judged": None,
    }
    if result.plan is not None:
        solution = folder / "stowplan-solution.json"
        write_solution(path, result.plan, solution)
        judged = subprocess.run([judge, path, solution], capture_output=True, text=True, check=True).stdout.strip()
        row["judged"] = judged if judged.startswith("rejected") else int(judged.split()[0])
    return row


def print_table(results: dict[str, Any], theirs: dict[str, dict[str, Any]], which: str) -> None:
    """Prints the results beside theirs: each lift, or the sums over all captures and those that differ."""
    rows = []
    for name, row in results.items():
        other = theirs.get(name, {"cost": None, "proven": False, "seconds": None})
        settled = row["status"] in ("optimal", "infeasible")
        differs = row["objective"] != other["cost"] or settled != other["proven"]
        if which == "lifts" or (which == "pairs" and differs):
            seconds = "" if other["seconds"] is None else f"{other['seconds']:.1f}"
            judged = "accepted" if row["judged"] == row["objective"] is not None else row["judged"] or "no plan"
            short = Path(name).stem.replace(SOFT, "").removeprefix("pypto_")
            cells = [row["buffers"], row["penalties"], other["cost"], "yes" if other["proven"] else "no", seconds]
            rows.append(
                [
                    short,
                    *cells,
                    row["objective"],
                    row["bound"],
                    row["status"],
                    row["seconds"],
                    row.get("cpu_seconds", ""),
                    judged,
                ]
            )
    print(
        table(
            rows,
            [
                "instance",
                "buffers",
                "penalties",
                "theirs",
                "proven",
                "s",
                "ours",
                "bound",
                "status",
                "s",
                "CPU s",
                "their validator",
            ],
        )
    )
    found = [row for row in results.values() if row["objective"] is not None]
    judged_well = sum(not isinstance(row["judged"], str) and row["judged"] is not None for row in found)
    print(f"\n{len(results)} instances, {len(found)} plans, {judged_well} of them accepted by their validator", end="")
    if which != "others":
        both = [(row, theirs[name]) for name, row in results.items() if name in theirs]
        agree = all(row["judged"] == row["objective"] for row in found)
        print(f", {'all' if agree else 'NOT all'} with the same cost")
        ours, others = (sum(row["objective"] or 0 for row, _ in both), sum(other["cost"] or 0 for _, other in both))
        print(f"sum of costs: ours {ours}, theirs {others}")
        proven = sum(row["status"] in ("optimal", "infeasible") for row, _ in both)
        print(f"settled: ours {proven}, theirs {sum(entry['proven'] for _, entry in both)}")
        lost = sum(entry["proven"] and row["status"] != "optimal" for row, entry in both)
        print(f"settled by them and not by us: {lost}")
        print(f"longest run of a method of theirs: {max(entry['longest'] for _, entry in both):.1f} s", end="")
    statuses = [row["status"] for row in results.values()]
    print("\nstatus:", ", ".join(f"{statuses.count(name)} {name}" for name in sorted({*statuses})))


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a checkout of dsa-solver")
    parser.add_argument("which", choices=("lifts", "pairs", "others"))
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of an instance (default: 60)")
    parser.add_argument("--candidates", help="only these candidates (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True, help="file of the results")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    if not options.table:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        judge = build_judge(options.folder)
        for path in inputs(options.folder, options.which):
            name = str(path.relative_to(options.folder))
            if name in results:
                continue
            try:
                results[name] = solve(path, options.folder, judge, options)
            except InputError as error:
                print(error, file=sys.stderr)
                continue
            options.output.write_text(json.dumps(results, indent=1))
            print(name, results[name], file=sys.stderr, flush=True)
    print_table(results, published(options.folder, options.which), options.which)


if __name__ == "__main__":
    main()
