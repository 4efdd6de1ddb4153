"""Memory mapping within a second or two: ``python -m benchmarks.calls.short_limits [MODULE ...]``.

Every module of ../shared/corpus/tpu_v4 is solved within 0.3, 1 and 2 s in a warm process, one call after the other, each with a
problem that is new to the process, and by the command line within 2 s, reading included: with the default candidates, without
the learned guide, and with each family by itself. Gaps are to the best bounds known: those of ``--bounds`` (a file beside this
one, or what ``benchmarks.memory_mapping.modules --json-out`` wrote) and of these runs.

``--first 0.3 1`` adds first calls of new processes through the library, reading not counted, ``--busy 2`` all of that beside so
many processes of full load. ``--limits``, ``--cold`` and ``--first`` without numbers leave out what they stand for.

Tables say gaps, true and as reported, in how many calls candidates had no report, by how much limits were overrun, and what the
time of the default went into, in this process and its workers: spans of stages by the clock, mean ms a call
(``benchmarks/lib/stages.py``). Results are kept in the file of ``--json-out`` as they come; what is there is not run again. The
machine should be at leisure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.lib import stages
from benchmarks.lib.busy import beside
from benchmarks.lib.places import ROOT, SHARED
from benchmarks.lib.processor import seconds_of_children

WAYS = {
    "default": "heuristic,learned,exact",
    "no guide": "heuristic,exact",
    "heuristic": "heuristic",
    "learned": "learned",
    "exact": "exact",
}

#: The best bounds that these commands have proven of the corpus.
BOUNDS = Path(__file__).with_name("tpu_v4_bounds.json")

#: Those on which guides were measured (docs/results/guidance.md).
HARD = (
    "resnet101_train_b16",
    "resnet50_train_b32",
    "wavenet_inf_b32",
    "nmt_attn_train_b32",
    "gpt2s_train_b2_s512",
    "gpt2m_train_b1_s512",
)

#: Seconds of each of two calls before the first that counts.
WARMING = 4.0

#: A new process that reads, solves, and prints what the command line would with ``--json``.
FIRST = """
import json, sys, time
import stowplan
path, candidates, limit, seed = sys.argv[1:]
problem = stowplan.read(path, target="tpu-v4")
began = time.monotonic()
result = stowplan.solve(problem, time_limit=float(limit), candidates=candidates, seed=int(seed))
ended = time.monotonic()
row = {"objective": result.objective, "bound": result.bound, "began": began, "ended": ended, "seconds": ended - began}
row |= {"source": result.provenance.candidate, "reason": result.stop_reason, "warnings": result.warnings}
print(json.dumps(row | {"history": [[each.seconds, each.source, each.objective] for each in result.history]}))
"""

#: As the command line runs it; ``--worker`` is this file in the process that calls again and again.
PROGRAM = "from stowplan.cli import main; main()"


def warm_calls(paths: list[Path], ways: list[str], limits: list[float], seed: int) -> None:
    """In a process of its own: print a line of JSON for each call, after some that make it warm."""
    import msgspec

    import stowplan
    from stowplan.kernel.kind import kind_of

    is_warm = False
    # Small ones need no workers.
    for path in sorted(paths, key=lambda path: path.stat().st_size < 20_000):
        problem = stowplan.read(path, target="tpu-v4")
        kind, data = kind_of(problem), msgspec.json.encode(problem)
        for way in ways:
            for limit in limits:
                for again in [limit] if is_warm else [WARMING, WARMING, limit]:
                    # Nothing that an earlier call has found out of the problem counts.
                    fresh = kind.problem.decode(data)
                    used, began, clock = time.process_time() + seconds_of_children(), time.monotonic(), os.times()
                    result = stowplan.solve(fresh, time_limit=again, candidates=WAYS[way], seed=seed)
                    ended, after = time.monotonic(), os.times()
                is_warm = True
                row = {
                    "key": f"{path.name.partition('.')[0]} {way} {limit:g}",
                    "objective": result.objective,
                    "bound": result.bound,
                    "began": began,
                    "ended": ended,
                    "seconds": ended - began,
                    "cpu": time.process_time() + seconds_of_children() - used,
                    "own": after.user + after.system - clock.user - clock.system,
                    "source": result.provenance.candidate,
                    "reason": result.stop_reason,
                    "history": [[each.seconds, each.source, each.objective] for each in result.history],
                    "warnings": result.warnings,
                    "pid": os.getpid(),
                }
                print(json.dumps(row), flush=True)


def cold_call(path: Path, way: str, limit: float, seed: int, environment: dict[str, str]) -> dict[str, Any]:
    """The command line, once."""
    command = [sys.executable, "-c", PROGRAM, "solve", str(path), "--target", "tpu-v4", "--time-limit", f"{limit:g}"]
    command += ["--candidates", WAYS[way], "--seed", str(seed), "--json", "-q"]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    result = json.loads(process.communicate()[0])
    ended = time.monotonic()
    return {
        "objective": result["objective"],
        "bound": result["bound"],
        "began": began,
        "ended": ended,
        "seconds": ended - began,
        "source": result["provenance"]["candidate"],
        "reason": result["stop_reason"],
        "history": [[each["seconds"], each["source"], each["objective"]] for each in result["history"]],
        "warnings": result["warnings"],
        "pid": process.pid,
    }


def first_call(path: Path, way: str, limit: float, seed: int, environment: dict[str, str]) -> dict[str, Any]:
    """The library's first call in a new process."""
    command = [sys.executable, "-c", FIRST, str(path), WAYS[way], str(limit), str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    return {**json.loads(process.communicate()[0]), "pid": process.pid}


def gap(row: dict[str, Any], bound: int) -> float:
    """In per cent."""
    return 100.0 * (row["objective"] - bound) / row["objective"]


def worst(gaps: dict[str, float]) -> str:
    """Cells of a table: mean, worst, and on which module."""
    name = max(gaps, key=lambda name: gaps[name])
    return f"{statistics.fmean(gaps.values()):.2f} | {gaps[name]:.2f} | {name}"


def tables(rows: dict[str, dict[str, Any]], bounds: dict[str, int]) -> None:
    """Print gaps, overruns, and where the time went."""
    of: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for key, row in rows.items():
        name, way_and_limit = key.split(" ", 1)
        way, limit = way_and_limit.rsplit(" ", 1)
        of[way, limit][name] = row
    head = "candidates | limit | modules | gap %: mean | worst | on | reported | worst | on | hard six | no report | over, s"
    print(f"| {head} |")
    print("|---|--:|--:|--:|--:|---|--:|--:|---|--:|--:|--:|")
    for (way, limit), found in of.items():
        gaps = {name: gap(row, bounds[name]) for name, row in found.items()}
        reported = {name: gap(row, row["bound"]) for name, row in found.items()}
        hard = [gaps[name] for name in HARD if name in gaps]
        silent = sum(any("no report" in text for text in row.get("warnings", ())) for row in found.values())
        late = max(row["seconds"] - float(limit) for row in found.values())
        cells = (way, limit, len(gaps), worst(gaps), worst(reported), f"{statistics.fmean(hard) if hard else 0:.2f}", silent)
        print(f"| {' | '.join(map(str, cells))} | {late:+.2f} |")
    columns = [each for each in of if each[0].split()[0] == "default"]
    heads = [f"{way} {limit} s".removeprefix("default ") for way, limit in columns]
    names = sorted({name for each in columns for name in of[each]})
    if columns:
        print("\n| module |", " | ".join(f"{head}, gap %" for head in heads), "|\n|---|" + "--:|" * len(columns))
    for name in names:
        cells = [f"{gap(of[each][name], bounds[name]):.2f}" if name in of[each] else "" for each in columns]
        if any(float(cell or 0) >= 0.05 for cell in cells):
            print(f"| {name} | {' | '.join(cells)} |")
    for way, limit in columns:
        families = [way.replace("default", family, 1) for family in ("heuristic", "learned", "exact")]
        others = {family: of[family, limit] for family in families if (family, limit) in of}
        for name, row in of[way, limit].items():
            for family, found in others.items():
                if name in found and found[name]["objective"] < row["objective"]:
                    less = 100.0 * (row["objective"] - found[name]["objective"]) / row["objective"]
                    print(f"{name}, {limit} s: {family} alone is better by {less:.3f} %")
    every = sorted({stage for each in columns for row in of[each].values() for stage in row.get("stages", {})})
    if every:
        print("\n| stage, ms a call |", " | ".join(heads), "|\n|---|" + "--:|" * len(columns))
    for stage in every:
        means = [1e3 * statistics.fmean(row.get("stages", {}).get(stage, 0.0) for row in of[each].values()) for each in columns]
        print(f"| {stage} | {' | '.join(f'{value:.0f}' for value in means)} |")


def main() -> None:
    """Run what has not been run, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="names of modules; all without any")
    parser.add_argument("--folder", type=Path, default=SHARED / "corpus" / "tpu_v4")
    parser.add_argument("--limits", type=float, nargs="*", default=[0.3, 1.0, 2.0])
    parser.add_argument("--cold", type=float, nargs="*", default=[2.0])
    parser.add_argument("--first", type=float, nargs="*", default=[], help="limits of first calls of new processes")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="processes of full load beside all calls")
    parser.add_argument("--ways", nargs="+", choices=[*WAYS], default=[*WAYS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bounds", type=Path, nargs="*", default=[BOUNDS], help="files of modules --json-out, or of this one")
    parser.add_argument("--json-out", type=Path, default=Path("out/short_limits.json"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    paths = sorted(arguments.folder.glob("*.hlo.txt.gz"))
    if arguments.modules:
        paths = [path for path in paths if path.name.partition(".")[0] in arguments.modules]
    if not paths:
        sys.exit(f"{arguments.folder}: no modules (*.hlo.txt.gz) of these names")
    if arguments.worker:
        warm_calls(paths, arguments.ways, arguments.limits, arguments.seed)
        return
    kept: Path = arguments.json_out
    kept.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = json.loads(kept.read_bytes()) if kept.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace"
        found_in = [str(stages.folder(Path(scratch) / "site")), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(found_in), stages.TRACE: str(trace)}

        def keep(key: str, row: dict[str, Any]) -> None:
            where = stages.spent(trace, row["began"], row["ended"])
            row["stages"] = defaultdict(float)
            for (process, stage), seconds in where.items():
                row["stages"][f"{'caller' if process == row['pid'] else 'workers'}: {stage}"] += seconds
            trace.write_text("")
            rows[key] = row
            kept.write_text(json.dumps(rows))
            print(f"{key}: {row['objective'] / 1e9:.4f} ms after {row['seconds']:.2f} s", file=sys.stderr, flush=True)

        load = f" beside {arguments.busy}" if arguments.busy else ""
        new_processes = {"cold": (cold_call, arguments.cold), "first": (first_call, arguments.first)}
        with beside(arguments.busy):
            for way in arguments.ways:
                for label, (call, limits) in new_processes.items():
                    for limit in limits:
                        for path in paths:
                            key = f"{path.name.partition('.')[0]} {way} {label}{load} {limit:g}"
                            if key not in rows:
                                keep(key, call(path, way, limit, arguments.seed, environment))
            kinds = [f"{way}{load} {limit:g}" for way in arguments.ways for limit in arguments.limits]
            names = [path.name.partition(".")[0] for path in paths]
            missing = [name for name in names if any(f"{name} {each}" not in rows for each in kinds)]
            if missing and arguments.limits:
                command = [sys.executable, "-m", "benchmarks.calls.short_limits", *missing, "--worker"]
                command += ["--ways", *arguments.ways, "--folder", str(arguments.folder), "--seed", str(arguments.seed)]
                command += ["--limits", *map(str, arguments.limits)]
                with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
                    assert process.stdout is not None
                    for line in process.stdout:
                        row = json.loads(line)
                        name_and_way, _, limit = row.pop("key").rpartition(" ")
                        keep(f"{name_and_way}{load} {limit}", row)
    bounds: dict[str, int] = {}
    for path in arguments.bounds:
        for key, row in json.loads(path.read_bytes()).items():
            name = key.split(" ")[0]
            bounds[name] = max(bounds.get(name, 0), row["bound"])
    for key, row in rows.items():
        name = key.split(" ")[0]
        bounds[name] = max(bounds.get(name, 0), row["bound"])
    tables(rows, bounds)
    load = os.getloadavg()[0]
    print(f"\nload {load:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
