"""Training of EGRL on one or more networks: generations of proposals and the learner's steps, in turn, in one process.

A tick is one generation, of one network, or one step of the learner. The trainer is an agent of
:mod:`stowplan.learned_guidance.training.run`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stowplan.arguments import whole
from stowplan.errors import InputError
from stowplan.hardware.nnp_i.chip import Chip
from stowplan.learned_guidance.tier_placement.egrl.chromosome import Chromosome, draw
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.learner import Learner, Losses
from stowplan.learned_guidance.tier_placement.egrl.population import Encoding, Evolution, Member
from stowplan.learned_guidance.tier_placement.egrl.replay import Replay
from stowplan.learned_guidance.tier_placement.graph import graph_of
from stowplan.learned_guidance.training.run import Allowance
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass
class Best:
    """The best map of a network so far."""

    speedup: float = 0.0
    """Over the compiler's map, as it was measured; 0 before there is a map that could be executed."""
    latency_ps: int | None = None
    """Without noise."""
    tiers: Ints | None = None
    """[N, 2]"""
    evaluations: int = 0
    """Of this network."""
    points: list[tuple[int, float]] = field(default_factory=list)
    """(evaluations of this network, speedup) of each map that was better than all before."""


class Network:
    """A network to train on: its chip, its graph, and its best map."""

    def __init__(self, problem: Problem, config: EgrlConfig, noise: float, seed: int):
        self.problem = problem
        self.chip = Chip(problem, noise=noise, seed=seed)
        self.graph = graph_of(problem, config.features)
        self.best = Best()
        self.shown: list[Ints] = []
        """Maps to imitate."""
        self.movable = np.argwhere(np.stack([self.graph.has_weights, np.ones(len(problem.layers), np.bool_)], axis=1))
        """[M, 2] Tensors to be placed: layer, and 0 for weights or 1 for the output."""

    def evaluate(self, maps: Ints) -> npt.NDArray[np.float64]:
        """Rewards of maps, with the best one remembered."""
        found = self.chip.evaluate_many(maps)
        best = self.best
        for tiers, speedup, latency in zip(maps, found.speedups.tolist(), found.latency_ps.tolist(), strict=True):
            best.evaluations += 1
            if speedup > best.speedup:
                best.speedup, best.latency_ps, best.tiers = speedup, latency, tiers.copy()
                best.points.append((best.evaluations, speedup))
        return found.rewards

    def plan(self) -> Plan | None:
        """The best map as a plan."""
        if self.best.tiers is None:
            return None
        found = self.chip.evaluate(self.best.tiers[:, 0].tolist(), self.best.tiers[:, 1].tolist()).map
        return self.chip.plan(found)


