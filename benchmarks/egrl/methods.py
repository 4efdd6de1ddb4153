"""Methods of tier placement as runs: EGRL, its ablations and variants, the paper's baselines and the portfolio's search.

All are counted in evaluations of the chip: complete maps that are tried, executable or not. With noise a method sees nothing
but measurements; the map to deploy is the one that measured best, and what is reported of it is its latency without noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

import stowplan
from benchmarks.egrl.runs import Record, Run, code_digest
from benchmarks.lib.runs import Arrays
from benchmarks.lib.tier_placement import baselines
from benchmarks.tier_placement.networks import cooled, never
from stowplan.hardware.nnp_i.chip import Chip, Evaluations
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio.tier_placement import arrays, heuristics

if TYPE_CHECKING:
    from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer

#: Parts of the evaluations, in percent, after which policies are kept for transfer (figure 4).
MOMENTS = (5, 10, 25, 50, 75, 100)

#: Seconds for the proof of an optimum.
PROOF_SECONDS = 120.0

Configure = Callable[[EgrlConfig], EgrlConfig]


@dataclass(frozen=True)
class Method:
    """How a method is called in tables, and its configuration."""

    title: str
    configure: Configure | None = None
    """From EGRL's configuration; None for methods that do not train."""
    seeds: int | None = None
    """Seeds at most; None for as many as are asked for."""
    noisy: bool = True
    """Whether it can do with measurements alone."""


def _changed(**changes: object) -> Configure:
    return lambda config: config.changed(**changes)


#: Figure 3.
METHODS = {
    "egrl": Method("EGRL", lambda config: config),
    "ea": Method("EA", EgrlConfig.evolution_only),
    "pg": Method("PG", EgrlConfig.gradient_only),
    "greedy_dp": Method("Greedy-DP"),
    "greedy_dp_repaired": Method("Greedy-DP, repaired"),
    "random": Method("random", noisy=False),
    "annealing": Method("annealing", noisy=False),
    "search": Method("search", noisy=False),
}

#: What each part of EGRL is worth.
VARIANTS = {
    "egrl": METHODS["egrl"],
    "ea": Method("without the learner (EA)", EgrlConfig.evolution_only),
    "pg": Method("without the population (PG)", EgrlConfig.gradient_only),
    "no_boltzmann": Method("without Boltzmann members", _changed(boltzmann_fraction=0.0)),
    "no_seeding": Method("without seeding", _changed(seeding=False)),
    "frozen": Method("graph networks frozen at random", _changed(frozen=True)),
    "no_repair": Method("without repair", _changed(repair=False, repair_networks=False)),
    "ea_no_repair": Method("without repair and learner", _changed(repair=False, repair_networks=False, learner=False)),
    "chromosomes_repaired": Method("repair of chromosomes alone", _changed(repair_networks=False)),
    "no_visitors": Method("rollouts that are not selected from", _changed(migrate_rollouts=False)),
    "one_rollout": Method("one rollout a generation", _changed(rollouts=1)),
    "imitation": Method("with imitation of the best map", _changed(imitation=1.0)),
    "paper_mutation": Method("chromosomes that mutate as the paper's", _changed(chromosome_moves=0.0)),
    "no_niches": Method("without parts kept for each encoding", _changed(least_networks=0.0, least_chromosomes=0.0)),
    "paper_features": Method("the paper's 19 features alone", _changed(features="paper")),
    "chromosomes": Method("Boltzmann members alone, no learner", _changed(boltzmann_fraction=1.0, learner=False)),
    "paper": Method("the paper's preset", lambda config: EgrlConfig.paper(evaluations=config.evaluations)),
}

OPTIMUM = "optimum"

#: Methods without anything random, but for noise.
GREEDY = ("greedy_dp", "greedy_dp_repaired")


def run_of(
    method: str, network: str, precision: str, seed: int, evaluations: int, noise: float = 0.0, seconds: float | None = None
) -> Run:
    """A run with the configuration as it stands; ``seconds`` cut off a run that trains."""
    configure = (METHODS | VARIANTS)[method].configure if method != OPTIMUM else None
    config = configure(EgrlConfig.cpu(evaluations=evaluations)) if configure else None
    budget = evaluations if method != OPTIMUM else 0
    return Run(network, precision, method, seed, budget, noise, config, seconds if config else None)


