"""Training of EGRL on one or more networks: generations of proposals and the learner's steps, in turn, in one process.

A generation is of one network: members propose maps, the learner's policy some more, and all are evaluated. Graph networks are
one population for all networks; chromosomes are of one network each.
An iteration is a generation, with the learner's steps on it.
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
from stowplan.learned_guidance.tier_placement.egrl.population import Chromosome, Evolution, Floats, Ints, Member, restored
from stowplan.learned_guidance.tier_placement.egrl.workload import Network, Proposer, Replay, check_tiers
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.curve import Column, Report, Tally, mean
from stowplan.learned_guidance.training.run import Allowance, BaseTrainer, Counts, InterruptedIterationError
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem


@dataclass(frozen=True)
class Progress(Report):
    """What a generation came to."""

    generation: int
    seconds: Annotated[float, Column(form=".3f")]
    """Of training, earlier runs included."""
    evaluations: int
    """Since the beginning."""
    best: Annotated[float, Column(("best_speedup",))]
    """Speedup of the best map as it was measured, in the mean over networks that have one; NaN before."""
    mean_reward: float
    """Of this generation's proposals; so are the two below."""
    valid: Annotated[float, Column(("valid_part",))]
    """Part of the proposals that could be executed as they were."""
    chromosomes: int
    """Members of the population that are Boltzmann chromosomes."""
    losses: Annotated[Losses | None, Column(("critic_loss", "actor_loss", "entropy", "value_error"))]
    """Means of this generation; None without steps of the learner."""
    evaluations_per_second: Annotated[float, Column(form=".1f")]
    """Of proposals and evaluations alone."""
    steps_per_second: Annotated[float, Column(form=".2f")]
    """Of the learner's steps alone."""

    @property
    def line(self) -> str:
        """The same in short, for people."""
        best = "no map yet" if math.isnan(self.best) else f"best speedup {self.best:.4f}"
        learning = (
            "" if self.losses is None else f", value error {self.losses.value_error:.3f}, entropy {self.losses.entropy:.3f}"
        )
        return (
            f"[{self.seconds:6.1f} s] {best}, {self.evaluations} evaluations, mean reward {self.mean_reward:.3f}, "
            f"{self.valid:.0%} valid, {self.chromosomes} chromosomes{learning}"
        )


