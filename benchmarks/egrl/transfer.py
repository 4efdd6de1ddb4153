"""Figure 4 of Khadka et al.: policies on networks that they were not trained on, with no further training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from benchmarks.egrl.methods import MOMENTS
from benchmarks.egrl.runs import Run, problem_of
from benchmarks.lib.runs import arrays_of
from stowplan.errors import InputError
from stowplan.hardware.nnp_i.chip import Chip
from stowplan.learned_guidance.tier_placement.decode import Decoder
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig

if TYPE_CHECKING:
    from stowplan.learned_guidance.tier_placement.egrl.learner import Learner

#: Whose policies: the learner's actor, and the best graph network of the population.
POLICIES = ("learner", "member")

#: Networks that are trained on.
SOURCES = ("bert_base_s128", "resnet50")


class Transfer(NamedTuple):
    """From one network to another."""

    source: str
    target: str
    precision: str


@dataclass(frozen=True)
class Trial:
    """A policy on a network that it was not trained on: speedups over the compiler."""

    transfer: Transfer
    seed: int
    moment: int
    """Part of the training, percent."""
    policy: str
    speedups: dict[str, float]
    """By decoding."""


def trials(runs: Sequence[Run], networks: Sequence[str], folder: Path) -> Iterator[Trial]:
    """Policies of finished runs of EGRL on all networks but their own."""
    for run in runs:
        if run.config is None or run.network not in SOURCES or not run.file(folder).exists():
            continue
        kept = arrays_of(run.file(folder))
        for target in networks:
            if target == run.network:
                continue
            transfer = Transfer(run.network, target, run.precision)
            for moment in MOMENTS:
                for policy in POLICIES:
                    weights = kept.get(f"{policy}_{moment}")
                    if weights is not None:
                        probabilities = posterior(run.config, target, run.precision, weights)
                        speedups = decoded(target, run.precision, probabilities)
                        yield Trial(transfer, run.seed, moment, policy, speedups)


def posterior(config: EgrlConfig, network: str, precision: str, weights: np.ndarray) -> np.ndarray:
    """Probabilities of tiers ``[N, 2, T]`` by a graph network of these weights.

    Raises
    ------
    InputError
        Weights of another number than the configuration's networks have.
    """
    learner = _learner(msgspec.json.encode(config), network, precision)
    expected = len(learner.weights())
    if len(weights) != expected:
        raise InputError(f"found a policy of {len(weights)} weights, expected {expected}: delete runs that other code made")
    return learner.posteriors(0, [weights])[0]


@cache
def _learner(config: bytes, network: str, precision: str) -> Learner:
    """Whatever computes posteriors on a network."""
    from stowplan.learned_guidance.tier_placement.egrl.learner import Learner
    from stowplan.learned_guidance.tier_placement.graph import graph_of

    read = msgspec.json.decode(config, type=EgrlConfig)
    return Learner(read, [graph_of(problem_of(network, precision), read.features)], 0)


@cache
def _chip(network: str, precision: str) -> tuple[Chip, Decoder]:
    """A chip with the network, and its decoder."""
    problem = problem_of(network, precision)
    return Chip(problem), Decoder(problem)


def decoded(network: str, precision: str, probabilities: np.ndarray) -> dict[str, float]:
    """Speedups of what is made of probabilities, by decoding."""
    chip, decoder = _chip(network, precision)
    likeliest = probabilities.argmax(-1)[None].astype(np.int64)
    rectified, _ = chip.compiled(likeliest)
    return {
        "likeliest": float(chip.evaluate_many(likeliest).speedups[0]),
        "rectified": float(chip.evaluate_many(rectified).speedups[0]),
        "filled": chip.compiler_ps / decoder.filled(probabilities).objective,
    }


@cache
def even(network: str, precision: str) -> float:
    """Speedup of tiers filled where all tiers are equally likely: what filling gives without any policy."""
    problem = problem_of(network, precision)
    shape = (len(problem.layers), 2, len(problem.tiers))
    return decoded(network, precision, np.full(shape, 1 / shape[-1], np.float32))["filled"]


def speedups_of(found: Sequence[Trial], transfer: Transfer, policy: str, decoding: str, moment: int) -> list[float]:
    """Of all seeds; empty where there are none."""
    wanted = (transfer, policy, moment)
    chosen = [trial for trial in found if (trial.transfer, trial.policy, trial.moment) == wanted]
    return [trial.speedups[decoding] for trial in chosen if decoding in trial.speedups]


def transfers(found: Sequence[Trial]) -> list[Transfer]:
    """Those of all trials, in their order."""
    return list(dict.fromkeys(trial.transfer for trial in found))