class Trainer:
    """See the module.

    Parameters
    ----------
    problems
        Networks to learn on; each generation is of one of them, in turn.
    noise
        Of the chip's measurements.
    weights
        Of an actor of the same sizes to begin with.

    Raises
    ------
    InputError
        A network without node features, or networks on chips of unlike many tiers.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        config: EgrlConfig,
        *,
        seed: int = 0,
        noise: float = 0.0,
        weights: Floats | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.config, self.seed = config, whole("seed {}", seed, 0)
        self.networks = [Network(problem, config, noise, seed + number) for number, problem in enumerate(problems)]
        tiers = {network.graph.tiers for network in self.networks}
        if len(tiers) != 1:
            raise InputError(f"found chips of {sorted(tiers)} tiers, expected as many of all networks")
        self.learner = Learner(config, [network.graph for network in self.networks], seed)
        if weights is not None:
            self.learner.load_weights(weights)
        self.replay = Replay([len(network.problem.layers) for network in self.networks], config.replay_size)
        self._chance, self._learning_chance = (np.random.default_rng([seed, number]) for number in range(2))
        self.evaluations = self.generations = 0
        self._due = 0.0
        """Steps of the learner that are owed to evaluations."""
        self._clock = clock
        self._began = clock()
        self.members = self._first_members()
        self._losses: list[Losses] = []
        self._rewards: list[float] = []
        self._report = False

    # What the run loop asks for

    @property
    def done(self) -> bool:
        """Whether all evaluations are spent."""
        return self.evaluations >= self.config.evaluations and self._due < 1

    @property
    def seconds(self) -> float:
        """Spent training, earlier runs included."""
        return self._clock() - self._began

    def tick(self, allowance: Allowance | None = None) -> None:
        """One generation, or one step of the learner."""
        if self._due >= 1:
            self._due -= 1
            self._learn()
        else:
            self._generation()
        self._report = self._due < 1

    @property
    def _number(self) -> int:
        """Of the network that this generation is of."""
        return self.generations % len(self.networks)

    def _first_members(self) -> list[list[Member]]:
        """A population for each network; graph networks are the same in all of them."""
        config = self.config
        chromosomes = round(config.boltzmann_fraction * config.population)
        networks = [Member(self.learner.fresh_weights(self._chance)) for _ in range(config.population - chromosomes)]
        return [
            networks
            + [
                Member(Chromosome.random(len(network.problem.layers), network.graph.tiers, self._chance, config.temperatures))
                for _ in range(chromosomes)
            ]
            for network in self.networks
        ]

    def _generation(self) -> None:
        number = self._number
        network, config = self.networks[number], self.config
        members = self.members[number]
        left = config.evaluations - self.evaluations
        asked = [at for at, member in enumerate(members) if config.reevaluate or not member.is_judged]
        encodings = [members[at].encoding for at in asked]
        proposals = self._proposals(number, encodings)
        proposals += [self._explored(number) for _ in range(config.rollouts if config.learner else 0)]
        maps = np.stack(proposals[:left])
        maps[:, ~network.graph.has_weights, 0] = 0
        if config.repair:
            maps, encodings = self._repaired(network, maps, encodings)
        rewards = network.evaluate(maps)
        self.evaluations += len(maps)
        self._rewards += rewards.tolist()
        for tiers, reward in zip(maps, rewards.tolist(), strict=True):
            self.replay.add(number, tiers, reward)
        judged = list(members)
        for at, encoding, reward in zip(asked, encodings, rewards.tolist(), strict=False):
            judged[at] = Member(encoding, reward, is_judged=True)
        if members and len(maps) == len(proposals):
            self.members[number] = self._evolved(number, judged)
        if config.learner:
            self._due += config.updates_per_evaluation * len(maps)
        self._last = number
        self.generations += 1

    def _proposals(self, number: int, encodings: Sequence[Encoding]) -> list[Ints]:
        """Draws of chromosomes, and the likeliest maps of graph networks."""
        rows = [encoding for encoding in encodings if not isinstance(encoding, Chromosome)]
        likeliest = iter(self.learner.posteriors(number, rows).argmax(-1) if rows else ())
        return [
            encoding.draw(self._chance) if isinstance(encoding, Chromosome) else next(likeliest) for encoding in encodings
        ]

    def _explored(self, number: int) -> Ints:
        """A proposal of the learner's policy, with some tensors sent anywhere."""
        probabilities = self.learner.posterior(number)
        tiers = draw(probabilities, self._chance) if self.config.sample_rollouts else probabilities.argmax(-1)
        anywhere = self._chance.random(tiers.shape) < self.config.exploration
        return np.where(anywhere, self._chance.integers(probabilities.shape[-1], size=tiers.shape), tiers)

    def _repaired(self, network: Network, maps: Ints, encodings: list[Any]) -> tuple[Ints, list[Any]]:
        """Chromosomes propose what the compiler makes of their draws, and take it over."""
        which = [at for at, encoding in enumerate(encodings[: len(maps)]) if isinstance(encoding, Chromosome)]
        if not which:
            return maps, encodings
        found, _ = network.chip.compiled(maps[which])
        maps, encodings = maps.copy(), list(encodings)
        for at, tiers in zip(which, found, strict=True):
            encodings[at] = encodings[at].taking_over(tiers)
            maps[at] = tiers
        return maps, encodings

    def _evolved(self, number: int, judged: list[Member]) -> list[Member]:
        evolution = Evolution(
            config=self.config,
            chance=self._chance,
            posterior=lambda weights: self.learner.posteriors(number, [weights])[0],
            fresh=lambda: self.learner.fresh_weights(self._chance),
            movable=self.networks[number].movable,
        )
        members = evolution.next_generation(judged)
        if self.config.learner and members:
            # Migration: in place of the child of the weakest parent.
            weakest = min(range(len(members)), key=lambda at: members[at].fitness)
            members[weakest] = Member(self.learner.weights())
        return members

    def _learn(self) -> None:
        number, config = self._last, self.config
        maps, rewards = self.replay.sample(number, config.batch_size, self._learning_chance)
        network = self.networks[number]
        shown = [*network.shown, *([network.best.tiers] if network.best.tiers is not None else [])]
        picked = shown[int(self._learning_chance.integers(len(shown)))] if shown and config.imitation else None
        self._losses.append(self.learner.update(number, maps, rewards, picked, self._learning_chance))
