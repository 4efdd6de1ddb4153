"""Players of MMapGame against the best game, on small programs where it is proven."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.lib.memory_mapping.players import METHODS, settings_of
from benchmarks.lib.memory_mapping.small_programs import prove, small_programs, small_windows
from benchmarks.lib.runs import load, save
from benchmarks.lib.tables import table
from benchmarks.muzero.runs import Record, Run, normalised, perform
from stowplan import files
from stowplan.models.memory_mapping.problem import Problem

#: Seconds for the proof of one program; those without a proof are left out.
PROOF_SECONDS = 60.0

#: What the agent is to reach of the best game on every program.
TARGET = 0.95


class Optimum(msgspec.Struct, frozen=True):
    """The best game of a program."""

    best: float
    """R."""
    is_proven: bool
    nodes: int


@dataclass(frozen=True)
class Runs:
    """What is run on every program."""

    methods: Sequence[str]
    seeds: Sequence[int]
    seconds: float
    settings: tuple[str, ...]
    """Of the agent."""
    folder: Path


def compare(modules: Sequence[Path], count: int, target: str, runs: Runs) -> str:
    """Markdown: what each method reaches of the optimum on made-up programs, and on windows of the modules."""
    methods, seeds, folder = runs.methods, runs.seeds, runs.folder
    problems = [*small_programs(count), *small_windows(modules, count, target)]
    rows: list[list[object]] = []
    shares: dict[str, list[float]] = {method: [] for method in methods}
    left_out = 0
    for problem in problems:
        # With the digest: a record of another program of this name must not stand for it.
        name = "".join(letter if letter.isalnum() else "_" for letter in problem.name) + f"-{problem.digest[:8]}"
        path = folder / "programs" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        problem.save(path)
        best = optimum(problem, path.with_suffix(".optimum"))
        if not best.is_proven or best.best <= 0:
            left_out += 1
            continue
        row: list[object] = [name, "", f"{best.best:.4f}"]
        for method in methods:
            found = [
                _result(Run(method, str(path), seed, runs.seconds, settings=settings_of(method, runs.settings)), folder)
                for seed in seeds
            ]
            row[1] = found[0].moves
            worst = min(each.best for each in found) / best.best
            shares[method].append(worst)
            row.append(f"{worst:.4f}")
        print(*row, file=sys.stderr, flush=True)
        rows.append(row)
    lines = []
    for method in methods:
        if shares[method]:
            reached = sum(share >= TARGET for share in shares[method])
            equal = sum(share >= 1 - 1e-12 for share in shares[method])
            worst, median = min(shares[method]), statistics.median(shares[method])
            lines.append(
                f"* {method}: {worst:.4f} of the optimum at worst, {median:.4f} in the median; "
                f"at least {TARGET} on {reached} of {len(rows)}, the optimum on {equal}."
            )
    lines.append(f"* Left out: {left_out} programs without a proof within {PROOF_SECONDS:g} s, or with nothing to gain.")
    head = ["program", "moves", "R of the best game", *(f"{method}, worst of {len(seeds)}" for method in methods)]
    return "\n".join([table(rows, head), "", *lines])


def optimum(problem: Problem, path: Path) -> Optimum:
    """The best game; kept in a file."""
    if not path.exists():
        found = prove(problem, PROOF_SECONDS)
        best = Optimum(normalised(problem, found.return_ps), found.is_proven, found.nodes)
        files.write_atomic(path, msgspec.json.encode(best))
    return msgspec.json.decode(path.read_bytes(), type=Optimum)


def _result(run: Run, folder: Path) -> Record:
    found = load(run.file(folder), Record)
    if found is None:
        found = perform(run, METHODS[run.method])
        save(run.file(folder), found)
    return found
