"""Whether a batch survives ``kill -9``: ``python -m benchmarks.calls.batch_kills [--files N] [--kills N] [--seed N]``.

Makes small inputs (packings of 5 to 20 buffers, loop bodies of 3 to 8 instructions) and solves them twice with ``stowplan batch
--deterministic``: once undisturbed, and once while the command itself or one of its workers is killed at random moments; after
each kill of the command its processes must end, and it is run again. Then compares journal, records and plans with each other
and with those of the run that nobody disturbed, and prints a markdown table. The exit code is 1 where anything was lost, is
there twice, differs, or stayed behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OPS = ("add", "sub", "mul")

#: What is compared of two results: all that does not depend on the clock.
SAME = ("kind", "objective", "bound", "status", "plan")

#: Seconds after which a process that is still there counts as an orphan.
ORPHAN_SECONDS = 10.0

#: How often the command itself is killed, of all kills.
OF_COMMAND = 0.4


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where all files go, and stay; else a temporary folder")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        chance = random.Random(given.seed)
        make_suite(folder / "suite", given.files, chance)
        calm = Batch(folder, "calm", given.jobs)
        calm.run()
        killed = Batch(folder, "killed", given.jobs)
        killed.run_with_kills(given.kills, given.files, chance)
        faults = compare(folder, calm, killed, given.files)
    for row in [
        ("", ""),
        ("---", "--:"),
        ("inputs", f"{given.files:,}"),
        ("kills of the command", killed.kills["command"]),
        ("kills of a worker", killed.kills["worker"]),
        ("lines of the journal found cut short", killed.torn),
        ("longest that a process outlived the command", f"{killed.longest:.2f} s"),
        ("seconds, undisturbed", f"{calm.seconds:.0f}"),
        ("seconds, with kills", f"{killed.seconds:.0f}"),
        *((what, f"{count:,}") for what, count in faults.items()),
    ]:
        print(f"| {row[0]} | {row[1]} |")
    fine = faults.pop("lines in the journal") == given.files
    return 0 if fine and not any(faults.values()) and not killed.orphans else 1


def make_suite(folder: Path, count: int, chance: random.Random) -> None:
    """Four packings for each loop body."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        if number % 5:
            rows = ["id,lower,upper,size"]
            for buffer in range(chance.randint(5, 20)):
                lower = chance.randint(0, 20)
                rows.append(f"b{buffer},{lower},{lower + chance.randint(1, 10)},{64 * chance.randint(1, 64)}")
            (folder / f"packing{number:04}.csv").write_text("\n".join(rows) + "\n")
        else:
            ops = [f"n{node} [op={chance.choice(OPS)}]" for node in range(chance.randint(3, 8))]
            edges = [f"n{chance.randrange(node)} -> n{node}" for node in range(1, len(ops))]
            (folder / f"loop{number:04}.dot").write_text(f"digraph {{ {'; '.join([*ops, *edges])} }}\n")


class Batch:
    """Runs of the same command, until all inputs are done."""

    def __init__(self, folder: Path, name: str, jobs: int):
        self.output = folder / name
        self._command = [sys.executable, "-c", "from stowplan.cli import main; main()", "batch", str(folder / "suite")]
        self._command += ["-o", str(self.output), "--target", "se", "--jobs", str(jobs), "--deterministic", "--time-limit", "5"]
        self._command += ["--candidates", "cpsat", "-q"]
        self.kills: Counter[str] = Counter()
        self.torn = self.orphans = 0
        self.longest = self.seconds = 0.0

    def run(self) -> None:
        """Once, to its end."""
        began = time.monotonic()
        subprocess.run(self._command, stdout=subprocess.DEVNULL, check=True)
        self.seconds += time.monotonic() - began

    def run_with_kills(self, count: int, files: int, chance: random.Random) -> None:
        """Kill so often, spread at random over the results; then let it come to its end."""
        began = time.monotonic()
        process = self._start()
        while sum(self.kills.values()) < count:
            # Every fifth follows the one before, whatever has begun by then.
            done = self._results()
            pause = max(1.0, (files - done) / (2 * (count - sum(self.kills.values()))))
            results = done + int(chance.expovariate(1 / pause)) * (chance.random() > 0.2)
            while process.poll() is None and self._results() < results:
                time.sleep(0.05)
            time.sleep(chance.uniform(0.0, 0.5))
            if process.poll() is not None:
                if process.returncode:
                    raise SystemExit(f"the batch ended by itself with exit code {process.returncode}")
                print(f"done after {sum(self.kills.values())} of {count} kills", file=sys.stderr)
                break
            if chance.random() < OF_COMMAND:
                self._kill_command(process)
                process = self._start()
                continue
            while not (workers := children(process.pid)) and process.poll() is None:
                time.sleep(0.005)
            if workers:
                self.kills["worker"] += _kill(chance.choice(workers))
        if process.wait():
            raise SystemExit(f"the batch ended with exit code {process.returncode}")
        self.seconds += time.monotonic() - began

    def _results(self) -> int:
        """Lines of the journal so far."""
        journal = self.output / "results.jsonl"
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def _kill_command(self, process: subprocess.Popen[bytes]) -> None:
        """And see that all its processes end with it."""
        others = list(descendants(process.pid))
        self.kills["command"] += 1
        process.kill()
        process.wait()
        began = time.monotonic()
        while any(map(is_running, others)) and time.monotonic() - began < ORPHAN_SECONDS:
            time.sleep(0.005)
        self.longest = max(self.longest, time.monotonic() - began)
        self.orphans += sum(map(is_running, others))
        journal = self.output / "results.jsonl"
        self.torn += journal.exists() and not journal.read_bytes().endswith(b"\n") and journal.stat().st_size > 0


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> Iterator[int]:
    """They and what these have started."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def compare(folder: Path, calm: Batch, killed: Batch, count: int) -> dict[str, int]:
    """What is wrong, by what it is; and the lines of the journal."""
    names = {path.name.rpartition(".")[0] for path in (folder / "suite").iterdir()}
    lines = [json.loads(line) for line in (killed.output / "results.jsonl").read_text().splitlines()]
    seen = Counter(line["name"] for line in lines)
    records = {name: _record(killed.output, name) for name in names}
    faults = {
        "lines in the journal": len(lines),
        "inputs without a line": len(names - seen.keys()),
        "inputs with more than one": sum(number > 1 for number in seen.values()),
        "records that are missing or say otherwise": sum(records[line["name"]] != line["record"] for line in lines),
        "plans that differ from those of the other run": 0,
        "results that differ": 0,
    }
    for name in names:
        plans = [(each.output / f"{name}.plan.json").read_bytes() for each in (calm, killed)]
        faults["plans that differ from those of the other run"] += plans[0] != plans[1]
        results = [_result(_record(each.output, name)) for each in (calm, killed)]
        faults["results that differ"] += results[0] != results[1]
    expected = {f"{name}.{what}.json" for name in names for what in ("plan", "result")} | {"results.jsonl"}
    faults["files too many"] = len({path.name for path in killed.output.iterdir()} - expected)
    faults["processes that stayed"] = killed.orphans
    assert len(names) == count
    return faults


def _record(folder: Path, name: str) -> Any:
    path = folder / f"{name}.result.json"
    return json.loads(path.read_text()) if path.exists() else None


def _result(record: Any) -> Any:
    return record and (record["exit_code"], record["error"], {name: record["result"][name] for name in SAME})


if __name__ == "__main__":
    sys.exit(main())
