"""Runs of methods on MMapGame at equal wall time: one process, one core, one JSON file each; a series can be resumed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from benchmarks.lib.memory_mapping.players import WARM_UP_SECONDS, Method
from benchmarks.lib.memory_mapping.small_programs import small_program
from benchmarks.lib.one_core import ONE_THREAD
from benchmarks.lib.runs import load
from stowplan.frontends.read import read
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.game import Best
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify


@dataclass(frozen=True)
class Run:
    """One method on one program."""

    method: str
    program: str
    """Path of a module, or of a converted problem."""
    seed: int
    seconds: float
    target: str = "tpu-v4"
    settings: tuple[str, ...] = ()
    """NAME=VALUE of the training configuration."""

    @property
    def name(self) -> str:
        """Short name of the program."""
        return Path(self.program).name.removesuffix(".gz").removesuffix(".hlo.txt").removesuffix(".json")

    def file(self, folder: Path) -> Path:
        """Where its record is kept; other programs of the same name, or other limits, have files of their own."""
        changed = f".{hashlib.sha256(' '.join(self.settings).encode()).hexdigest()[:8]}" if self.settings else ""
        return folder / f"{self.name}.{self.method}{changed}.{self.seconds:g}s.seed{self.seed}.json"


class Record(msgspec.Struct, frozen=True):
    """What a run found."""

    method: str
    program: str
    seed: int
    seconds: float
    digest: str
    """Of the problem."""
    moves: int
    games: int
    best: float
    """R of the best game, its plan verified."""
    objective_ps: int
    points: list[tuple[float, int, float]]
    """(seconds, games, best R so far)."""
    settings: tuple[str, ...]
    took: float
    """Seconds that the method took; more than the limit where a game or a training step was under way."""
    peak_mib: float


def perform(run: Run, method: Method) -> Record:
    """Run here and now. The clock starts once the program is read and all code is loaded and compiled."""
    # A converted problem has its target already.
    problem = read(Path(run.program), None if run.program.endswith((".json", ".json.gz")) else run.target)
    _warm_up(method, run.settings)
    game = CompiledGame(problem)
    began = time.monotonic()
    best = method(game, run.seed, run.seconds, run.settings)
    took = time.monotonic() - began
    return record(run, game, best, took)


@cache
def _warm_up(method: Method, settings: tuple[str, ...]) -> None:
    method(CompiledGame(small_program("inference", 0)), 0, WARM_UP_SECONDS, settings)


def record(run: Run, game: CompiledGame, best: Best, took: float) -> Record:
    """Verify the best game's plan, and put the result into plain values; AssertionError where a plan is wrong.

    Where no game was finished in time the plan is all slow, and R is 0.
    """
    problem = game.problem
    plan = Plan(problem=problem.digest, objective=problem.all_slow_ps)
    if best.actions is not None and best.return_ps is not None:
        state = game.reset()
        state.play(best.actions)
        plan = state.plan()
        assert plan.objective == problem.all_slow_ps - best.return_ps
    found = verify(problem, plan)
    assert found.ok, found.violations
    return Record(
        method=run.method,
        program=run.name,
        seed=run.seed,
        seconds=run.seconds,
        digest=problem.digest,
        moves=len(game.moves),
        games=best.games,
        best=problem.normalised_return(plan.objective),
        objective_ps=plan.objective,
        points=[(point.seconds, point.games, normalised(problem, point.return_ps)) for point in best.points],
        settings=run.settings,
        took=took,
        peak_mib=_peak_mib(),
    )


def normalised(problem: Problem, return_ps: int) -> float:
    """R of a return."""
    return problem.normalised_return(problem.all_slow_ps - return_ps)


def run_all(runs: Sequence[Run], folder: Path, *, cores: Iterable[int]) -> list[Record]:
    """Records of all runs; those that are not there yet are made, one process at a time on each core.

    A run that fails is left out; its error is on standard error.
    """
    free: SimpleQueue[int] = SimpleQueue()
    count = 0
    for core in cores:
        free.put(core)
        count += 1
    missing = [run for run in runs if load(run.file(folder), Record) is None]
    began = time.monotonic()

    def perform_one(numbered: tuple[int, Run]) -> None:
        number, run = numbered
        core = free.get()
        try:
            _in_a_process(run, folder, core)
        finally:
            free.put(core)
        found = load(run.file(folder), Record)
        result = "failed" if found is None else f"R {found.best:.4f} after {found.games:,} games"
        passed = f"{number}/{len(missing)}, {time.monotonic() - began:.0f} s"
        print(f"[{passed}] {run.name} {run.method} seed {run.seed}: {result}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(count) as pool:
        for _ in pool.map(perform_one, enumerate(missing, 1)):
            pass
    records = [load(run.file(folder), Record) for run in runs]
    return [found for found in records if found is not None]


def _in_a_process(run: Run, folder: Path, core: int) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.muzero.paper",
        "run",
        json.dumps(asdict(run)),
        "--folder",
        str(folder),
        "--core",
        str(core),
    ]
    subprocess.run(command, check=False, env={**os.environ, **ONE_THREAD})


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_processes(count: int, work: Any) -> None:
    """Run ``work(number, counter)`` in so many forked processes, which share a counter."""
    context = multiprocessing.get_context("fork")
    counter = context.Value("q", 0)
    processes = [context.Process(target=work, args=(number, counter)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def take(counter: Any) -> int:
    """The next number."""
    with counter.get_lock():
        counter.value += 1
        return int(counter.value) - 1
