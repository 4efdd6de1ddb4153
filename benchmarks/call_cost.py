"""What a call costs: ``python benchmarks/call_cost.py [--repeat N] [--examples FILE=TARGET ...]``.

For small instances of every kind: the command line, from its start to its end; the first call of :func:`stowplan.solve` in a
new process and later ones in the same (median); and beside them the bare algorithm: the same candidates, one after the other in
this process, everything loaded, until plan and bound meet. Wall clock; for the command line the processor time of its own
process too, which tells more on a machine that others use. The first verified plan is counted from the first call in a process.

``--graphs FOLDER... --target NAME`` instead: the data-flow graphs of up to 60 instructions, one after the other in one process,
and when their initiation intervals were proven.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import stowplan
from stowplan.models.modulo_scheduling.plan import decode_objective
from stowplan.portfolio.candidate_context import WorkerContext
from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import check, kind_of
from stowplan.portfolio.messages import Job, Report

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "data"

#: Small instances of every kind, with their targets.
SMALL = (
    "buffers.csv=",
    "fir.dfg.json=se",
    "saxpy.dfg.json=se",
    "attention.hlo.txt=inferentia",
    "resnet50.layers.json=nnp-i",
    "alexnet_inf_b1.hlo.txt.gz=teaching",
    "lstm_scan_inf_b32.hlo.txt.gz=tpu-v4",
)

#: Graphs with more instructions are left out.
MOST_NODES = 60

#: First call and later ones, in a process of their own: prints seconds, the first plan, kind and status.
CALLS = """
import json, sys, time
import stowplan
path, target, repeat, limit = sys.argv[1:]
problem = stowplan.read(path, target=target or None)
seconds = []
for number in range(int(repeat) + 1):
    began = time.perf_counter()
    result = stowplan.solve(problem, time_limit=float(limit))
    seconds.append(time.perf_counter() - began)
    if not number:
        first = next((entry.seconds for entry in result.history if entry.objective is not None), None)
    time.sleep(0.5)
