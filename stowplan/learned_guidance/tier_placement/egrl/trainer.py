"""Trains EGRL on one or more networks: generations of proposals and the learner's steps, in turn, in one process.

In a generation, the members and the learner's policy propose maps for one network of layers, and all maps are evaluated. The
graph networks of the population are shared by all networks of layers; each chromosome belongs to one.

An iteration is a generation, followed by the learner's steps.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch

from stowplan.errors import InputError, UsageError
from stowplan.learned_guidance.tier_placement.egrl.checkpoint import (
    CHECKPOINT,
    POLICY,
    pack_members,
    policy_values,
    unpack_members,
)
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.learner import Learner, Losses
from stowplan.learned_guidance.tier_placement.egrl.population import Chromosome, Evolution, Floats, Ints, Member, restore_sizes
from stowplan.learned_guidance.tier_placement.egrl.workload import Network, Proposer, Replay, check_tiers
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.curve import Column, Report, Tally, mean
from stowplan.learned_guidance.training.run import Allowance, BaseTrainer, Counts, InterruptedIterationError
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem


@dataclass(frozen=True)
class Progress(Report):
    """Results of a generation."""

    generation: int
    """Number of the generation, from 1."""
    seconds: Annotated[float, Column(form=".3f")]
    """Seconds of training, earlier runs included."""
    evaluations: int
    """Evaluations since the beginning of training."""
    best: Annotated[float, Column(("best_speedup",))]
    """Measured speedup of the best map, averaged over the networks that have one; NaN before."""
    mean_reward: float
    """Mean reward of this generation's proposals."""
    valid: Annotated[float, Column(("valid_part",))]
    """Fraction of this generation's proposals that the chip could execute unchanged."""
    chromosomes: int
    """Number of Boltzmann chromosomes in the population."""
    losses: Annotated[Losses | None, Column(("critic_loss", "actor_loss", "entropy", "value_error"))]
    """Means over this generation; None without steps of the learner."""
    evaluations_per_second: Annotated[float, Column(form=".1f")]
    """Evaluations per second of the time of proposals and evaluations."""
    steps_per_second: Annotated[float, Column(form=".2f")]
    """The learner's steps per second of the time of these steps."""

    @property
    def line(self) -> str:
        """A short line for the terminal."""
        best = "no map yet" if math.isnan(self.best) else f"best speedup {self.best:.4f}"
        learning = (
            "" if self.losses is None else f", value error {self.losses.value_error:.3f}, entropy {self.losses.entropy:.3f}"
        )
        return (
            f"[{self.seconds:6.1f} s] {best}, {self.evaluations} evaluations, mean reward {self.mean_reward:.3f}, "
            f"{self.valid:.0%} valid, {self.chromosomes} chromosomes{learning}"
        )


