"""What a call costs: ``python -m benchmarks.calls.cost [--repeat N] [--examples FILE=TARGET ...]``.

For a small instance of every kind: the command line, from its start to its end; the first call of :func:`stowplan.solve` in a
new process (of both the best of three) and later ones in the same (median); and beside them the bare algorithm: the same
candidates, one after the other in this process, everything loaded, until plan and bound meet. Seconds of the clock; in brackets
those of the processor of all processes, half a second after the call included, which tell more on a machine that others use.

Bytecode of everything is there, as after an installation: a call that is not measured writes it to a folder of its own.
*Cold* is a container image that runs a checkout: that of this package is missing (``PYTHONDONTWRITEBYTECODE=1``), and nothing
can be written to the home folder.

``--cache`` instead: the same instances, found in the plan cache: by the object that was solved, by one read anew, and by the
command line; what the digest of the problem and the verifier take of that.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import stowplan
from benchmarks.lib.places import EXAMPLES
from benchmarks.lib.tables import table
from stowplan import files
from stowplan.kernel.context import Options, Report
from stowplan.kernel.kind import check, kind_of
from stowplan.kernel.workers.messages import CandidateId, Job, RunUpdate, WorkerContext

#: A small instance of every kind, with its target.
SMALL = (
    "buffers.csv=",
    "banks.json=",
    "cells.graph.json=",
    "training.remat.json=",
    "fir.dfg.json=se",
    "attention.hlo.txt=inferentia",
    "resnet50.layers.json=nnp-i",
    "alexnet_inf_b1.hlo.txt.gz=teaching",
)

#: Calls of which the best counts.
TRIALS = 3

_PR_SET_CHILD_SUBREAPER = 36

#: The command line.
PROGRAM = "from stowplan.cli import main; main()"

#: First call and later ones, in a process of their own: prints seconds of the clock and of processors, kind and status.
CALLS = """
import json, resource, sys, time
import stowplan
from benchmarks.lib.processor import seconds_of_children

def used():
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + seconds_of_children()

path, target, repeat, limit = sys.argv[1:]
problem = stowplan.read(path, target=target or None)
seconds = []
for number in range(int(repeat) + 1):
    before, began = used(), time.perf_counter()
    result = stowplan.solve(problem, time_limit=float(limit))
    ended = time.perf_counter()
    time.sleep(0.5)
    seconds.append((ended - began, used() - before))
