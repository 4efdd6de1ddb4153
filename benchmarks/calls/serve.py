"""What a call through ``stowplan serve`` costs: ``python -m benchmarks.calls.serve [--repeat N] [--deadlines N]``.

For a small instance of every kind: later calls of :func:`stowplan.solve` in this process, and the same problem as a line to a
server, with its answer; in turns, so that both have the same load of the machine. Then the fallback, of requests whose deadline
is over at once. Medians of the clock and, in brackets, means of the processor time of all processes. Last, how late answers
are:
requests with random deadlines on a problem whose search does not end before them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import stowplan
from benchmarks.calls.cost import SMALL, pair
from benchmarks.lib.places import EXAMPLES
from benchmarks.lib.processor import seconds_of
from benchmarks.lib.tables import table

#: An instance whose optimum is not proven within the deadlines below, with its options.
LONG = ("resnet101.layers.json", {"target": "nnp-i"})


class Client:
    """A server in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "stowplan", "serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line: bytes) -> bytes:
        """The answer to a line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def timed(work: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    """Seconds of the clock and of processors that a call takes, and what it returns."""
    used, began = _used(os.getpid()), time.perf_counter()
    outcome = work()
    ended = time.perf_counter()
    # Workers that were stopped need a moment to end.
    time.sleep(0.2)
    return (ended - began, _used(os.getpid()) - used), outcome


def _used(pid: int) -> float:
    """Seconds of processors that a process and all that it has started have used, in steps of a hundredth."""
    children: list[str] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread may have ended in the meantime.
        with contextlib.suppress(OSError):
            children += path.read_text().split()
    return seconds_of(pid) + sum(_used(int(child)) for child in children)


def request(problem: Any, deadline_ms: float, **fields: Any) -> bytes:
    """The line of a request to solve."""
    raw = msgspec.Raw(msgspec.json.encode(problem))
    return msgspec.json.encode({"id": 1, "type": "solve", "problem": raw, "deadline_ms": deadline_ms, **fields}) + b"\n"


def small_instances(client: Client, repeat: int) -> None:
    """Print the table of small instances."""
    rows = []
    for example in SMALL:
        name, _, target = example.partition("=")
        problem = stowplan.read(EXAMPLES / name, target=target or None)
        line = request(problem, 10_000)
        short = request(problem, 1, fallback=True)
        seconds: tuple[list[tuple[float, float]], ...] = ([], [], [])
        for _ in range(repeat + 1):
            calls: tuple[Callable[[], Any], ...] = (
                partial(stowplan.solve, problem, time_limit=10.0),
                partial(client.ask, line),
                partial(client.ask, short),
            )
            outcomes = []
            for column, call in zip(seconds, calls, strict=True):
                taken, outcome = timed(call)
                column.append(taken)
                outcomes.append(outcome)
            result, answer, late = outcomes
            said = json.loads(answer)["result"]
            assert "optimal" not in (said["status"], result.status) or said["objective"] >= result.bound
        # The first of each loads what the others find loaded.
        cells = []
        for column in seconds:
            clock, processor = zip(*column[1:], strict=True)
            cells.append(pair((statistics.median(clock), statistics.mean(processor)), 1000))
        sizes = (f"{len(line) / 1000:,.0f}", f"{len(answer) / 1000:,.0f}")
        outcome = "the fallback" if json.loads(late)["fallback"] else "proven optimal"
        rows.append((result.kind.replace("_", " "), *cells[:2], *sizes, cells[2], outcome))
        print(f"{name}: {result.status}", file=sys.stderr, flush=True)
    head = ("library, ms", "process, ms", "request, kB", "answer, kB", "after a deadline of 1 ms, ms", "answer")
    print(table(rows, ("kind", *head)))


def deadlines(client: Client, count: int) -> None:
    """Print how long after their deadlines requests are answered."""
    draw, late, without = random.Random(1), [], 0
    problem = stowplan.read(EXAMPLES / LONG[0], **LONG[1])
    for _ in range(count):
        limit = draw.uniform(20, 1000)
        began = time.perf_counter()
        answer = client.ask(request(problem, limit))
        late.append(1000 * (time.perf_counter() - began) - limit)
        without += json.loads(answer)["result"]["plan"] is None
    late.sort()
    print(
        f"\n{count} requests with deadlines of 20 to 1000 ms: {sum(value > 0 for value in late)} answered after the deadline, "
        f"median {statistics.median(late):+.0f} ms, latest {late[-1]:+.0f} ms; {without} without a plan"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=15, help="calls of each sort")
    parser.add_argument("--deadlines", type=int, default=50, help="requests with random deadlines")
    arguments = parser.parse_args()
    client = Client()
    small_instances(client, arguments.repeat)
    deadlines(client, arguments.deadlines)
    client.close()
    print(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
