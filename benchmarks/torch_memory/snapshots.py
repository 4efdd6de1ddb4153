"""Memory snapshots of a million events: seconds to read them, to a first plan and to the last, and the gap.

    python -m benchmarks.torch_memory.snapshots [--events 1000000] [--time-limit 30] [--sorts steady,shapes] [FILE...]

Snapshots are written by a plain model of torch's allocator, of training steps that are all alike (``steady``) or of batches of
changing length (``shapes``). A file is read in its place. What the table calls first is the first plan below torch's own
layout; seconds count from the begin of reading.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import random
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import stowplan
from benchmarks.lib.tables import table
from benchmarks.torch_memory.allocator import Allocator
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input
from stowplan.result import Progress

#: Layers of the model, its parameters in floats, and lengths of batches.
LAYERS, WIDTH, LENGTHS = 24, 512, (3, 8, 5, 11, 2, 9, 13, 4, 7, 12, 6, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for reading and planning")
    parser.add_argument("--sorts", default="steady,shapes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = given.files
        for sort in [] if files else given.sorts.split(","):
            files.append(Path(folder) / f"{sort}.pickle")
            files[-1].write_bytes(pickle.dumps(training(sort, given.events)))
        # A process each, whose memory is that of reading and planning alone.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
            rows = list(pool.map(measured, files, [given.time_limit] * len(files)))
    head = "snapshot,events,MB,read s,first s,end s,reserved MiB,arena MiB,bound MiB,gap,fragmented,peak MB"
    print(table(rows, head.split(",")))


def training(sort: str, events: int) -> dict[str, object]:
    """The snapshot of so many events, at least, of training."""
    chance, allocator = random.Random(0), Allocator()
    stacks = [[{"filename": "train.py", "line": line, "name": "forward"}] * 12 for line in range(LAYERS)]
    for _ in range(3 * LAYERS):
        for size in (12 * WIDTH * WIDTH, 4 * WIDTH):
            allocator.malloc(4 * size)
    while len(allocator.events) < events:
        length = 8 if sort == "steady" else chance.choice(LENGTHS)
        kept = []
        for layer in range(LAYERS):
            for factor in (1, 3, 1, 4, 4, 1):
                kept.append(allocator.malloc(4 * 128 * WIDTH * length * factor, 0, stacks[layer]))
                allocator.free(allocator.malloc(4 * 128 * length * factor + 4, 0, stacks[layer]))
        for address in reversed(kept):
            allocator.free(allocator.malloc(4 * 128 * WIDTH * length, 0, stacks[0]))
            allocator.free(address)
    return allocator.snapshot()


def measured(path: Path, limit: float) -> tuple[str, ...]:
    """A row of the table."""
    began = time.monotonic()
    opened = open_input(path, ReadOptions())
    assert opened.findings is not None
    torch = opened.findings.plans()
    read = time.monotonic() - began
    first: list[float] = []

    def progress(news: Progress) -> None:
        least = torch["torch"].objective if torch else 1 << 62
        if not first and news.objective is not None and news.objective < least:
            first.append(read + news.seconds)

    result = stowplan.solve(opened.problem, time_limit=max(1.0, limit - read), plans=torch, on_progress=progress)
    facts = opened.findings.details(result.objective, result.bound)["snapshot"]
    ended = time.monotonic() - began
    mib = [f"{(value or 0) / (1 << 20):,.1f}" for value in (facts["peaks"]["reserved"], result.objective, result.bound)]
    lost = f"{facts['fragmentation'] / facts['peaks']['reserved']:.1%}"
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return (
        path.name,
        f"{facts['events']:,}",
        f"{path.stat().st_size / 1e6:.0f}",
        f"{read:.1f}",
        f"{first[0]:.1f}" if first else "none",
        f"{ended:.1f}",
        *mib,
        f"{result.gap:.2%}",
        lost,
        f"{used:,.0f}",
    )


if __name__ == "__main__":
    main()
