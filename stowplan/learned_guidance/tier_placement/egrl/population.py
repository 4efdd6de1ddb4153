"""The population and its evolution: elites, tournaments, crossover within an encoding, seeding across, mutation.

See Khadka et al., ICLR 2021, algorithm 2. A member is encoded as the weights of a graph network, or as a Boltzmann chromosome,
which has a prior over tiers and a temperature for each tensor (appendix E). Selection decides which encoding prevails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

#: Priors of a new chromosome are drawn uniformly from 0 to this.
PRIORS = 1.0

#: Mean and standard deviation of the factors by which a mutation multiplies priors, and temperatures.
PRIOR_CHANGE, TEMPERATURE_CHANGE = (1.0, 0.1), (0.95, 0.1)


@dataclass(frozen=True, eq=False)
class Chromosome:
    """A policy for one network of N layers: probabilities are the softmax of prior / temperature. It is immutable."""

    prior: Floats
    """[N, 2, T] a number for each tier, for the weights and for the output of each layer."""
    temperature: Floats
    """[N, 2] a temperature for each tensor."""

    @classmethod
    def random(cls, layers: int, tiers: int, rng: np.random.Generator, temperatures: tuple[float, float]) -> Chromosome:
        """Draw priors uniformly up to :data:`PRIORS`, and temperatures uniformly from the range ``temperatures``."""
        return cls(
            prior=rng.uniform(0.0, PRIORS, (layers, 2, tiers)).astype(np.float32),
            temperature=rng.uniform(*temperatures, (layers, 2)).astype(np.float32),
        )

    @classmethod
    def from_posterior(cls, probabilities: Floats, temperature: float) -> Chromosome:
        """Make a chromosome with the posterior ``[N, 2, T]`` of a graph network."""
        return cls(probabilities.astype(np.float32), np.full(probabilities.shape[:2], temperature, np.float32))

    @classmethod
    def from_map(cls, tiers: Ints, count: int, temperature: float) -> Chromosome:
        """Make a chromosome whose likeliest tiers are a map ``[N, 2]``; ``count`` is the number of tiers."""
        return cls.from_posterior(np.eye(count, dtype=np.float32)[tiers], temperature)

    @property
    def probabilities(self) -> Floats:
        """The probabilities [N, 2, T] of tiers."""
        scaled = self.prior / self.temperature[..., None]
        scaled -= scaled.max(axis=-1, keepdims=True)
        raised = np.exp(scaled)
        probabilities: Floats = raised / raised.sum(axis=-1, keepdims=True)
        return probabilities

    def draw(self, rng: np.random.Generator) -> Ints:
        """Draw tiers [N, 2] from the softmax."""
        return draw(self.probabilities, rng)

    def cross(self, other: Chromosome, place: int) -> Chromosome:
        """Combine the layers before ``place`` of this chromosome with the layers from ``place`` on of the other chromosome."""
        return Chromosome(
            np.concatenate([self.prior[:place], other.prior[place:]]),
            np.concatenate([self.temperature[:place], other.temperature[place:]]),
        )

    def mutate(self, rng: np.random.Generator, moves: float, movable: Ints, least_temperature: float) -> Chromosome:
        """Return a mutated copy.

        Parameters
        ----------
        moves
            Mean number of tensors that get another likeliest tier; 0: every prior changes a little, as in the paper.
        movable
            [M, 2] the tensors to place: layer, and 0 for weights or 1 for the output.
        least_temperature
            Temperatures change a little, but not below this one.
        """
        change = rng.normal(*TEMPERATURE_CHANGE, self.temperature.shape)
        temperature = np.maximum(self.temperature * change, least_temperature).astype(np.float32)
        if moves == 0:
            return Chromosome((self.prior * rng.normal(*PRIOR_CHANGE, self.prior.shape)).astype(np.float32), temperature)
        prior = self.prior.copy()
        count = min(len(movable), 1 + int(rng.poisson(max(0.0, moves - 1))))
        for layer, part in movable[rng.choice(len(movable), count, replace=False)].tolist():
            values = prior[layer, part]
            # Exchange the largest prior with another.
            was = int(values.argmax())
            to = (was + 1 + int(rng.integers(len(values) - 1))) % len(values) if len(values) > 1 else was
            values[was], values[to] = values[to], values[was]
        return Chromosome(prior, temperature)

    def with_likeliest(self, tiers: Ints) -> Chromosome:
        """Return a copy whose likeliest tiers are ``[N, 2]``: their priors are exchanged with the largest priors."""
        best = self.prior.argmax(axis=-1)
        layers, parts = np.nonzero(best != tiers)
        if not len(layers):
            return self
        prior = self.prior.copy()
        old, new = best[layers, parts], tiers[layers, parts]
        prior[layers, parts, old] = self.prior[layers, parts, new]
        prior[layers, parts, new] = self.prior[layers, parts, old]
        return Chromosome(prior, self.temperature)


def draw(probabilities: Floats, rng: np.random.Generator) -> Ints:
    """Draw integers [...] from distributions ``[..., T]``."""
    summed = np.cumsum(probabilities, axis=-1)
    drawn = rng.random(probabilities.shape[:-1])[..., None] * summed[..., -1:]
    numbers: Ints = np.minimum((drawn >= summed).sum(axis=-1), probabilities.shape[-1] - 1).astype(np.int64)
    return numbers


#: Factor by which the change of a super-mutation is larger.
SUPER = 10.0

Encoding: TypeAlias = "Floats | Chromosome"
"""A graph network's weights in one row, or a chromosome."""


