"""Packing over CSV files of buffers.

    python -m benchmarks.packing.files FILE... [--capacity N] [--time-limit S] [--peer PROGRAM]

Prints a markdown table: what was reached, how far above the proven bound, when the final plan was found and by whom. With a
capacity and ``--peer`` (the program of the minimalloc project) each file is solved by both, one after the other, and the times
stand side by side: wall clock, and processor time of all processes, which tells more on a machine that others use too. Without
a capacity, ``--omnimalloc PYTHON`` (an interpreter that has the package omnimalloc) adds what its default allocator reaches, or
with ``--allocator NAME`` one that takes a time limit, such as SupermallocAllocator, within the same seconds.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import stowplan
from benchmarks.lib.processor import seconds_of_children
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.csv_files import read_plan
from stowplan.models.packing.problem import Problem
from stowplan.models.packing.verify import verify
from stowplan.result import Result

T = TypeVar("T")


class Times(NamedTuple):
    """Seconds."""

    wall: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--capacity", type=int, help="bytes to fit into; without it, the least height is sought")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer", type=Path, metavar="PROGRAM", help="minimalloc's program, to be timed as well")
    parser.add_argument("--omnimalloc", metavar="PYTHON", help="interpreter with the package omnimalloc, to be run as well")
    parser.add_argument("--allocator", metavar="NAME", default="", help="of omnimalloc, in place of its default")
    arguments = parser.parse_args()
    if arguments.peer is not None and arguments.capacity is None:
        parser.error("--peer needs a --capacity: minimalloc fits buffers into one")
    head = ["instance", "buffers", "load", "height"]
    if arguments.capacity is None:
        head += ["gap", "status", "found after", "by", "first plan", "greedy", "CPU"]
        head += ["omnimalloc", "wall"] if arguments.omnimalloc is not None else []
    else:
        head += ["wall", "CPU", *(["peer wall", "CPU"] if arguments.peer is not None else [])]
    print_row(head)
    print("|---" + "|--:" * (len(head) - 1) + "|")
    ours, theirs = [], []
    for path in arguments.files:
        problem = stowplan.read(path, capacity=arguments.capacity)
        result, times = timed(
            lambda problem=problem: stowplan.solve(problem, time_limit=arguments.time_limit, seed=arguments.seed)
        )
        ours.append(times)
        height = result.status if result.objective is None else f"{result.objective:,}"
        name = path.stem if arguments.capacity is None else path.stem.removesuffix(f".{arguments.capacity}")
        cells = [name, f"{result.details['buffers']:,}", f"{result.details['load']:,}", height]
        cells += [*quality(result), seconds(times.processor)] if arguments.capacity is None else map(seconds, times)
        if arguments.capacity is None and arguments.omnimalloc is not None:
            cells += run_omnimalloc(arguments, path, problem)
        if arguments.peer is not None:
            text, times = timed(lambda path=path, problem=problem: run_peer(arguments, path, problem))
            theirs.append(times)
            cells += [f"{seconds(times.wall)}{text}", seconds(times.processor)]
        print_row(cells)
    sums = [[sum(each) for each in zip(*times, strict=True)] for times in (ours, theirs) if times]
    if arguments.capacity is not None:
        print_row(["all", "", "", "", *(seconds(each) for pair in sums for each in pair)])
    if theirs:
        wall, processor = (sums[0][at] / sums[1][at] for at in (0, 1))
        print(f"\nours / peer: wall {wall:.2f}, CPU {processor:.2f}")


def print_row(cells: list[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def timed(work: Callable[[], T]) -> tuple[T, Times]:
    """What ``work`` returns, and how long it took this process and its children."""
    began, before = time.monotonic(), processor_seconds()
    found = work()
    return found, Times(time.monotonic() - began, processor_seconds() - before)


def processor_seconds() -> float:
    """Of this process, its workers, and all children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + seconds_of_children()


def run_peer(arguments: argparse.Namespace, path: Path, problem: Problem) -> str:
    """Solve by the other program and verify its plan; a remark where it has none, or a wrong one."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "plan.csv"
        command = [arguments.peer, f"--capacity={arguments.capacity}", f"--input={path}", f"--output={output}"]
        command.append(f"--timeout={arguments.time_limit:g}s")
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        if not output.exists():
            return " (no plan)"
        return "" if verify(problem, read_plan(output, problem)).ok else " (not a valid plan)"


def quality(result: Result) -> list[str]:
    """How good the height is, and when and by which candidate it was found."""
    found = [entry.seconds for entry in result.history if result.objective is not None and entry.objective == result.objective]
    load, greedy = result.details["load"], result.baselines.get("greedy")
    first = next((entry for entry in result.history if entry.objective is not None and entry.source != "stack"), None)
    return [
        "" if result.gap is None else f"{result.gap:.3%}",
        result.status,
        f"{found[0]:.1f} s" if found else "",
        result.provenance.candidate,
        "" if first is None else f"{first.objective / load - 1:.2%} after {first.seconds:.1f} s",
        "" if greedy is None else f"{greedy / load - 1:.3%}",
    ]


#: What the other interpreter runs: a table of buffers, where to write the offsets.
_OMNIMALLOC = """
import csv, sys
from omnimalloc import Allocation, allocate, allocators
allocator = getattr(allocators, sys.argv[3])(timeout=float(sys.argv[4])) if sys.argv[3] else None
rows = list(csv.DictReader(open(sys.argv[1])))
every = [Allocation(id=i, size=int(row["size"]), start=int(row["lower"]), end=int(row["upper"])) for i, row in enumerate(rows)]
offsets = {each.id: each.offset for each in allocate(every, allocator)}
with open(sys.argv[2], "w") as stream:
    stream.write("id,lower,upper,size,offset\\n")
    for i, row in enumerate(rows):
        stream.write(",".join([row["id"], row["lower"], row["upper"], row["size"], str(offsets[i])]) + "\\n")
"""


def run_omnimalloc(arguments: argparse.Namespace, path: Path, problem: Problem) -> list[str]:
    """Its gap, of a plan that was verified, and its wall clock; the default takes no limit and is ended after ours."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "plan.csv"
        began, patience = time.monotonic(), 30 if arguments.allocator else 0
        command = [arguments.omnimalloc, "-c", _OMNIMALLOC, path, output, arguments.allocator, str(arguments.time_limit)]
        try:
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL, timeout=arguments.time_limit + patience)
        except subprocess.TimeoutExpired:
            return ["none in time", ""]
        took = seconds(time.monotonic() - began)
        if not output.exists():
            return ["no plan", took]
        found = verify(problem, plan := read_plan(output, problem))
        return [f"{plan.objective / load_bound(problem) - 1:.3%}" if found.ok else "not a valid plan", took]


def seconds(value: float) -> str:
    return f"{value:.2f} s"


if __name__ == "__main__":
    main()
