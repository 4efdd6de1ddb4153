"""EGRL where there may be room for it: other amounts of fast memory, measurements with noise, large networks.

    python -m benchmarks.egrl.room [--only scarce noise] [--write]
    python -m benchmarks.egrl.room --only slow --seconds 60 [--write]

At equal processor time, each method alone on one core: the shipped policy's map (``egrl``), the portfolio's local search, and
the MILP on HiGHS. Gaps are to the best bound that any of them proved. With noise, at equal evaluations: EGRL from nothing and
from the shipped policy (``trained_on``), and EA. Runs are kept, a line each; started again, the command makes those that are
missing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.egrl.methods import Meter
from benchmarks.lib.alone import Alone
from benchmarks.lib.places import ROOT
from benchmarks.lib.tables import mean_and_deviation, table, write_into
from benchmarks.lib.tier_placement.stacked import stacked
from benchmarks.lib.tier_placement.variants import with_fast_memory
from benchmarks.tier_placement.networks import read
from stowplan.hardware.nnp_i.chip import Chip
from stowplan.models.tier_placement.milp import relaxation
from stowplan.models.tier_placement.problem import Problem
from stowplan.portfolio.context import Options
from stowplan.portfolio.tier_placement import candidates
from stowplan.portfolio.tier_placement.learned import POLICY, egrl
from stowplan.result import format_gap

PAGE = ROOT / "docs" / "results" / "egrl.md"

#: Networks by part; fast memory is LLC and SRAM.
NETWORKS: dict[str, dict[str, Callable[[], Problem]]] = {
    "slow": {
        "resnet101, 2,000 layers": lambda: stacked(read("resnet101", "int8"), 2_000),
        "bert_base_s128, 2,000 layers": lambda: stacked(read("bert_base_s128", "int8"), 2_000),
    },
    "scarce": {
        f"{name}, fast memory x {factor}": lambda name=name, factor=factor: with_fast_memory(read(name, "int8"), factor)  # type: ignore[misc]
        for name in ("resnet101", "bert_base_s128")
        for factor in (0.25, 0.5)
    },
}


METHODS: dict[str, Callable[[Problem, Any], None]] = {
    "egrl": egrl,
    "search": candidates.search,
    "milp": candidates.milp,
}

#: Methods without anything random.
FIXED = ("egrl", "milp")

NOISE, NOISY, EVALUATIONS = 0.05, ("resnet50", "resnet101"), 400


class Metered(Alone):
    """A candidate by itself on processor time. Wall times that it passes on are too long to matter."""

    def __init__(self, problem: Problem, seconds: float, seed: int):
        super().__init__(problem, Options(time_limit=seconds, seed=seed, workers=1), clock=time.process_time)
        self.best_bound = 0
        self.points: list[tuple[float, int]] = []
        """(processor seconds, objective) of each better plan."""
        self._began = time.process_time()

    def plan(self, plan: Any, source: str) -> None:
        before = self.best
        super().plan(plan, source)
        if self.best is not before:
            self.points.append((time.process_time() - self._began, self.objective(plan)))

    def bound(self, bound: int, source: str) -> None:
        self.best_bound = max(self.best_bound, bound)

    def remaining(self) -> float:
        return 100 * super().remaining()


def timed(part: str, known: dict[str, Any], seconds: float, seeds: int) -> Iterator[tuple[str, Any]]:
    """Runs at equal processor time that are not known yet."""
    for name, make in NETWORKS[part].items():
        for method, function in METHODS.items():
            for seed in range(1 if method in FIXED else seeds):
                key = f"{name}|{method}|{seed}|{seconds:g}"
                if key in known:
                    continue
                problem = make()
                context = Metered(problem, seconds, seed)
                began = time.process_time()
                function(problem, context)
                took = time.process_time() - began
                proven = context.best_bound or relaxation(problem, time_limit=600.0, seed=0, should_stop=lambda: False)[1]
                objective = None if context.best is None else context.best.objective
                found = {"objective": objective, "bound": proven, "seconds": took, "compiler": Chip(problem).compiler_ps}
                yield key, {**found, "points": context.points}


def noisy(known: dict[str, Any], seeds: int) -> Iterator[tuple[str, Any]]:
    """Runs with noise that are not known yet: the speedup without noise of the map that measured best."""
    from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
    from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer

    policy = POLICY.load()
    config = EgrlConfig.cpu(evaluations=EVALUATIONS)
    weights = policy.actor.row.detach().numpy().copy()
    for name in NOISY:
        problem = read(name, "int8")
        for method in ("policy", "trained_on", "EGRL", "EA"):
            for seed in range(1 if method == "policy" else seeds):
                key = f"{name}|noise|{method}|{seed}"
                if key in known:
                    continue
                compiler = Chip(problem).compiler_ps
                if method == "policy":
                    yield key, compiler / policy.place(problem).objective
                    continue
                if method == "trained_on":
                    own = policy.config.changed(evaluations=EVALUATIONS)
                    trainer = Trainer([problem], own.changed(noise=NOISE), seed=seed, weights=weights)
                    trainer.demonstrate(0, policy.place(problem))
                else:
                    own = config.evolution_only() if method == "EA" else config
                    trainer = Trainer([problem], own.changed(noise=NOISE), seed=seed)
                chip = trainer.networks[0].chip
                meter = Meter(chip)
                chip.evaluate_many = meter  # type: ignore[method-assign]
                while not trainer.done:
                    trainer.tick()
                assert meter.latency_ps is not None
                yield key, compiler / meter.latency_ps


def timed_table(known: dict[str, Any], parts: Sequence[str], seconds: float, halves: bool) -> str:
    """Markdown: mean gaps to the best bound, and processor seconds; or the gaps after half of the time and all of it."""
    rows = []
    for name in (name for part in parts for name in NETWORKS[part]):
        runs = {
            method: [known[key] for key in known if key.startswith(f"{name}|{method}|") and key.endswith(f"|{seconds:g}")]
            for method in METHODS
        }
        every = [run for group in runs.values() for run in group if run["objective"] is not None]
        if not every:
            continue
        bound = max(run["bound"] for run in every)
        if halves:
            ends = [[_at(group, bound, part * seconds) for part in (0.5, 1.0)] for group in runs.values()]
            cells = [" / ".join(dict.fromkeys(each)) for each in ends]
        else:
            cells = [_gaps(group, bound) for group in runs.values()]
        rows.append([name, *cells])
    return table(rows, ("network", "policy's map", "local search", "HiGHS"))


def _gaps(runs: list[dict[str, Any]], bound: int) -> str:
    gaps = [(run["objective"] - bound) / run["objective"] for run in runs if run["objective"]]
    return f"{format_gap(fmean(gaps))}, {fmean(run['seconds'] for run in runs):.2g} s" if gaps else "no plan"


def _at(runs: list[dict[str, Any]], bound: int, seconds: float) -> str:
    """Mean gap of the best plans by then, with the least and the largest where they differ."""
    best = [min((found for at, found in run["points"] if at <= seconds), default=None) for run in runs]
    gaps = [(found - bound) / found for found in best if found]
    if len(gaps) < len(runs):
        return "no plan"
    if not gaps:
        return ""
    low, high, mean = (format_gap(each) for each in (min(gaps), max(gaps), fmean(gaps)))
    return mean if low == high else f"{mean} ({low} to {high})"


def noise_table(known: dict[str, Any]) -> str:
    """Markdown: speedups over the compiler."""
    methods = ("policy", "trained_on", "EGRL", "EA")
    rows = []
    for name in NOISY:
        found = [[known[key] for key in known if key.startswith(f"{name}|noise|{method}|")] for method in methods]
        rows.append([name, *(mean_and_deviation(each) for each in found)])
    return table(rows, ("network", "policy's map, nothing measured", "EGRL from it", "EGRL", "EA"))


def main() -> None:
    import torch

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = [*NETWORKS, "noise"]
    parser.add_argument("--only", nargs="+", default=[each for each in parts if each != "slow"], choices=parts)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the processor, for each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=np.inf, help="begin no run after so many processor seconds")
    parser.add_argument("--results", type=Path, default=Path("results") / "egrl-room.jsonl")
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    known = dict(json.loads(line) for line in lines)
    began = time.process_time()
    for part in options.only:
        runs = noisy(known, options.seeds) if part == "noise" else timed(part, known, options.seconds, options.seeds)
        while time.process_time() - began < options.limit:
            found = next(runs, None)
            if found is None:
                break
            known[found[0]] = found[1]
            with options.results.open("a") as stream:
                stream.write(json.dumps(found) + "\n")
            print(*found, flush=True)
    slow = options.only == ["slow"]
    shown = ["slow"] if slow else [part for part in NETWORKS if part != "slow"]
    texts = {"slow" if slow else "room": timed_table(known, shown, options.seconds, halves=slow)}
    if options.write:
        write_into(PAGE, texts)
    print("\n\n".join([*texts.values(), noise_table(known)]))


if __name__ == "__main__":
    main()