def seeds_of(method: str, seeds: list[int], noise: float) -> list[int]:
    """Those of the seeds that a method needs: one where there is nothing random in it."""
    if method in GREEDY and not noise:
        return seeds[:1]
    return seeds[: (METHODS | VARIANTS)[method].seeds]


class Meter:
    """The chip's evaluations, counted, with the map that measured best and all maps that were tried."""

    def __init__(self, chip: Chip):
        self._evaluate = chip.evaluate_many
        self._compiler_ps = chip.compiler_ps
        self.evaluations = 0
        self.measured = 0.0
        self.latency_ps: int | None = None
        self.tiers: np.ndarray | None = None
        self.points: list[tuple[int, float]] = []
        self.speedups: list[np.ndarray] = []
        """[K] Measured."""

    def __call__(self, maps: np.ndarray) -> Evaluations:
        found = self._evaluate(maps)
        self.speedups.append(found.speedups)
        for tiers, speedup, latency in zip(found.maps, found.speedups.tolist(), found.latency_ps.tolist(), strict=True):
            self.evaluations += 1
            if speedup > self.measured:
                self.measured, self.latency_ps, self.tiers = speedup, latency, tiers.copy()
                self.points.append((self.evaluations, self._compiler_ps / latency))
        return found


def perform(run: Run) -> tuple[Record, Arrays]:
    """Run here and now; the plan that comes of it is verified."""
    problem = run.problem
    chip = Chip(problem, noise=run.noise, seed=run.seed)
    chip.compiled(np.zeros((1, len(problem.layers), 2), np.int64))
    if run.method == OPTIMUM:
        return _prove(run, chip.compiler_ps), {}
    if run.config is not None:
        return _train(run, run.config)
    if run.method in GREEDY:
        meter = Meter(chip)
        began = time.process_time()
        greedy_dp(meter, problem, run.evaluations, None if run.method == "greedy_dp" else lambda maps: chip.compiled(maps)[0])
        return _metered(run, chip, meter, time.process_time() - began), {}
    return _walk(run, chip.compiler_ps), {}


def _train(run: Run, config: EgrlConfig) -> tuple[Record, Arrays]:
    import torch

    from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer

    torch.set_num_threads(1)
    began, began_at = time.process_time(), time.monotonic()
    trainer = Trainer([run.problem], config.changed(noise=run.noise), seed=run.seed)
    network = trainer.networks[0]
    meter = Meter(network.chip)
    network.chip.evaluate_many = meter  # type: ignore[method-assign]
    kept: Arrays = {}
    moments = [moment for moment in MOMENTS if run.method == "egrl" and not run.noise]
    reference, judged = Chip(run.problem), 0.0
    while not trainer.done and (run.seconds is None or time.monotonic() - began_at < run.seconds):
        trainer.iterate()
        while moments and trainer.evaluations >= moments[0] / 100 * config.evaluations:
            paused = time.process_time()
            kept |= _policies(moments.pop(0), trainer, reference)
            judged += time.process_time() - paused
    seconds = time.process_time() - began - judged
    assert network.best.latency_ps == meter.latency_ps
    found = _metered(run, network.chip, meter, seconds)
    return msgspec.structs.replace(found, evaluations=trainer.evaluations), kept


def _policies(moment: int, trainer: Trainer, reference: Chip) -> Arrays:
    """Weights of the learner, and of the graph network of the population whose map is the best; the run's chip is not asked."""
    found = {f"learner_{moment}": trainer.learner.weights()}
    networks = [member.encoding for member in trainer.members if not member.is_chromosome]
    if networks:
        likeliest = trainer.learner.posteriors(0, networks).argmax(-1).astype(np.int64)
        found[f"member_{moment}"] = networks[int(reference.evaluate_many(likeliest).rewards.argmax())]
    return found


