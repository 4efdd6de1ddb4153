"""Runs of methods on tier placement at equal evaluations, kept in a folder: one JSON file for each that has come to its end.

A run that was killed leaves no file and is begun anew. Several processes may work on one folder side by side: each takes the
runs that no other has in hand.
"""

from __future__ import annotations

import hashlib
import io
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from benchmarks.lib.places import ROOT
from benchmarks.tier_placement.networks import read
from stowplan import files
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

if TYPE_CHECKING:
    from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig


#: Sources that decide the results of methods that train, and of the others, besides the cost model in the problem.
TRAINING = ("learned_guidance/tier_placement/egrl", "learned_guidance/tier_placement/graph.py", "hardware/nnp_i")
SEARCHING = ("portfolio/tier_placement/heuristics.py", "portfolio/tier_placement/engine.py", "hardware/nnp_i")


@cache
def problem_of(network: str, precision: str) -> Problem:
    """A network of ``examples/data`` on the chip."""
    return read(network, precision)


@cache
def code_digest(trains: bool) -> str:
    """Of the sources that decide results, comments and all."""
    digest = hashlib.sha256()
    for place in TRAINING if trains else SEARCHING:
        path = ROOT / "stowplan" / place
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Run:
    """One method on one network."""

    network: str
    precision: str
    method: str
    seed: int
    evaluations: int
    noise: float = 0.0
    config: EgrlConfig | None = None
    """Of methods that train."""
    seconds: float | None = None
    """After which a method that trains stops, short of its evaluations; None: it has all of them."""

    @property
    def name(self) -> str:
        """For people."""
        noise = f", noise {self.noise:g}" if self.noise else ""
        return f"{self.network} {self.precision}, {self.method}{noise}, seed {self.seed}"

    @property
    def problem(self) -> Problem:
        """The network on the chip."""
        return problem_of(self.network, self.precision)

    def file(self, folder: Path) -> Path:
        """Where its record is kept; another configuration, another budget, another cost model: another file."""
        what = [self.problem.digest, self.evaluations, self.config, *([] if self.seconds is None else [self.seconds])]
        digest = hashlib.sha256(msgspec.json.encode(what, order="sorted")).hexdigest()[:10]
        noise = f".noise{self.noise:g}" if self.noise else ""
        return folder / f"{self.network}.{self.precision}.{self.method}{noise}.seed{self.seed}.{digest}.json"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found."""

    network: str
    precision: str
    method: str
    seed: int
    noise: float
    evaluations: int
    """Of a method that trains, those that it made; of the others, those that it might have made."""
    config: dict[str, Any] | None
    code: str
    """Digest of the sources it was made with."""
    problem: str
    """Digest of the problem."""
    compiler_ps: int
    latency_ps: int | None
    """Of the map that measured best, without noise; None where no map could be executed."""
    measured: float
    """The speedup that was measured of it; 0 for none."""
    points: list[tuple[int, float]]
    """(evaluations, speedup without noise of the map that measured best so far), where it changes."""
    seconds: float
    """Processor time."""
    weight_tiers: list[int]
    output_tiers: list[int]
    bound_ps: int | None = None
    """Of the optimum, where it was proven."""

    @property
    def speedup(self) -> float:
        """Over the compiler, without noise, of the map to deploy; 0 where there is none."""
        return self.compiler_ps / self.latency_ps if self.latency_ps else 0.0

    @property
    def plan(self) -> Plan:
        """The map to deploy."""
        assert self.latency_ps is not None
        weights, outputs = tuple(self.weight_tiers), tuple(self.output_tiers)
        return Plan(problem=self.problem, objective_ps=self.latency_ps, weight_tiers=weights, output_tiers=outputs)


Arrays = dict[str, np.ndarray]
Perform = Callable[[Run], tuple[Record, Arrays]]


def load(run: Run, folder: Path) -> Record | None:
    """The record of an earlier run; None where there is none."""
    path = run.file(folder)
    return msgspec.json.decode(path.read_bytes(), type=Record) if path.exists() else None


def arrays_of(run: Run, folder: Path) -> Arrays:
    """Maps and weights that a finished run left besides its record."""
    path = run.file(folder).with_suffix(".npz")
    if not path.exists():
        return {}
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def save(run: Run, folder: Path, found: Record, arrays: Arrays) -> None:
    """Keep a record; its JSON file comes last, so that what has one is complete."""
    path = run.file(folder)
    if arrays:
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)
        files.write_atomic(path.with_suffix(".npz"), stream.getvalue())
    files.write_atomic(path, msgspec.json.format(msgspec.json.encode(found), indent=1))


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


def make_all(runs: Sequence[Run], folder: Path, perform: Perform, show: Callable[[str], None]) -> int:
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
            save(run, folder, found, arrays)
        passed = time.monotonic() - began
        left = sum(not each.file(folder).exists() for each in missing[number:])
        rest = f", {left} left" if left else ""
        show(f"[{passed:.0f} s{rest}] {run.name}: speedup {found.speedup:.4f} after {found.seconds:.0f} s of processor time")
    return failed


def outlook(runs: Sequence[Run], folder: Path) -> str:
    """How many runs there are to be done, and how long that may take by those that were done."""
    missing = [run for run in runs if not run.file(folder).exists()]
    text = f"{len(runs)} runs, {len(runs) - len(missing)} of them in {folder}, {len(missing)} to be done"
    known: dict[tuple[object, ...], list[float]] = {}
    for run in runs:
        found = load(run, folder)
        if found is not None:
            known.setdefault(_kind(run), []).append(found.seconds)
    expected = [statistics.fmean(known[_kind(run)]) for run in missing if _kind(run) in known]
    if expected:
        unknown = len(missing) - len(expected)
        text += f"; about {max(1, round(sum(expected) / 60))} minutes of a core for {len(expected)} of them by those done"
        text += f", {unknown} are the first of their kind" if unknown else ""
    return text


def _kind(run: Run) -> tuple[object, ...]:
    return run.network, run.method, run.evaluations


def finished(runs: Sequence[Run], folder: Path) -> list[Record]:
    """Records of the runs that are there, with a word where some are missing or of other code."""
    records = [load(run, folder) for run in runs]
    found = [record for record in records if record is not None]
    if len(found) < len(runs):
        print(f"{len(runs) - len(found)} of {len(runs)} runs are not finished: what follows leaves them out", file=sys.stderr)
    old = sum(record.code != code_digest(record.config is not None) for record in found)
    if old:
        print(
            f"{old} of {len(found)} runs were made by another version of the code; delete them to make them anew",
            file=sys.stderr,
        )
    return found
