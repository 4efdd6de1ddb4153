"""What a call through ``stowplan serve`` costs: ``python -m benchmarks.calls.serve [--repeat N] [--deadlines N]``.

For a small instance of every kind: later calls of :func:`stowplan.solve` in this process, and the same problem as a line to a
server, with its answer; in turns, so that both have the same load of the machine. Medians of the clock. Then the fallback, of
requests whose deadline is over at once. Last, how late answers are: requests with random deadlines on a problem whose search
does not end before them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from typing import Any

import msgspec

import stowplan
from benchmarks.calls.cost import SMALL
from benchmarks.lib.places import EXAMPLES
from benchmarks.lib.tables import table

#: An instance whose optimum is not proven within the deadlines below, with its options.
LONG = ("resnet101.layers.json", {"target": "nnp-i"})


class Client:
    """A server in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "stowplan", "serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line: bytes) -> tuple[float, bytes]:
        """Seconds until the answer to a line, and the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        began = time.perf_counter()
        self._process.stdin.write(line)
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return time.perf_counter() - began, answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


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
        library, process, fallback, answer = [], [], [], b""
        for _ in range(repeat + 1):
            began = time.perf_counter()
            result = stowplan.solve(problem, time_limit=10.0)
            library.append(time.perf_counter() - began)
            seconds, answer = client.ask(line)
            process.append(seconds)
            said = json.loads(answer)["result"]
            assert (said["status"], said["objective"]) == (result.status, result.objective) or "optimal" not in result.status
        for _ in range(repeat + 1):
            seconds, short = client.ask(request(problem, 1, fallback=True))
            fallback.append(seconds)
        # The first of each loads what the others find loaded.
        one, other, third = (1000 * statistics.median(column[1:]) for column in (library, process, fallback))
        sizes = (f"{len(line) / 1000:,.0f}", f"{len(answer) / 1000:,.0f}")
        cells = (f"{one:.1f}", f"{other:.1f}", f"{other - one:+.1f}", *sizes, f"{third:.1f}")
        rows.append((result.kind.replace("_", " "), *cells, "yes" if json.loads(short)["fallback"] else "no: proven"))
        print(f"{name}: {result.status}", file=sys.stderr, flush=True)
    head = ("library, ms", "process, ms", "difference, ms", "request, kB", "answer, kB", "short deadline, ms", "fallback")
    print(table(rows, ("kind", *head)))


def deadlines(client: Client, count: int) -> None:
    """Print how long after their deadlines requests are answered."""
    draw, late, without = random.Random(1), [], 0
    problem = stowplan.read(EXAMPLES / LONG[0], **LONG[1])
    for _ in range(count):
        limit = draw.uniform(20, 1000)
        seconds, answer = client.ask(request(problem, limit))
        without += json.loads(answer)["result"]["plan"] is None
        late.append(1000 * seconds - limit)
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
