"""All modules of a folder at one time limit: a table of objectives, bounds, gaps and speedups.

    python -m benchmarks.memory_mapping.modules --time-limit 10 --json-out results.json --markdown-out docs/benchmarks-table.md

Modules come from ../shared/corpus/tpu_v4 (or $STOWPLAN_SHARED/corpus/tpu_v4, or a folder that is named), XLA's own plans
from the folder tpu_v4_xla_plan beside it. Results are kept in the JSON file as they come: a run that was interrupted, and is
started again with the same limits, goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.lib.places import SHARED
from stowplan import files, solve
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input
from stowplan.frontends.xla_plan import import_xla_plan
from stowplan.kernel.workers import warm as warm_workers


def run_module(path: Path, plans: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Plan one module; plain values for the table."""
    time_limit, workers = options.time_limit, options.workers
    began = time.monotonic()
    problem, program, *_ = open_input(path, read_options(path, options))
    read_seconds = time.monotonic() - began
    given = {}
    if (plans / path.name).exists() and program is not None:
        given["xla"] = import_xla_plan(problem, program, plans / path.name).plan
    result = solve(problem, time_limit=time_limit, workers=workers, plans=given)
    # Workers count when they have ended.
    warm_workers.workers().close()
    memory_kib = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "uses": problem.use_count,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status,
        "R": result.details["normalised_return"],
        "best": result.provenance.candidate,
        "baselines": result.baselines,
        "sources": result.details["sources"],
        "time_limit": time_limit,
        "workers": workers,
        "cost_model": options.cost_model,
        "seconds": result.seconds,
        "history": [[entry.seconds, entry.objective, entry.bound] for entry in result.history],
        "read_seconds": read_seconds,
        "peak_mib": memory_kib / 1024,
        "warnings": list(result.warnings),
    }


def read_options(path: Path, options: argparse.Namespace) -> ReadOptions:
    """Target and cost model; the cycles of a module are those of the files of its name."""
    if options.cost_model in (None, "roofline"):
        return ReadOptions(target=options.target, cost_model=options.cost_model)
    slow = path.name.replace(".hlo.txt", ".nomsa.hlo.txt")
    return ReadOptions(
        target=options.target, cost_model=options.cost_model, cycles=(options.cycles / slow, options.cycles / path.name)
    )


def speedup(row: dict[str, Any], over: str) -> float | None:
    """Speedup of a row's plan over one of its baselines."""
    value = row["baselines"].get(over)
    return value / row["objective"] if value else None


