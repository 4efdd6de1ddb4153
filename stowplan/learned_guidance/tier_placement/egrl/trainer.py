"""Training of EGRL on one or more networks: generations of proposals and the learner's steps, in turn, in one process.

A generation is of one network: every member proposes a map, the learner's policy some more, and all are evaluated. Graph networks
are one population for all networks; chromosomes are of one network each. A tick is one proposal (the last one of a generation
evaluates them all, and selects), or one step of the learner. The trainer is an agent of
:mod:`stowplan.learned_guidance.training.run`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils import vector_to_parameters

from stowplan.arguments import whole
from stowplan.errors import InputError, UsageError
from stowplan.hardware.nnp_i.chip import REWARD_SCALE, Chip
from stowplan.hardware.nnp_i.rectifier import Rectifier
from stowplan.learned_guidance.tier_placement.egrl.checkpoint import (
    CHECKPOINT,
    POLICY,
    pack_maps,
    pack_members,
    policy_values,
    unpack_maps,
    unpack_members,
)
from stowplan.learned_guidance.tier_placement.egrl.chromosome import Chromosome, draw
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.learner import Learner
from stowplan.learned_guidance.tier_placement.egrl.population import Evolution, Member
from stowplan.learned_guidance.tier_placement.egrl.progress import Progress, Tally
from stowplan.learned_guidance.tier_placement.egrl.replay import Replay
from stowplan.learned_guidance.tier_placement.graph import graph_of
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.curve import mean
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
        # Not by the chip: nothing is evaluated.
        found = Rectifier(self.problem).rectify(self.best.tiers[:, 0].tolist(), self.best.tiers[:, 1].tolist()).map
        return self.chip.plan(found)

    @property
    def speedup(self) -> float | None:
        """Of the best map over the compiler's, without noise."""
        latency = self.best.latency_ps
        return None if latency is None else self.chip.compiler_ps / latency if latency else 1.0

    def executable(self, tiers: Ints) -> Ints:
        """A map ``[N, 2]`` that the chip takes as it is; InputError where it would have to move something."""
        count = len(self.problem.layers)
        if tiers.shape != (count, 2):
            raise InputError(f"found tiers of shape {tiers.shape}, expected {(count, 2)}")
        if not (tiers.min() >= 0 and tiers.max() < self.graph.tiers):
            raise InputError(f"found tiers {tiers.min()} to {tiers.max()}, expected 0 to {self.graph.tiers - 1}")
        (found,), (epsilon,) = self.chip.compiled(tiers[None])
        if epsilon > 0:
            raise InputError(f"cannot be executed as it is: {epsilon:.2%} of the bytes have no room where they are meant to go")
        return np.asarray(found)

    def state_dict(self) -> dict[str, Any]:
        """What is remembered of the maps so far."""
        best = self.best
        return {
            "best": [best.speedup, best.latency_ps, best.evaluations],
            "best_tiers": pack_maps([] if best.tiers is None else [best.tiers]),
            "points": [list(point) for point in best.points],
            "shown": pack_maps(self.shown),
            "chip": [self.chip.evaluations, self.chip.inferences],
            "noise": checkpoint.pack_generator(self.chip.noise_generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        layers = len(self.problem.layers)
        speedup, latency, evaluations = state["best"]
        tiers = unpack_maps(state["best_tiers"], layers)
        points = [(int(count), float(value)) for count, value in state["points"]]
        self.best = Best(speedup, latency, tiers[0] if tiers else None, evaluations, points)
        self.shown = unpack_maps(state["shown"], layers)
        self.chip.evaluations, self.chip.inferences = state["chip"]
        self.chip.noise_generator.bit_generator.state = checkpoint.unpack_generator(state["noise"]).bit_generator.state


class Trainer:
    """See the module.

    Parameters
    ----------
    problems
        Networks to learn on; each generation is of one of them, in turn.
    seed
        Of everything random.
    noise
        Standard deviation of the chip's measurements, relative to the latency.
    weights
        Of an actor of the same sizes, in one row: the learner begins with it, and one member of the population.

    Raises
    ------
    InputError
        A network without node features, networks on chips of unlike many tiers, or weights of other sizes.
    UsageError
        The seed is none, or the noise is out of range.
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
        self.config, self.seed, self.noise = config, whole("seed {}", seed, 0), noise
        self.networks = [Network(problem, config, noise, seed + number) for number, problem in enumerate(problems)]
        _check_tiers(self.networks)
        self.learner = Learner(config, [network.graph for network in self.networks], seed)
        if weights is not None:
            if len(weights) != len(self.learner.weights()):
                raise InputError(
                    f"found {len(weights)} weights, expected {len(self.learner.weights())} of a network of these sizes"
                )
            self.learner.load_weights(weights)
        self.replay = Replay([len(network.problem.layers) for network in self.networks], config.replay_size)
        self._chance, self._learning_chance = (np.random.default_rng([seed, number]) for number in range(2))
        self.evaluations = self.generations = 0
        self._due = 0.0
        """Steps of the learner that are owed to evaluations."""
        self._clock = clock
        self._began = clock()
        self.members: list[Member] = []
        """Of the present generation: graph networks, and the chromosomes of its network."""
        self._set_aside: list[list[Member]] = []
        """Chromosomes of each of the other networks."""
        self._first_members(weights)
        self._proposals: list[Ints] = []
        """Of this generation, not evaluated yet."""
        self._judged = 0
        """Proposals of this generation that are evaluated."""
        self._best_network = next((member for member in self.members if not member.is_chromosome), None)
        """The best graph network of the last generation that had any."""
        self._last, self._reported = 0, 0
        self._tally = Tally()

    # What the run loop asks for

    @property
    def done(self) -> bool:
        """Whether all evaluations are spent, and learned from."""
        return self.evaluations >= self.config.evaluations and self._due < 1

    @property
    def seconds(self) -> float:
        """Spent training, earlier runs included."""
        return self._clock() - self._began

    @property
    def iteration(self) -> int:
        """Whole generations reported."""
        return self._reported

    def tick(self, allowance: Allowance | None = None) -> None:
        """One proposal, with what follows from it; or one step of the learner."""
        began, tally = self._clock(), self._tally
        if self._due >= 1:
            self._due -= 1
            self._learn()
            tally.learning_seconds += self._clock() - began
        elif not self.done:
            self._propose()
            tally.evaluation_seconds += self._clock() - began

    def progress(self) -> Progress | None:
        """After each generation and its steps, what it came to; at the end, what a generation that was begun came to."""
        is_whole = self.generations > self._reported and self._due < 1
        if not is_whole and not (self.done and self._judged):
            return None
        tally = self._tally
        best = [network.best.speedup for network in self.networks if network.best.tiers is not None]
        report = Progress(
            generation=self.generations + (not is_whole),
            seconds=self.seconds,
            evaluations=self.evaluations,
            best=mean(best),
            mean_reward=mean(tally.rewards),
            valid=tally.valid,
            chromosomes=sum(member.is_chromosome for member in self.members),
            losses=tally.mean_losses,
            evaluations_per_second=len(tally.rewards) / max(tally.evaluation_seconds, 1e-9),
            steps_per_second=len(tally.losses) / max(tally.learning_seconds, 1e-9),
        )
        if is_whole:
            self._tally, self._reported = Tally(), self.generations
        return report

    def demonstrate(self, number: int, found: Plan | Ints) -> None:
        """Learn from a map of the network of this number that something else found; it counts as no evaluation.

        The learner's replay gets it with its reward, without noise, and with ``imitation`` the policy imitates it. The best map
        stays the best of the agent's own.

        Parameters
        ----------
        found
            A plan, or tiers ``[N, 2]`` of weights and outputs.

        Raises
        ------
        InputError
            It is a plan of another problem, or no map that can be executed as it is.
        UsageError
            There is no learner.
        """
        if not self.config.learner:
            raise UsageError("found a demonstration, expected a learner to learn from it")
        network = self.networks[number]
        if isinstance(found, Plan):
            if found.problem != network.problem.digest:
                raise InputError(f"is a plan of another problem ({found.name}), expected one of {network.problem.name}")
            if not len(found.weight_tiers) == len(found.output_tiers) == len(network.problem.layers):
                raise InputError(f"has not a tier for each of the {len(network.problem.layers)} layers")
            found = np.array([found.weight_tiers, found.output_tiers], np.int64).T
        tiers = network.executable(found)
        latency = network.chip.timing.latency_ps(tiers[:, 0].tolist(), tiers[:, 1].tolist())
        network.shown.append(tiers)
        self.replay.add(number, tiers, REWARD_SCALE * (network.chip.compiler_ps / latency if latency else 1.0))

    # Generations

    @property
    def _number(self) -> int:
        """Of the network that this generation is of."""
        return self.generations % len(self.networks)

    @property
    def _planned(self) -> int:
        """Proposals of a generation."""
        return len(self.members) + (self.config.rollouts if self.config.learner else 0)

    def _first_members(self, weights: Floats | None) -> None:
        config = self.config
        count = round(config.boltzmann_fraction * config.population)
        rows = [self.learner.fresh_weights(self._chance) for _ in range(config.population - count)]
        if weights is not None and rows:
            rows[0] = self.learner.weights()
        self._set_aside = [
            [
                Member(Chromosome.random(len(network.problem.layers), network.graph.tiers, self._chance, config.temperatures))
                for _ in range(count)
            ]
            for network in self.networks
        ]
        self.members = [Member(row) for row in rows]
        self._change_network(None, 0)

    def _change_network(self, before: int | None, now: int) -> None:
        """Set the chromosomes of one network aside, and take up another's."""
        if before == now:
            return
        chromosomes = [member for member in self.members if member.is_chromosome]
        self.members = [member for member in self.members if not member.is_chromosome] + self._set_aside[now]
        self._set_aside[now] = []
        if before is not None:
            self._set_aside[before] = chromosomes

    def _propose(self) -> None:
        """One proposal more; the last one of a generation evaluates all, and selects. So does the last one that there may be."""
        left = self.config.evaluations - self.evaluations
        at = self._judged + len(self._proposals)
        if at < self._planned and len(self._proposals) < left:
            self._proposals.append(self._proposal(self._number, at))
            at += 1
        if at == self._planned or len(self._proposals) >= left:
            self._evaluate(min(left, len(self._proposals)))
        if self._judged == self._planned:
            self._next_generation()

    def _proposal(self, number: int, at: int) -> Ints:
        encoding = self.members[at].encoding if at < len(self.members) else None
        if encoding is None:
            tiers = self._explored(number)
        elif isinstance(encoding, Chromosome):
            tiers = encoding.draw(self._chance)
        else:
            tiers = self.learner.posterior(number, encoding).argmax(-1)
        tiers[~self.networks[number].graph.has_weights, 0] = 0
        return tiers

    def _explored(self, number: int) -> Ints:
        """A proposal of the learner's policy, with some tensors sent anywhere."""
        probabilities = self.learner.posterior(number)
        tiers = draw(probabilities, self._chance) if self.config.sample_rollouts else probabilities.argmax(-1)
        anywhere = self._chance.random(tiers.shape) < self.config.exploration
        return np.where(anywhere, self._chance.integers(probabilities.shape[-1], size=tiers.shape), tiers)

    def _evaluate(self, count: int) -> None:
        """Evaluate the first proposals that wait, all at once. One that was made before is evaluated and counted again."""
        number = self._number
        maps = np.stack(self._proposals[:count])
        members = self.members[self._judged : self._judged + count]
        if self.config.repair:
            maps, members = self._repaired(self.networks[number], maps, members)
        rewards = self.networks[number].evaluate(maps).tolist()
        for tiers, reward in zip(maps, rewards, strict=True):
            self.replay.add(number, tiers, reward)
        judged = [Member(member.encoding, reward) for member, reward in zip(members, rewards, strict=False)]
        self.members[self._judged : self._judged + len(judged)] = judged
        self.evaluations += count
        self._judged += count
        self._tally.rewards += rewards
        del self._proposals[:count]

    def _repaired(self, network: Network, maps: Ints, members: list[Member]) -> tuple[Ints, list[Member]]:
        """Chromosomes propose what the compiler makes of their draws, and take it over."""
        maps, members = maps.copy(), list(members)
        encodings = {at: member.encoding for at, member in enumerate(members) if isinstance(member.encoding, Chromosome)}
        if encodings:
            found, _ = network.chip.compiled(maps[[*encodings]])
            for (at, encoding), tiers in zip(encodings.items(), found, strict=True):
                members[at] = Member(encoding.taking_over(maps[at], tiers))
                maps[at] = tiers
        return maps, members

    def _next_generation(self) -> None:
        number, config = self._number, self.config
        if self.members:
            networks = [member for member in self.members if not member.is_chromosome]
            self._best_network = max(networks, key=lambda member: member.fitness, default=self._best_network)
            self.members = self._evolved(number)
        if config.learner:
            self._due += config.updates_per_evaluation * self._planned
        self._last = number
        self._judged = 0
        self.generations += 1
        self._change_network(number, self._number)

    def _evolved(self, number: int) -> list[Member]:
        # What networks share must not turn into what is one network's own.
        is_shared = len(self.networks) > 1
        evolution = Evolution(
            config=self.config.changed(fixed_composition=True) if is_shared else self.config,
            chance=self._chance,
            posterior=lambda weights: self.learner.posterior(number, weights),
            fresh=lambda: self.learner.fresh_weights(self._chance),
            movable=self.networks[number].movable,
        )
        members = evolution.next_generation(self.members)
        places = [at for at, member in enumerate(members) if not (is_shared and member.is_chromosome)]
        if self.config.learner and places:
            # Migration: in place of the child of the weakest parent.
            weakest = min(places, key=lambda at: members[at].fitness)
            members[weakest] = Member(self.learner.weights())
        return members

    def _learn(self) -> None:
        number, config = self._last, self.config
        maps, rewards = self.replay.sample(number, config.batch_size, self._learning_chance)
        network = self.networks[number]
        shown = [*network.shown, *([network.best.tiers] if network.best.tiers is not None else [])]
        picked = shown[int(self._learning_chance.integers(len(shown)))] if shown and config.imitation else None
        self._tally.losses.append(self.learner.update(number, maps, rewards, picked, self._learning_chance))

    # Files

    def provenance(self) -> checkpoint.Provenance:
        """Where the graph networks come from."""
        return checkpoint.Provenance(
            programs=tuple(network.problem.name for network in self.networks),
            digests=tuple(network.problem.digest for network in self.networks),
            seed=self.seed,
            training_steps=self.learner.steps,
            games=self.evaluations,
            moves=sum(network.best.evaluations * len(network.movable) for network in self.networks),
            seconds=round(self.seconds, 3),
        )

    @property
    def has_network(self) -> bool:
        """Whether there is a graph network to write as a policy."""
        return self.config.learner or self._best_network is not None

    def save_policy(self, path: str | Path) -> str:
        """Write a graph network by itself, the learner's or else the population's best; the file's sha256.

        Raises
        ------
        UsageError
            There is none, but chromosomes alone.
        """
        actor = copy.deepcopy(self.learner.actor)
        if not self.config.learner:
            if self._best_network is None:
                raise UsageError("found no graph network to write, but chromosomes alone")
            vector_to_parameters(torch.from_numpy(self._best_network.encoding), actor.parameters())
        return checkpoint.save(path, POLICY, self.config, self.provenance(), policy_values(actor, self.learner.shape))

    def save(self, path: str | Path) -> str:
        """Write a checkpoint; the file's sha256."""
        return checkpoint.save(path, CHECKPOINT, self.config, self.provenance(), self.state_dict())

    @classmethod
    def resume(
        cls,
        path: str | Path,
        problems: Sequence[Problem],
        *,
        changes: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Trainer:
        """Go on from a checkpoint; ``problems`` must be those it was made with.

        Parameters
        ----------
        changes
            Fields of the configuration to change: how long to train, not how.

        Raises
        ------
        InputError
            If the file is no checkpoint, is damaged or of another version, or is of other networks.
        """
        content = checkpoint.load(path, CHECKPOINT)

        def make(config: EgrlConfig, seed: int) -> Trainer:
            return cls(problems, config.changed(**(changes or {})), seed=seed, noise=content.values["noise"], clock=clock)

        return checkpoint.resume(content, [problem.digest for problem in problems], make)

    def state_dict(self) -> dict[str, Any]:
        """All that the next tick depends on."""
        return {
            "counters": [self.evaluations, self.generations, self._judged, self._last, self._reported],
            "due": self._due,
            "seconds": self.seconds,
            "noise": self.noise,
            "members": pack_members(self.members),
            "set_aside": [pack_members(members) for members in self._set_aside],
            "best_network": pack_members([] if self._best_network is None else [self._best_network]),
            "proposals": pack_maps(self._proposals),
            "replay": self.replay.state_dict(),
            "learner": self.learner.state_dict(),
            "generators": [checkpoint.pack_generator(each) for each in (self._chance, self._learning_chance)],
            "networks": [network.state_dict() for network in self.networks],
            "tally": self._tally.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; KeyError, TypeError, ValueError and the like where it is none."""
        self.evaluations, self.generations, self._judged, self._last, self._reported = state["counters"]
        self._due = float(state["due"])
        self._began = self._clock() - state["seconds"]
        self.members = self._unpacked(self._number, state["members"])
        self._set_aside = [self._unpacked(at, packed) for at, packed in enumerate(state["set_aside"])]
        self._best_network = next(iter(self._unpacked(0, state["best_network"])), None)
        self._proposals = unpack_maps(state["proposals"], len(self.networks[self._number].problem.layers))
        self.replay.load_state_dict(state["replay"])
        self.learner.load_state_dict(state["learner"])
        self._chance, self._learning_chance = map(checkpoint.unpack_generator, state["generators"])
        for network, packed in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(packed)
        self._tally = Tally.of(state["tally"])

    def _unpacked(self, number: int, packed: list[dict[str, Any]]) -> list[Member]:
        network = self.networks[number]
        shape = (len(network.problem.layers), 2, network.graph.tiers)
        return unpack_members(packed, len(self.learner.weights()), shape)


def _check_tiers(networks: Sequence[Network]) -> None:
    first = networks[0]
    for network in networks:
        if network.graph.tiers != first.graph.tiers:
            raise InputError(
                f"found chips of unlike tiers: {first.graph.tiers} for {first.problem.name}, {network.graph.tiers} for "
                f"{network.problem.name}; expected as many for all networks"
            )