print(json.dumps([seconds, result.kind, result.status]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--examples", nargs="+", metavar="FILE=TARGET", help="instances; of the examples by name")
    parser.add_argument("--repeat", type=int, default=5, help="later calls, and runs of the bare algorithm")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--cache", action="store_true", help="what is found in the plan cache, in place of all that")
    arguments = parser.parse_args()
    # Workers that outlive the command line for a moment are waited for here, and counted.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        if arguments.cache:
            cached_calls(arguments)
        else:
            small_instances(arguments, folder)
    print(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def instances(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Paths and targets."""
    for example in arguments.examples or SMALL:
        name, _, target = example.partition("=")
        yield name if os.path.exists(name) else str(EXAMPLES / name), target


def small_instances(arguments: argparse.Namespace, bytecode: str) -> None:
    """Print the table of small instances: once with the bytecode of that folder, then without that of this package."""
    chosen = [*instances(arguments)]
    rows = []
    for path, target in chosen:
        line = command_line(path, target, arguments.time_limit)
        first, later, kind, status = calls(path, target, arguments.repeat, arguments.time_limit)
        bare = statistics.median(bare_seconds(path, target, arguments))
        cells = (pair(line), pair(first), pair(median(later), 1000), f"{1000 * bare:.0f}" if bare < math.inf else "open")
        of_file = f" ({Path(path).name})" if arguments.examples else ""
        rows.append((kind.replace("_", " ") + of_file, *cells))
        print(f"{path}: {status}", file=sys.stderr, flush=True)
    shutil.rmtree(bytecode + str(Path(stowplan.__file__).parent))
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", HOME=os.devnull)
    os.environ.pop("XDG_CACHE_HOME", None)
    for number, (path, target) in enumerate(chosen):
        line = command_line(path, target, arguments.time_limit)
        first, *_ = calls(path, target, 0, arguments.time_limit)
        rows[number] += (pair(line), pair(first))
        print(f"{path}: cold", file=sys.stderr, flush=True)
    head = ("command line, s", "first call, s", "later calls, ms", "bare, ms", "cold command line, s", "cold first call, s")
    print(table(rows, ("kind", *head)))


def pair(seconds: tuple[float, float], factor: int = 1) -> str:
    """A cell of a table: the clock, and in brackets the processor."""
    digits = 2 if factor == 1 else 0
    return " ".join((f"{factor * seconds[0]:.{digits}f}", f"({factor * seconds[1]:.{digits}f})"))


def cached_calls(arguments: argparse.Namespace) -> None:
    """Print what calls take whose result is in the plan cache: processor time of this process, medians."""
    print("| instance | kind | same object | wall | read anew | wall | digest | verifier | command line | wall |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for path, target in instances(arguments):
        with tempfile.TemporaryDirectory() as folder:
            problem = stowplan.read(path, target=target or None)
            kind = kind_of(problem)
            result = stowplan.solve(problem, time_limit=arguments.time_limit, cache=folder)

            def again(problem: Any, folder: str = folder) -> tuple[float, float]:
                used, began = time.process_time(), time.perf_counter()
                repeated = stowplan.solve(problem, time_limit=arguments.time_limit, cache=folder)
                assert "cached" in repeated.details, repeated.stop_reason
                return time.process_time() - used, time.perf_counter() - began

            again(problem)
            same = median([again(problem) for _ in range(arguments.repeat)])
            others = [stowplan.read(path, target=target or None) for _ in range(arguments.repeat)]
            anew = median([again(other) for other in others])
            digest = median([timed(files.digest, problem) for _ in range(arguments.repeat)])
            verifier = median([timed(check, kind, problem, result.plan) for _ in range(arguments.repeat)])
            wall, processor = command_line(path, target, arguments.time_limit, "--cache", folder)
            print(
                f"| {Path(path).name} | {kind.title} | {milliseconds(*same)} | {milliseconds(*anew)} | "
                f"{1000 * digest[0]:.1f} ms | {1000 * verifier[0]:.1f} ms | {processor:.2f} s | {wall:.2f} s |",
                flush=True,
            )


def timed(work: Callable[..., Any], *what: Any) -> tuple[float, float]:
    """Seconds of the processor and of the clock that a call takes."""
    used, began = time.process_time(), time.perf_counter()
    work(*what)
    return time.process_time() - used, time.perf_counter() - began


def median(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Medians of both."""
    one, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    return one, other


def milliseconds(processor: float, wall: float) -> str:
    """Two cells of a table."""
    return f"{1000 * processor:.1f} ms | {1000 * wall:.1f} ms"


def command_line(path: str, target: str, limit: float, *others: str) -> tuple[float, float]:
    """Seconds of the command line in all, and of processors: the best of some calls, each for itself; one more comes before."""
    options = ["--target", target, *others] if target else others
    times = []
    with tempfile.TemporaryDirectory() as folder:
        command = ["solve", path, *options, "-q", "-o", f"{folder}/plan.json", "--time-limit"]
        # The first may have all bytecode to write.
        for seconds in (limit + 60.0, *(limit for _ in range(TRIALS))):
            used, own, began = _children(), _own_children(), time.perf_counter()
            subprocess.run([sys.executable, "-c", PROGRAM, *command, str(seconds)], check=True, stdout=subprocess.DEVNULL)
            wall = time.perf_counter() - began
            for process in _own_children() - own:
                os.waitpid(process, 0)
            times.append((wall, _children() - used))
    return best(times[1:])


def best(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The least of both."""
    one, other = (min(column) for column in zip(*pairs, strict=True))
    return one, other


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _own_children() -> set[int]:
    """Processes whose parent this one is."""
    texts = (path.read_text(encoding="ascii") for path in Path("/proc/self/task").glob("*/children"))
    return {int(number) for text in texts for number in text.split()}


def calls(path: str, target: str, repeat: int, limit: float) -> Any:
    """The first call, the best of some processes; so many later ones, all in one process; kind and status."""
    firsts, later = [], []
    for again in (*(0 for _ in range(TRIALS - 1)), repeat):
        command = [sys.executable, "-c", CALLS, path, target, str(again), str(limit)]
        seconds, kind, status = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        first, *later = (tuple(pair) for pair in seconds)
        firsts.append(first)
    return best(firsts), later, kind, status


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
        """Run them until plan and bound meet and baselines are there; infinite where they do not."""
        options = Options(time_limit=self._limit)
        began = time.perf_counter()
        for source, plan in self._kind.initial(self._problem).items():
            self._offer(msgspec.json.encode(plan), source)
        # Proofs first: a search may go on for ever where it cannot hear of one.
        every = sorted(self._kind.candidates(self._problem, options), key=lambda candidate: candidate.family != "exact")
        for candidate in every:
            if candidate.family == "learned" or candidate.by_name_only or self._is_closed:
                continue
            end = time.monotonic() + self._limit
            job = Job(CandidateId.of(self._kind.name, candidate.name), options, b"", end, self._plan, self._bound)
            self._context = WorkerContext(job, self._handle_messages)
            self._kind.function(candidate.name)(self._problem, self._context)
        return time.perf_counter() - began if self._is_closed else math.inf

    @property
    def _is_closed(self) -> bool:
        is_proven = self._objective is not None and self._objective <= self._bound
        return is_proven and self._kind.awaited(self._problem) <= self._sources

    def _handle_messages(self, report: Report) -> None:
        if report.what == "plan":
            self._offer(report.data, report.source)
        elif report.what == "bound":
            self._bound = max(self._bound, report.bound)
        if self._context is not None and self._is_closed:
            self._context.apply(RunUpdate(is_over=True))

    def _offer(self, data: bytes, source: str) -> None:
        verdict = check(self._kind, self._problem, self._kind.plan.decode(data))
        if verdict.ok and verdict.objective is not None:
            self._sources.add(source)
            if self._objective is None or verdict.objective < self._objective:
                self._objective, self._plan = verdict.objective, data


if __name__ == "__main__":
    main()