def greedy_dp(
    evaluate: Callable[[np.ndarray], Evaluations],
    problem: Problem,
    evaluations: int,
    repair: Callable[[np.ndarray], np.ndarray] | None = None,
) -> None:
    """Greedy-DP of the paper, seeing nothing but what is measured: layer by layer the best of all choices, in passes.

    :func:`stowplan.portfolio.tier_placement.heuristics.greedy_dp` is the same by the cost model's own numbers. It ends when a
    pass changes nothing, or after so many evaluations.

    Parameters
    ----------
    repair
        What the compiler makes of maps ``[K, N, 2]``: these are tried, and gone on from, in place of the maps themselves, as
        EGRL's are.
    """
    tiers = len(problem.tiers)
    now = np.zeros((len(problem.layers), 2), np.int64)
    used = 0
    while used < evaluations:
        before = now.copy()
        for number, layer in enumerate(problem.layers):
            weights = range(tiers) if layer.weight_bytes else (0,)
            tried = np.repeat(now[None], len(weights) * tiers, axis=0)
            tried[:, number] = [(weight, output) for weight in weights for output in range(tiers)]
            tried = tried[: evaluations - used]
            if not len(tried):
                break
            tried = tried if repair is None else repair(tried)
            speedups = evaluate(tried).speedups
            used += len(tried)
            # Where nothing is better, it stays as it is; so it does where what it is was not measured any more.
            own = speedups[(tried == now).all(axis=(1, 2))]
            if len(own) and speedups.max() > own[0]:
                now = tried[int(speedups.argmax())]
        if (now == before).all():
            return


def _metered(run: Run, chip: Chip, meter: Meter, seconds: float) -> Record:
    return _record(run, chip.compiler_ps, meter.latency_ps, meter.measured, meter.points, seconds, meter.tiers)


def _walk(run: Run, compiler_ps: int) -> Record:
    """Methods that judge maps by the cost model; all begin with everything in the slowest tier."""
    data = arrays.build(run.problem)
    begin = heuristics.any_map(data)
    assert begin is not None
    began = time.process_time()
    walk: heuristics.Walk | None
    if run.method == "random":
        walk = baselines.random_maps(data, run.seed, run.evaluations, never)
    elif run.method == "annealing":
        walk = baselines.annealing(data, begin, run.seed, run.evaluations, never)
    else:
        walk = cooled(data, begin, run.seed, run.evaluations)
    seconds = time.process_time() - began
    assert walk is not None
    points = [(max(1, used), compiler_ps / latency) for used, latency in walk.progress]
    plan = arrays.Exporter(run.problem, data).plan(walk.tier)
    assert plan is not None
    tiers = np.stack((plan.weight_tiers, plan.output_tiers), axis=1)
    return _record(run, compiler_ps, walk.latency, compiler_ps / walk.latency, points, seconds, tiers)


def _prove(run: Run, compiler_ps: int) -> Record:
    began = time.process_time()
    result = stowplan.solve(run.problem, time_limit=PROOF_SECONDS, workers=1, seed=run.seed)
    plan = result.plan
    assert isinstance(plan, Plan)
    seconds = time.process_time() - began
    speedup = compiler_ps / plan.objective
    tiers = np.stack([plan.weight_tiers, plan.output_tiers], axis=1)
    found = _record(run, compiler_ps, plan.objective, speedup, [(0, speedup)], seconds, tiers)
    return msgspec.structs.replace(found, bound_ps=result.bound)


def _record(
    run: Run,
    compiler_ps: int,
    latency_ps: int | None,
    measured: float,
    points: Sequence[tuple[int, float]],
    seconds: float,
    tiers: np.ndarray | None,
) -> Record:
    """A record, its plan ``[N, 2]`` verified; AssertionError where a plan is wrong."""
    found = Record(
        network=run.network,
        precision=run.precision,
        method=run.method,
        seed=run.seed,
        noise=run.noise,
        evaluations=run.evaluations,
        config=None if run.config is None else msgspec.to_builtins(run.config),
        code=code_digest(run.config is not None),
        problem=run.problem.digest,
        compiler_ps=int(compiler_ps),
        latency_ps=None if latency_ps is None else int(latency_ps),
        measured=float(measured),
        points=[(int(used), float(speedup)) for used, speedup in points],
        seconds=seconds,
        weight_tiers=[] if tiers is None else tiers[:, 0].tolist(),
        output_tiers=[] if tiers is None else tiers[:, 1].tolist(),
    )
    if latency_ps is not None:
        checked = verify(run.problem, found.plan)
        assert checked.ok, checked.violations
    return found
