"""Runs of methods, kept in a folder: a JSON file for each that has come to its end, arrays beside it.

A run that was killed leaves no file and is begun anew. Several processes may work on one folder side by side: each takes the
runs that no other has in hand.
"""

from __future__ import annotations

import io
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from benchmarks.lib.one_core import ONE_THREAD
from stowplan import files

Arrays = Mapping[str, np.ndarray]


class Run(Protocol):
    """What is to be run: known by its file, so that other settings must give another one."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def group(self) -> Hashable:
        """Runs of one group take about as long."""

    def file(self, folder: Path) -> Path:
        """Where its record is kept."""


class Record(Protocol):
    """What a run found: a :class:`msgspec.Struct`."""

    @property
    def seconds(self) -> float:
        """That it took."""

    @property
    def result(self) -> str:
        """In a few words."""


R = TypeVar("R")


def load(path: Path, kind: type[R]) -> R | None:
    """The record of an earlier run; None where there is none."""
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Arrays that a finished run left besides its record."""
    beside = path.with_suffix(".npz")
    if not beside.exists():
        return {}
    with np.load(beside) as stored:
        return {name: stored[name] for name in stored.files}


def save(path: Path, record: Any, arrays: Arrays = {}) -> None:  # noqa: B006 - never changed
    """Keep a record; its JSON file comes last, so that what has one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if arrays:
        stream = io.BytesIO()
        np.savez_compressed(stream, **dict[str, Any](arrays))
        files.write_atomic(path.with_suffix(".npz"), stream.getvalue())
    files.write_atomic(path, msgspec.json.format(msgspec.json.encode(record), indent=1))


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Whether this process may make the run of a record; the claim ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: runs may be made twice
        yield True
        return
    lock = path.with_suffix(".lock")
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            lock.unlink(missing_ok=True)


def make_all(
    runs: Sequence[Run], folder: Path, perform: Callable[[Any], tuple[Record, Arrays]], show: Callable[[str], None]
) -> int:
    """Make the runs that are missing, but those that another process has in hand; returns how many of them failed.

    A run that fails is left out; its error is on standard error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [run for run in runs if not run.file(folder).exists()]
    failed, began = 0, time.monotonic()
    for number, run in enumerate(missing, 1):
        path = run.file(folder)
        with claim(path) as mine:
            # Another process may have finished it since.
            if not mine or path.exists():
                continue
            try:
                found, arrays = perform(run)
            except Exception:
                traceback.print_exc()
                show(f"{run.name}: failed")
                failed += 1
                continue
            save(path, found, arrays)
        left = sum(not each.file(folder).exists() for each in missing[number:])
        rest = f", {left} left" if left else ""
        show(f"[{time.monotonic() - began:.0f} s{rest}] {run.name}: {found.result} after {found.seconds:.0f} s")
    return failed


def outlook(runs: Sequence[Run], folder: Path, kind: type[Any]) -> str:
    """How many runs there are to be done, and how long that may take by those that were done."""
    missing = [run for run in runs if not run.file(folder).exists()]
    text = f"{len(runs)} runs, {len(runs) - len(missing)} of them in {folder}, {len(missing)} to be done"
    known: dict[Hashable, list[float]] = {}
    for run in runs:
        found = load(run.file(folder), kind)
        if found is not None:
            known.setdefault(run.group, []).append(found.seconds)
    expected = [statistics.fmean(known[run.group]) for run in missing if run.group in known]
    if expected:
        unknown = len(missing) - len(expected)
        text += f"; about {max(1, round(sum(expected) / 60))} minutes of a core for {len(expected)} of them by those done"
        text += f", {unknown} are the first of their kind" if unknown else ""
    return text


def in_processes(module: str, arguments: Sequence[str], count: int) -> bool:
    """Run a module in so many processes side by side, a core each; whether all of them ended well."""
    command = [sys.executable, "-m", module, *arguments]
    workers = [subprocess.Popen(command, env={**os.environ, **ONE_THREAD}) for _ in range(count)]
    try:
        codes = [worker.wait() for worker in workers]
    except BaseException:
        # As Ctrl-C ends this process, so it ends them; a terminal has told them already.
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        for worker in workers:
            worker.wait()
        raise
    return not any(codes)
