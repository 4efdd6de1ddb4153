"""Runs of methods on tier placement at equal evaluations."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.lib import runs as runs_in
from benchmarks.lib.places import ROOT
from benchmarks.tier_placement.networks import read
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
    def group(self) -> tuple[object, ...]:
        """Runs of one group take about as long."""
        return self.network, self.method, self.evaluations

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
    def result(self) -> str:
        """In a few words."""
        return f"speedup {self.speedup:.4f}"

    @property
    def plan(self) -> Plan:
        """The map to deploy."""
        assert self.latency_ps is not None
        weights, outputs = tuple(self.weight_tiers), tuple(self.output_tiers)
        return Plan(problem=self.problem, objective=self.latency_ps, weight_tiers=weights, output_tiers=outputs)


def finished(runs: Sequence[Run], folder: Path) -> list[Record]:
    """Records of the runs that are there, with a word where some are missing or of other code."""
    records = [runs_in.load(run.file(folder), Record) for run in runs]
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