print(json.dumps([seconds, first, result.kind, result.status]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--examples", nargs="+", default=SMALL, metavar="FILE=TARGET", help="instances; of the examples by name"
    )
    parser.add_argument("--repeat", type=int, default=5, help="later calls, and runs of the bare algorithm")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--graphs", nargs="+", type=Path, metavar="FOLDER", help="data-flow graphs, in place of all that")
    parser.add_argument("--target", default="se", help="of the graphs")
    arguments = parser.parse_args()
    if arguments.graphs:
        prove_graphs(arguments)
        return
    print("| instance | kind | status | command line | CPU | first call | later calls | bare | difference | first plan |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for each in arguments.examples:
        name, _, target = each.partition("=")
        path = name if os.path.exists(name) else str(EXAMPLES / name)
        wall, processor = command_line(path, target, arguments.time_limit)
        (first, *later), plan, kind, status = calls(path, target, arguments)
        bare = statistics.median(bare_seconds(path, target, arguments))
        again = statistics.median(later)
        first_plan = "none" if plan is None else f"{plan:.2f} s"
        print(
            f"| {Path(name).name} | {kind.replace('_', ' ')} | {status} | {wall:.2f} s | {processor:.2f} s | {first:.2f} s | "
            f"{1000 * again:.0f} ms | {1000 * bare:.0f} ms | {1000 * (again - bare):+.0f} ms | {first_plan} |",
            flush=True,
        )
    print(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def prove_graphs(arguments: argparse.Namespace) -> None:
    """Print when the initiation intervals of graphs were proven."""
    proven, processor, total = [], [], 0
    for path in sorted(each for folder in arguments.graphs for each in folder.rglob("*.json")):
        try:
            problem = stowplan.read(path, target=arguments.target)
        except stowplan.StowplanError:
            continue
        if kind_of(problem).name != "modulo_scheduling" or len(problem.instructions) > MOST_NODES:
            continue
        total += 1
        used = time.process_time()
        result = stowplan.solve(problem, time_limit=arguments.time_limit, gap=0.0, candidates="heuristic,exact")
        processor.append(time.process_time() - used)
        when = [
            entry.seconds
            for entry in result.history
            if None not in (entry.objective, entry.bound)
            and decode_objective(entry.objective)[0] == decode_objective(entry.bound)[0]
        ]
        proven += when[:1]
    print(
        f"{total} graphs of up to {MOST_NODES} instructions on {arguments.target}: II proven for {len(proven)}, after "
        f"{statistics.median(proven):.2f} s in a median; {statistics.median(processor):.2f} s of the processor for "
        f"the whole call in a median; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def command_line(path: str, target: str, limit: float) -> tuple[float, float]:
    """Seconds of the command line in all, and of the processor; the better of two calls."""
    options = ["--target", target] if target else []
    found = []
    with tempfile.TemporaryDirectory() as folder:
        command = ["solve", path, *options, "--time-limit", str(limit), "-q", "-o", f"{folder}/plan.json"]
        for _ in range(2):
            used, began = _children(), time.perf_counter()
            program = "from stowplan.cli import main; main()"
            subprocess.run([sys.executable, "-c", program, *command], check=True, stdout=subprocess.DEVNULL)
            found.append((time.perf_counter() - began, _children() - used))
    return min(each[0] for each in found), min(each[1] for each in found)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def calls(path: str, target: str, arguments: argparse.Namespace) -> Any:
    """What :data:`CALLS` says."""
    command = [sys.executable, "-c", CALLS, path, target, str(arguments.repeat), str(arguments.time_limit)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def bare_seconds(path: str, target: str, arguments: argparse.Namespace) -> list[float]:
    """Seconds of the bare algorithm, again and again; the first time loads what it needs and does not count."""
    problem = stowplan.read(path, target=target or None)
    return [Bare(problem, arguments.time_limit).seconds() for _ in range(arguments.repeat + 1)][1:]


class Bare:
    """The candidates of a problem, without a run around them."""

    def __init__(self, problem: Any, limit: float):
        self._problem, self._kind, self._limit = problem, kind_of(problem), limit
        self._bound = self._kind.bound(problem)
        self._objective: int | None = None
        self._plan: bytes | None = None
        self._sources: set[str] = set()
        self._context: WorkerContext | None = None

    def seconds(self) -> float:
        """Run them until plan and bound meet and baselines are there."""
        options = Options(time_limit=self._limit)
        began = time.perf_counter()
        for source, plan in self._kind.initial(self._problem).items():
            self._offer(msgspec.json.encode(plan), source)
        if self._kind.quick_plan is not None:
            quick = self._kind.quick_plan(self._problem, options, lambda: False)
            if quick is not None:
                self._offer(msgspec.json.encode(quick[1]), quick[0])
        # Proofs first: a search may go on for ever where it cannot hear of one.
        every = sorted(self._kind.candidates(self._problem, options), key=lambda each: each.family != "exact")
        for candidate in every:
            if candidate.family == "learned" or candidate.by_name_only or self._is_closed:
                continue
            end = time.monotonic() + self._limit
            job = Job(self._kind.modules, {}, options, b"", end, self._plan, self._bound)
            self._context = WorkerContext(job, self._hear)
            candidate.load()(self._problem, self._context)
        return time.perf_counter() - began

    @property
    def _is_closed(self) -> bool:
        awaited = {*self._kind.baseline_sources} if self._kind.awaits_baselines(self._problem) else set()
        return self._objective is not None and self._objective <= self._bound and awaited <= self._sources

    def _hear(self, report: Report) -> None:
        if report.what == "plan" and report.plan is not None:
            self._offer(report.plan, report.source)
        elif report.what == "bound" and report.bound is not None:
            self._bound = max(self._bound, report.bound)
        if self._context is not None and self._is_closed:
            self._context.end_now()

    def _offer(self, data: bytes, source: str) -> None:
        found = check(self._kind, self._problem, self._kind.decode_plan(data))
        if found.ok and found.objective is not None:
            self._sources.add(source)
            if self._objective is None or found.objective < self._objective:
                self._objective, self._plan = found.objective, data


if __name__ == "__main__":
    main()