def markdown(rows: dict[str, dict[str, Any]], command: str) -> str:
    """The table, with means and medians at the foot."""
    head = "module | uses | objective ms | bound ms | gap % | R | over all_slow | over greedy | over XLA | best | seconds"
    lines = [f"`{command}`", "", f"| {head} |", "|" + " --- |" * (head.count("|") + 1)]
    for name, row in rows.items():
        over = [speedup(row, baseline) for baseline in ("all_slow", "greedy", "xla")]
        cells = [
            name,
            f"{row['uses']:,}",
            f"{row['objective'] / 1e9:.4f}",
            f"{row['bound'] / 1e9:.4f}",
            "optimal" if row["status"] == "optimal" else f"{100 * row['gap']:.2f}",
            f"{row['R']:.4f}",
            *("" if ratio is None else f"{ratio:.3f}" for ratio in over),
            row["best"],
            f"{row['seconds']:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *summary(rows)]) + "\n"


def summary(rows: dict[str, dict[str, Any]]) -> list[str]:
    """What the table says in a few lines."""
    gaps = [row["gap"] for row in rows.values()]
    lines = [
        f"* {len(rows)} modules; gap: median {100 * statistics.median(gaps):.2f} %, worst {100 * max(gaps):.2f} %; "
        f"proven optimal: {sum(row['status'] == 'optimal' for row in rows.values())}."
    ]
    for baseline in ("all_slow", "greedy", "xla"):
        ratios = [ratio for row in rows.values() if (ratio := speedup(row, baseline)) is not None]
        if ratios:
            mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
            lines.append(
                f"* Over {baseline}: {mean:.4f} on geometric average, {statistics.fmean(ratios):.4f} on arithmetic average, "
                f"{statistics.median(ratios):.4f} in the median, "
                f"{max(ratios):.3f} at best, {min(ratios):.3f} at worst; "
                f"faster on {sum(ratio > 1 for ratio in ratios)} of {len(ratios)}."
            )
        if ratios and baseline == "xla":
            limits = [row["baselines"][baseline] / row["bound"] for row in rows.values() if baseline in row["baselines"]]
            lines.append(
                f"  No plans can be more than {statistics.fmean(limits):.4f} times better on arithmetic average, that is every "
                "plan at its bound: by this target's cost model, and over XLA's plan as repaired to our rules on import, which "
                "is not quite the plan that XLA runs (docs/reference/xla.md)."
            )
    beaten = sum(
        min(row["sources"].get(name, math.inf) for name in ("insertion", "guided")) < row["sources"]["greedy"]
        for row in rows.values()
        if "greedy" in row["sources"]
    )
    lines.append(
        f"* Constructive heuristics alone (`insertion`, `guided`) beat the production-style greedy on {beaten} of {len(rows)}."
    )
    peak = max(row["peak_mib"] for row in rows.values())
    lines.append(f"* Peak memory of one process plus the largest child, over the whole run: {peak:,.0f} MiB.")
    return lines


def largest(folder: Path, target: str) -> None:
    """Read, plan by heuristics and verify the largest module, within 20 s in all."""
    path = max(folder.glob("*.hlo.txt.gz"), key=lambda each: each.stat().st_size)
    path = folder / "nmt_attn_train_t64_b16.hlo.txt.gz" if (folder / "nmt_attn_train_t64_b16.hlo.txt.gz").exists() else path
    began = time.monotonic()
    problem, *_ = open_input(path, ReadOptions(target=target))
    read = time.monotonic() - began
    result = solve(problem, time_limit=20 - read - 1, candidates="heuristic")
    print(f"{path.name}: {problem.use_count:,} uses, read in {read:.1f} s, {time.monotonic() - began:.1f} s in all")
    print(result.summary())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=SHARED / "corpus" / "tpu_v4")
    parser.add_argument("--plans", type=Path, help="XLA's plans (default: the folder FOLDER_xla_plan)")
    parser.add_argument("--target", default="tpu-v4")
    parser.add_argument("--cost-model", choices=("roofline", "table", "signatures"), help="instead of the target's")
    parser.add_argument(
        "--cycles",
        type=Path,
        default=SHARED / "corpus" / "tpu_v4_cycles",
        help="for the other two: NAME.nomsa.hlo.txt.gz and NAME.hlo.txt.gz with cycles; modules without them are left out",
    )
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds a module")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help="modules whose names contain this")
    parser.add_argument("--json-out", type=Path, default=Path("memory_mapping.json"))
    parser.add_argument("--markdown-out", type=Path)
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--largest", action="store_true", help="only: the largest module by heuristics, within 20 s")
    options = parser.parse_args()
    if not options.folder.is_dir():
        sys.exit(f"{options.folder}: no such folder; name one, or put the shared corpus beside the repository")
    if options.largest:
        largest(options.folder, options.target)
        return
    plans = options.plans or options.folder.with_name(f"{options.folder.name}_xla_plan")
    rows: dict[str, dict[str, Any]] = {}
    if options.json_out.exists() and not options.fresh:
        rows = json.loads(options.json_out.read_bytes())
        limits = options.time_limit, options.workers, options.cost_model
        rows = {n: row for n, row in rows.items() if (row["time_limit"], row["workers"], row.get("cost_model")) == limits}
    if not plans.is_dir():
        print(f"{plans}: no such folder, so that there is nothing to compare with XLA", file=sys.stderr)
    paths = [path for path in sorted(options.folder.glob("*.hlo.txt.gz")) if (options.only or "") in path.name]
    if options.cost_model in ("table", "signatures"):
        paths = [path for path in paths if (options.cycles / path.name).exists()]
    if not paths:
        sys.exit(
            f"{options.folder}: no modules (*.hlo.txt.gz)" + (f" with {options.only!r} in their names" if options.only else "")
        )
    for number, path in enumerate(paths, 1):
        name = path.name.removesuffix(".hlo.txt.gz")
        if name in rows:
            continue
        rows[name] = run_module(path, plans, options)
        files.write_atomic(options.json_out, json.dumps(rows, indent=1).encode())
        row = rows[name]
        found = f"{row['objective'] / 1e9:.4f} ms, gap {100 * row['gap']:.2f} %, {row['seconds']:.1f} s"
        print(f"[{number}/{len(paths)}] {name}: {found}", file=sys.stderr, flush=True)
    command = f"python -m benchmarks.memory_mapping.modules --time-limit {options.time_limit:g} --workers {options.workers}"
    command += f" --cost-model {options.cost_model}" if options.cost_model else ""
    table = markdown(dict(sorted(rows.items())), command)
    if options.markdown_out:
        files.write_atomic(options.markdown_out, table.encode())
    print(table)


if __name__ == "__main__":
    main()