@dataclass(frozen=True, eq=False)
class Member:
    """A policy of the population."""

    encoding: Encoding
    fitness: float = -np.inf
    """Reward of the last proposal; a child without a proposal has its parent's fitness."""
    is_judged: bool = False
    """Whether the fitness is that of its own proposal, and not of its parent's. A member that is not judged is evaluated in the
    next generation."""

    @property
    def is_chromosome(self) -> bool:
        """Whether the encoding is a chromosome."""
        return isinstance(self.encoding, Chromosome)


@dataclass(frozen=True, eq=False)
class Evolution:
    """The operators of evolution, with the data that they need besides the members.

    Parameters
    ----------
    posterior
        Returns the probabilities ``[N, 2, T]`` of a graph network with given weights.
    fresh
        Draws initial values for some weights of a graph network, for resets.
    movable
        [M, 2] tensors to place.
    """

    config: EgrlConfig
    rng: np.random.Generator
    posterior: Callable[[Floats], Floats]
    fresh: Callable[[Ints], Floats]
    movable: Ints

    def next_generation(self, members: list[Member], visitors: Sequence[Member] = ()) -> list[Member]:
        """Return as many members: first the unchanged elites, then selected members, crossed and mutated, which must be
        evaluated.

        Parameters
        ----------
        members
            The present generation, at least one member.
        visitors
            Candidates for selection besides the members, such as the learner's proposals.
        """
        config = self.config
        ranked = sorted([*members, *visitors], key=lambda member: -member.fitness)
        elites = ranked[: max(min(2, len(members)), round(config.elite_fraction * len(members)))]
        selected = self._keep_encodings(ranked, [self._tournament(ranked) for _ in range(len(members) - len(elites))])
        networks = [member for member in ranked if not member.is_chromosome][: len(elites)]
        children = [self._mutate(self._cross(member, elites, networks)) for member in selected]
        return elites + [replace(child, is_judged=False) for child in children]

    def _keep_encodings(self, ranked: list[Member], selected: list[Member]) -> list[Member]:
        """Keep the least fraction of each encoding. If too few members of one encoding were selected, more of its members
        replace the weakest selected members of the other encoding."""
        selected = sorted(selected, key=lambda member: -member.fitness)
        for kind, part in ((False, self.config.least_networks), (True, self.config.least_chromosomes)):
            least = round(part * len(ranked))
            own = [member for member in ranked if member.is_chromosome == kind]
            others = [at for at, member in enumerate(selected) if member.is_chromosome != kind]
            missing = min(least - (len(selected) - len(others)), len(others))
            for at in others[len(others) - missing :] if own and missing > 0 else []:
                selected[at] = self._tournament(own)
        return selected

    def _tournament(self, ranked: list[Member]) -> Member:
        """Draw some members and return the fittest of them; ``ranked`` is sorted by fitness."""
        entrants = self.rng.integers(len(ranked), size=self.config.tournament)
        # The members are sorted by fitness.
        return ranked[int(entrants.min())]

    def _cross(self, member: Member, elites: list[Member], networks: list[Member]) -> Member:
        """Cross a member with a partner, with the probability of a crossing. If one of the two is a chromosome and the other a
        graph network, the result is a chromosome that is seeded by the graph network."""
        if self.rng.random() >= self.config.crossover_fraction:
            return member
        other = self._mate(member, elites, networks)
        mine, others = member.encoding, other.encoding
        if isinstance(mine, Chromosome) and isinstance(others, Chromosome):
            return replace(member, encoding=mine.cross(others, int(self.rng.integers(len(mine.prior) + 1))))
        if not isinstance(mine, Chromosome) and not isinstance(others, Chromosome):
            if self.config.frozen:
                return member
            place = int(self.rng.integers(len(mine) + 1))
            return replace(member, encoding=np.concatenate([mine[:place], others[place:]]))
        if not self.config.seeding:
            return member
        network = others if isinstance(mine, Chromosome) else mine
        assert not isinstance(network, Chromosome)
        posterior = self.posterior(network)
        if self.config.seed_actions:
            likeliest = Chromosome.from_map(posterior.argmax(-1), posterior.shape[-1], self.config.seeded_temperature)
            return replace(member, encoding=likeliest)
        return replace(member, encoding=Chromosome.from_posterior(posterior, self.config.seeded_temperature))

    def _mate(self, member: Member, elites: list[Member], networks: list[Member]) -> Member:
        """Choose the partner for a crossing. With ``least_networks``, graph networks mate only with graph networks."""
        pool = elites
        if self.config.least_networks:
            pool = [*elites, *networks] if member.is_chromosome else networks
        return pool[int(self.rng.integers(len(pool)))]

    def _mutate(self, member: Member) -> Member:
        """Mutate a member, with the probability of a mutation."""
        config = self.config
        if self.rng.random() >= config.mutation_fraction:
            return member
        encoding = member.encoding
        if isinstance(encoding, Chromosome):
            changed = encoding.mutate(self.rng, config.chromosome_moves, self.movable, config.least_temperature)
            return replace(member, encoding=changed)
        return member if config.frozen else replace(member, encoding=self._mutate_weights(encoding))

    def _mutate_weights(self, weights: Floats) -> Floats:
        """Return a copy of the weights of a graph network in which some weights are changed or drawn again."""
        config, rng = self.config, self.rng
        places = np.flatnonzero(rng.random(len(weights)) < config.weight_fraction)
        kind = rng.random(len(places))
        is_super = kind < config.super_mutation
        is_reset = (kind >= config.super_mutation) & (kind < config.super_mutation + config.reset_mutation)
        changed = weights.copy()
        strength = config.mutation_strength * np.where(is_super, SUPER, 1.0)
        changed[places] += (rng.normal(size=len(places)) * strength * np.abs(weights[places])).astype(np.float32)
        changed[places[is_reset]] = self.fresh(places[is_reset])
        return changed


def restore_sizes(members: Sequence[Member], parents: Sequence[Member]) -> list[Member]:
    """Return as many members of each encoding as there were parents.

    If there are too many of one encoding, its weakest children are replaced by the fittest parents of the other encoding.
    Networks of layers share graph networks but not chromosomes. Without this function the selection for one of them would
    change the size of the shared population.
    """
    population: list[Member] = []
    for kind in (False, True):
        before = sorted((parent for parent in parents if parent.is_chromosome == kind), key=lambda parent: -parent.fitness)
        now = [member for member in members if member.is_chromosome == kind]
        # Sorting is stable, so elites stay among equals: they are first.
        fittest = sorted(range(len(now)), key=lambda at: -now[at].fitness)[: len(before)]
        population += [now[at] for at in sorted(fittest)]
        staying = [parent for parent in before if all(parent is not member for member in now)]
        population += staying[: len(before) - len(fittest)]
    return population