class Trainer(BaseTrainer[EgrlConfig, Progress]):
    """See the module.

    Parameters
    ----------
    problems
        Networks to learn on; each generation is of one of them, in turn.
    seed
        Of everything random.
    weights
        Of an actor of the same sizes, in one row: the learner begins with it, and one member of the population.

    Raises
    ------
    InputError
        A network without node features, networks on chips of unlike many tiers, or weights of other sizes.
    UsageError
        The seed is none.
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
        self._due = 0.0
        """Steps of the learner that are owed to evaluations."""
        self.members: list[Member] = []
        """Of the present generation: graph networks, and the chromosomes of its network."""
        self._set_aside: list[list[Member]] = []
        """Chromosomes of each of the other networks."""
        self._first_members(weights)
        self._best_network = next((member for member in self.members if not member.is_chromosome), None)
        """The best graph network of the last generation that had any."""

    @property
    def done(self) -> bool:
        """Whether all evaluations are spent."""
        return self.evaluations >= self.config.evaluations

    @property
    def iteration(self) -> int:
        """Whole generations."""
        return self.generations

    @property
    def ends_early(self) -> bool:
        """Whether there are too few evaluations left for a generation."""
        return self._planned(self._to_be_asked()) > self.config.evaluations - self.evaluations

    def _planned(self, asked: Sequence[int]) -> int:
        """Proposals of this generation."""
        return len(asked) + (self.config.rollouts if self.config.learner else 0)

    def _iterate(self, allowance: Allowance) -> Progress:
        """One generation and the learner's steps on it; one that there are too few evaluations for ends early."""
        began, tally, number = self._clock(), Tally[Losses](), self._number
        asked = self._to_be_asked()
        planned = self._planned(asked)
        count = min(planned, self.config.evaluations - self.evaluations)
        proposals: list[Ints] = []
        while len(proposals) < count:
            allowance.check()
            proposals += self._proposed(asked[len(proposals) :], planned - len(asked))
        visitors = self._evaluate(asked[:count], np.stack(proposals[:count]), tally)
        tally.acting_seconds = self._clock() - began
        if count < planned:
            raise InterruptedIterationError(self._report(self.generations + 1, tally))
        self._next_generation(visitors)
        self._due += self.config.updates_per_evaluation * planned if self.config.learner else 0.0
        began = self._clock()
        while self._due >= 1:
            allowance.check()
            self._due -= 1
            self._learn(number, tally)
        tally.learning_seconds = self._clock() - began
        return self._report(self.generations, tally)

    def _report(self, generation: int, tally: Tally[Losses]) -> Progress:
        best = [network.best.speedup for network in self.networks if network.best.tiers is not None]
        return Progress(
            generation=generation,
            seconds=self.seconds,
            evaluations=self.evaluations,
            best=mean(best),
            mean_reward=mean(tally.results),
            # All proposals that cannot be executed have negative rewards.
            valid=mean([float(reward > 0) for reward in tally.results]),
            chromosomes=sum(member.is_chromosome for member in self.members),
            losses=tally.mean_losses,
            evaluations_per_second=len(tally.results) / max(tally.acting_seconds, 1e-9),
            steps_per_second=tally.steps_per_second,
        )

    def plan(self, number: int) -> Plan | None:
        """The best map of the network of this number as a plan; None where there is none."""
        return self.networks[number].plan()

    def demonstrate(self, number: int, plan: Plan | Ints) -> None:
        """Learn from a map of the network of this number that something else found; it counts as no evaluation.

        The learner's replay gets it with its reward, without noise, and with ``imitation`` the policy imitates it. The best map
        stays the best of the agent's own.

        Parameters
        ----------
        plan
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
        tiers = network.demonstration(plan)
        network.shown.append(tiers)
        self.replay.add(number, tiers, network.reward(tiers))

    @property
    def _number(self) -> int:
        """Of the network that this generation is of."""
        return self.generations % len(self.networks)

    def _to_be_asked(self) -> list[int]:
        """Members whose fitness for this network is not known; all, where they are evaluated again or nothing else is to be."""
        asked = [at for at, member in enumerate(self.members) if self.config.reevaluate or not member.is_judged]
        return asked if asked or (self.config.learner and self.config.rollouts) else [*range(len(self.members))]

    def _first_members(self, weights: Floats | None) -> None:
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
        """Set the chromosomes of one network aside, and take up another's; what graph networks are worth there is not known."""
        if before == now:
            return
        chromosomes = [member for member in self.members if member.is_chromosome]
        networks = [replace(member, is_judged=False) for member in self.members if not member.is_chromosome]
        self.members = networks + self._set_aside[now]
        self._set_aside[now] = []
        if before is not None:
            self._set_aside[before] = chromosomes

    def _proposed(self, asked: Sequence[int], explorations: int) -> list[Ints]:
        """Proposals of the first members asked, as many as are quick together; with the last, so many of the learner's."""
        encodings = [self.members[at].encoding for at in asked]
        proposer = self._proposer(self._number)
        proposals = proposer.proposed(encodings, self._rng)
        if len(proposals) == len(encodings):
            proposals += [proposer.explored(self._rng) for _ in range(explorations)]
        return proposals

    def _proposer(self, number: int) -> Proposer:
        return Proposer(self.config, self.learner, self.networks[number], number)

    def _evaluate(self, asked: Sequence[int], maps: Ints, tally: Tally[Losses]) -> list[Member]:
        """Evaluate proposals ``[P, N, 2]``, those of members asked first; the others as members that believe in them.

        A proposal that was made before is evaluated and counted again.
        """
        number = self._number
        members = [self.members[at] for at in asked]
        if self.config.repair:
            maps, members = self._proposer(number).repaired(maps, members)
        rewards = self.networks[number].evaluate(maps).tolist()
        for tiers, reward in zip(maps, rewards, strict=True):
            self.replay.add(number, tiers, reward)
        for at, member, reward in zip(asked, members, rewards, strict=False):
            self.members[at] = Member(member.encoding, reward, is_judged=True)
        self.evaluations += len(maps)
        tally.results += rewards
        if not self.members or not self.config.migrate_rollouts:
            return []
        tiers_of = self.networks[number].graph.tiers
        believed = (Chromosome.believing(tiers, tiers_of, self.config.seeded_temperature) for tiers in maps[len(asked) :])
        return [Member(each, reward, is_judged=True) for each, reward in zip(believed, rewards[len(asked) :], strict=True)]

    def _next_generation(self, visitors: Sequence[Member]) -> None:
        number = self._number
        if self.members:
            networks = [member for member in self.members if not member.is_chromosome]
            self._best_network = max(networks, key=lambda member: member.fitness, default=self._best_network)
            self.members = self._evolved(number, visitors)
        self.generations += 1
        self._change_network(number, self._number)

    def _evolved(self, number: int, visitors: Sequence[Member]) -> list[Member]:
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
            members = restored(members, self.members)
        # What all networks share does not take the place of what is one network's own.
        places = [at for at, member in enumerate(members) if not (is_shared and member.is_chromosome)]
        if self.config.learner and places:
            # Migration: in place of the child of the weakest parent.
            weakest = min(places, key=lambda at: members[at].fitness)
            members[weakest] = Member(self.learner.weights())
        return members

    def _learn(self, number: int, tally: Tally[Losses]) -> None:
        """A step of the learner on what is known of a network."""
        config = self.config
        maps, rewards = self.replay.sample(number, config.batch_size, self._learning_rng)
        network = self.networks[number]
        shown = [*network.shown, *([network.best.tiers] if network.best.tiers is not None else [])]
        picked = shown[int(self._learning_rng.integers(len(shown)))] if shown and config.imitation else None
        tally.losses.append(self.learner.update(number, maps, rewards, picked, self._learning_rng))

    @property
    def counts(self) -> Counts:
        """What has been done so far; games are evaluations."""
        moves = sum(network.best.evaluations * len(network.movable) for network in self.networks)
        return Counts(self.learner.steps, self.evaluations, moves)

    @property
    def has_network(self) -> bool:
        """Whether there is a graph network to write as a policy."""
        return self.config.learner or self._best_network is not None

    def best_policy(self) -> Floats:
        """Weights of the graph network to deploy, in one row.

        Of the learner's and the population's, the one whose likeliest maps have the best rewards, in the mean over the networks
        and without noise. These are no evaluations: nothing is learned from them.

        Raises
        ------
        UsageError
            There are chromosomes alone.
        """
        rows = [self.learner.weights()] if self.config.learner else []
        members = [*self.members, *([] if self._best_network is None else [self._best_network])]
        rows += [member.encoding for member in members if not isinstance(member.encoding, Chromosome)]
        if not rows:
            raise UsageError("found no graph network to write, but chromosomes alone")
        rows = [*{row.tobytes(): row for row in rows}.values()]
        rewards = np.zeros(len(rows))
        for number, network in enumerate(self.networks):
            rewards += [network.reward(tiers) for tiers in self._proposer(number).likeliest(rows)]
        return rows[int(rewards.argmax())]

    def policy_values(self) -> dict[str, Any]:
        """The network of :meth:`best_policy`; UsageError as there."""
        actor = copy.deepcopy(self.learner.actor)
        with torch.no_grad():
            actor.row.copy_(torch.from_numpy(self.best_policy()))
        return policy_values(actor)

    def state_dict(self) -> dict[str, Any]:
        """All that the next iteration depends on."""
        return super().state_dict() | {
            "counters": [self.evaluations, self.generations],
            "due": self._due,
            "members": pack_members(self.members),
            "set_aside": [pack_members(members) for members in self._set_aside],
            "best_network": pack_members([] if self._best_network is None else [self._best_network]),
            "replay": self.replay.state_dict(),
            "learner": self.learner.state_dict(),
            "generators": [checkpoint.pack_generator(generator) for generator in (self._rng, self._learning_rng)],
            "networks": [network.state_dict() for network in self.networks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; KeyError, TypeError, ValueError and the like where it is none."""
        super().load_state_dict(state)
        self.evaluations, self.generations = (int(counter) for counter in state["counters"])
        self._due = float(state["due"])
        self.members = self._unpacked(self._number, state["members"])
        self._set_aside = [self._unpacked(at, packed) for at, packed in enumerate(state["set_aside"])]
        self._best_network = next(iter(self._unpacked(0, state["best_network"])), None)
        self.replay.load_state_dict(state["replay"])
        self.learner.load_state_dict(state["learner"])
        self._rng, self._learning_rng = map(checkpoint.unpack_generator, state["generators"])
        for network, packed in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(packed)
        if min(state["counters"]) < 0:
            raise ValueError(f"counters {state['counters']}")

    def _unpacked(self, number: int, packed: list[dict[str, Any]]) -> list[Member]:
        network = self.networks[number]
        shape = (len(network.problem.layers), 2, network.graph.tiers)
        return unpack_members(packed, len(self.learner.weights()), shape)