class Trainer(BaseTrainer[EgrlConfig, Progress]):
    """Trains EGRL, as the docstring of the module describes.

    Parameters
    ----------
    problems
        Networks to learn on. The generations use them in turn.
    config
        Configuration of training.
    seed
        Seed of all random numbers.
    weights
        Weights of an actor of the same sizes, in one row: initial weights of the learner, and of one member of the population.
        None for random ones.
    clock
        A monotonic clock in seconds.

    Raises
    ------
    InputError
        If a network has no node features, the chips have different numbers of tiers, or the weights have other sizes.
    UsageError
        If the seed is not valid.
    """

    CHECKPOINT, POLICY, COLUMNS = CHECKPOINT, POLICY, Progress.columns()

    def __init__(
        self,
        problems: Sequence[Problem],
        config: EgrlConfig,
        *,
        seed: int = 0,
        weights: Floats | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(problems, config, seed=seed, clock=clock)
        self.networks = [Network(problem, config, seed + number) for number, problem in enumerate(problems)]
        check_tiers(self.networks)
        self.learner = Learner(config, [network.graph for network in self.networks], seed)
        if weights is not None:
            if len(weights) != len(self.learner.weights()):
                raise InputError(
                    f"found {len(weights)} weights, expected {len(self.learner.weights())} of a network of these sizes"
                )
            self.learner.load_weights(weights)
        self.replay = Replay([len(network.problem.layers) for network in self.networks], config.replay_size)
        self._rng, self._learning_rng = (np.random.default_rng([seed, number]) for number in range(2))
        self.evaluations = self.generations = 0
        self._owed_steps = 0.0
        """Steps of the learner that evaluations so far entitle it to."""
        self.members: list[Member] = []
        """Members of the current generation: graph networks, and the chromosomes of its network of layers."""
        self._set_aside: list[list[Member]] = []
        """Chromosomes of each of the other networks of layers."""
        self._first_members(weights)
        self._best_network = next((member for member in self.members if not member.is_chromosome), None)
        """The best graph network of the last generation that contained graph networks."""

    @property
    def done(self) -> bool:
        """Whether the configured number of evaluations is used up."""
        return self.evaluations >= self.config.evaluations

    @property
    def iteration(self) -> int:
        """Number of complete generations."""
        return self.generations

    @property
    def ends_early(self) -> bool:
        """Whether too few evaluations are left for a complete generation."""
        return self._count_proposals(self._members_to_evaluate()) > self.config.evaluations - self.evaluations

    def _count_proposals(self, indices: Sequence[int]) -> int:
        """Return the number of proposals of this generation, if the members with these indices are evaluated."""
        return len(indices) + (self.config.rollouts if self.config.learner else 0)

    def _iterate(self, allowance: Allowance) -> Progress:
        """Do one generation and the learner's steps. It ends early if too few evaluations are left."""
        began, tally, number = self._clock(), Tally[Losses](), self._number
        indices = self._members_to_evaluate()
        planned = self._count_proposals(indices)
        count = min(planned, self.config.evaluations - self.evaluations)
        proposals: list[Ints] = []
        while len(proposals) < count:
            allowance.check()
            proposals += self._make_proposals(indices[len(proposals) :], planned - len(indices))
        visitors = self._evaluate(indices[:count], np.stack(proposals[:count]), tally)
        tally.acting_seconds = self._clock() - began
        if count < planned:
            raise InterruptedIterationError(self._report(self.generations + 1, tally))
        self._next_generation(visitors)
        self._owed_steps += self.config.updates_per_evaluation * planned if self.config.learner else 0.0
        began = self._clock()
        while self._owed_steps >= 1:
            allowance.check()
            self._owed_steps -= 1
            self._learn(number, tally)
        tally.learning_seconds = self._clock() - began
        return self._report(self.generations, tally)

    def _report(self, generation: int, tally: Tally[Losses]) -> Progress:
        """Return the report of a generation."""
        best = [network.best.speedup for network in self.networks if network.best.tiers is not None]
        return Progress(
            generation=generation,
            seconds=self.seconds,
            evaluations=self.evaluations,
            best=mean(best),
            mean_reward=mean(tally.results),
            # Only proposals that the chip cannot execute unchanged have negative rewards.
            valid=mean([float(reward > 0) for reward in tally.results]),
            chromosomes=sum(member.is_chromosome for member in self.members),
            losses=tally.mean_losses,
            evaluations_per_second=len(tally.results) / max(tally.acting_seconds, 1e-9),
            steps_per_second=tally.steps_per_second,
        )

    def plan(self, number: int) -> Plan | None:
        """Return the best map of the network of layers with this number as a plan; None if there is none."""
        return self.networks[number].plan()

    def demonstrate(self, number: int, plan: Plan | Ints) -> None:
        """Add a map from elsewhere for the network of layers with this number as a demonstration. It does not count as an
        evaluation.

        The map is added to the learner's replay with its reward without noise, and the policy imitates it (with ``imitation``).
        The agent's best map does not change.

        Parameters
        ----------
        plan
            A plan, or tiers ``[N, 2]`` of weights and outputs.

        Raises
        ------
        InputError
            If the plan belongs to another problem, or the chip cannot execute the map unchanged.
        UsageError
            If there is no learner.
        """
        if not self.config.learner:
            raise UsageError("found a demonstration, expected a learner to learn from it")
        network = self.networks[number]
        tiers = network.demonstration(plan)
        network.shown.append(tiers)
        self.replay.add(number, tiers, network.reward(tiers))

    @property
    def _number(self) -> int:
        """The index of the network of this generation."""
        return self.generations % len(self.networks)

    def _members_to_evaluate(self) -> list[int]:
        """Return the indices of the members to evaluate: those without a fitness for this network of layers. All members are
        evaluated if there is nothing else to evaluate."""
        indices = [at for at, member in enumerate(self.members) if self.config.reevaluate or not member.is_judged]
        return indices if indices or (self.config.learner and self.config.rollouts) else [*range(len(self.members))]

    def _first_members(self, weights: Floats | None) -> None:
        """Draw the first population; ``weights`` are those of one of its graph networks."""
        config = self.config
        count = round(config.boltzmann_fraction * config.population)
        rows = [self.learner.fresh_weights(self._rng) for _ in range(config.population - count)]
        if weights is not None and rows:
            rows[0] = self.learner.weights()
        self._set_aside = [
            [
                Member(Chromosome.random(len(network.problem.layers), network.graph.tiers, self._rng, config.temperatures))
                for _ in range(count)
            ]
            for network in self.networks
        ]
        self.members = [Member(row) for row in rows]
        self._change_network(None, 0)

    def _change_network(self, before: int | None, now: int) -> None:
        """Exchange the chromosomes of one network of layers for those of another one. Graph networks must then be evaluated
        again, because their fitness is for the earlier network of layers."""
        if before == now:
            return
        chromosomes = [member for member in self.members if member.is_chromosome]
        networks = [replace(member, is_judged=False) for member in self.members if not member.is_chromosome]
        self.members = networks + self._set_aside[now]
        self._set_aside[now] = []
        if before is not None:
            self._set_aside[before] = chromosomes

    def _make_proposals(self, indices: Sequence[int], explorations: int) -> list[Ints]:
        """Return the next batch of members' proposals; after the last member also ``explorations`` proposals of the learner."""
        encodings = [self.members[at].encoding for at in indices]
        proposer = self._make_proposer(self._number)
        proposals = proposer.propose(encodings, self._rng)
        if len(proposals) == len(encodings):
            proposals += [proposer.explore(self._rng) for _ in range(explorations)]
        return proposals

    def _make_proposer(self, number: int) -> Proposer:
        """Return the proposer for the network of layers with this index."""
        return Proposer(self.config, self.learner, self.networks[number], number)

    def _evaluate(self, indices: Sequence[int], maps: Ints, tally: Tally[Losses]) -> list[Member]:
        """Evaluate proposals ``[P, N, 2]``: those of the members with these indices, then those of the learner.

        A repeated proposal is evaluated and counted again. Returns the learner's proposals as chromosomes, which take part in
        selection.
        """
        number = self._number
        members = [self.members[at] for at in indices]
        if self.config.repair:
            maps, members = self._make_proposer(number).rectify_proposals(maps, members)
        rewards = self.networks[number].evaluate(maps).tolist()
        for tiers, reward in zip(maps, rewards, strict=True):
            self.replay.add(number, tiers, reward)
        for at, member, reward in zip(indices, members, rewards, strict=False):
            self.members[at] = Member(member.encoding, reward, is_judged=True)
        self.evaluations += len(maps)
        tally.results += rewards
        if not self.members or not self.config.migrate_rollouts:
            return []
        tiers_of = self.networks[number].graph.tiers
        chromosomes = (Chromosome.from_map(tiers, tiers_of, self.config.seeded_temperature) for tiers in maps[len(indices) :])
        return [Member(each, reward, is_judged=True) for each, reward in zip(chromosomes, rewards[len(indices) :], strict=True)]

    def _next_generation(self, visitors: Sequence[Member]) -> None:
        """Replace the members by the next generation, and go on to the next network of layers."""
        number = self._number
        if self.members:
            networks = [member for member in self.members if not member.is_chromosome]
            self._best_network = max(networks, key=lambda member: member.fitness, default=self._best_network)
            self.members = self._evolve(number, visitors)
        self.generations += 1
        self._change_network(number, self._number)

    def _evolve(self, number: int, visitors: Sequence[Member]) -> list[Member]:
        """Return the next generation of members; ``visitors`` also take part in selection."""
        evolution = Evolution(
            config=self.config,
            rng=self._rng,
            posterior=lambda weights: self.learner.posteriors(number, [weights])[0],
            fresh=lambda places: self.learner.fresh_weights(self._rng, places),
            movable=self.networks[number].movable,
        )
        members = evolution.next_generation(self.members, visitors)
        is_shared = len(self.networks) > 1
        if is_shared:
            members = restore_sizes(members, self.members)
        # The learner replaces no chromosome if graph networks are shared: chromosomes belong to one network of layers.
        places = [at for at, member in enumerate(members) if not (is_shared and member.is_chromosome)]
        if self.config.learner and places:
            # Migration: the learner's network replaces the child of the weakest parent.
            weakest = min(places, key=lambda at: members[at].fitness)
            members[weakest] = Member(self.learner.weights())
        return members

    def _learn(self, number: int, tally: Tally[Losses]) -> None:
        """Make a step of the learner on the replay of network ``number``."""
        config = self.config
        maps, rewards = self.replay.sample(number, config.batch_size, self._learning_rng)
        network = self.networks[number]
        shown = [*network.shown, *([network.best.tiers] if network.best.tiers is not None else [])]
        picked = shown[int(self._learning_rng.integers(len(shown)))] if shown and config.imitation else None
        tally.losses.append(self.learner.update(number, maps, rewards, picked, self._learning_rng))

    @property
    def counts(self) -> Counts:
        """Counts of the training so far; games are evaluations."""
        moves = sum(network.best.evaluations * len(network.movable) for network in self.networks)
        return Counts(self.learner.steps, self.evaluations, moves)

    @property
    def has_network(self) -> bool:
        """Whether a graph network exists that can be saved as a policy."""
        return self.config.learner or self._best_network is not None

    def best_policy(self) -> Floats:
        """Return the weights, in one row, of the best graph network of learner and population.

        It is the one whose likeliest maps have the largest reward without noise, averaged over the networks of layers.
        Computing these rewards does not count as evaluation.

        Raises
        ------
        UsageError
            If there are only chromosomes.
        """
        rows = [self.learner.weights()] if self.config.learner else []
        members = [*self.members, *([] if self._best_network is None else [self._best_network])]
        rows += [member.encoding for member in members if not isinstance(member.encoding, Chromosome)]
        if not rows:
            raise UsageError("found no graph network to write, but chromosomes alone")
        rows = [*{row.tobytes(): row for row in rows}.values()]
        rewards = np.zeros(len(rows))
        for number, network in enumerate(self.networks):
            rewards += [network.reward(tiers) for tiers in self._make_proposer(number).likeliest(rows)]
        return rows[int(rewards.argmax())]

    def policy_values(self) -> dict[str, Any]:
        """Return the values for a policy file with the network of :meth:`best_policy`, which may raise UsageError."""
        actor = copy.deepcopy(self.learner.actor)
        with torch.no_grad():
            actor.row.copy_(torch.from_numpy(self.best_policy()))
        return policy_values(actor)

    def state_dict(self) -> dict[str, Any]:
        """Return all state that the next iteration depends on."""
        return super().state_dict() | {
            "counters": [self.evaluations, self.generations],
            "due": self._owed_steps,
            "members": pack_members(self.members),
            "set_aside": [pack_members(members) for members in self._set_aside],
            "best_network": pack_members([] if self._best_network is None else [self._best_network]),
            "replay": self.replay.state_dict(),
            "learner": self.learner.state_dict(),
            "generators": [checkpoint.pack_generator(generator) for generator in (self._rng, self._learning_rng)],
            "networks": [network.state_dict() for network in self.networks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned; raise one of ``checkpoint.DAMAGE`` if it is not valid."""
        super().load_state_dict(state)
        self.evaluations, self.generations = (int(counter) for counter in state["counters"])
        self._owed_steps = float(state["due"])
        self.members = self._unpack_members(self._number, state["members"])
        self._set_aside = [self._unpack_members(at, packed) for at, packed in enumerate(state["set_aside"])]
        self._best_network = next(iter(self._unpack_members(0, state["best_network"])), None)
        self.replay.load_state_dict(state["replay"])
        self.learner.load_state_dict(state["learner"])
        self._rng, self._learning_rng = map(checkpoint.unpack_generator, state["generators"])
        for network, packed in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(packed)
        if min(state["counters"]) < 0:
            raise ValueError(f"counters {state['counters']}")

    def _unpack_members(self, number: int, packed: list[dict[str, Any]]) -> list[Member]:
        """Decode members, whose chromosomes are for the network of layers with this index."""
        network = self.networks[number]
        shape = (len(network.problem.layers), 2, network.graph.tiers)
        return unpack_members(packed, len(self.learner.weights()), shape)
