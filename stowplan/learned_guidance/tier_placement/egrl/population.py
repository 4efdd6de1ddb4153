"""The population and its evolution: elites, tournaments, crossover within an encoding, seeding across, mutation.

Khadka et al., ICLR 2021, algorithm 2. A member's map is another's neighbour by its weights or by its priors; which encoding
prevails is for selection to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.learned_guidance.tier_placement.egrl.chromosome import Chromosome
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

#: How much more a super-mutation changes a weight.
SUPER = 10.0

Encoding: TypeAlias = "Floats | Chromosome"
"""A graph network's weights in one row, or a chromosome."""


@dataclass(frozen=True, eq=False)
class Member:
    """A policy of the population."""

    encoding: Encoding
    fitness: float = -np.inf
    """Reward of its last proposal."""

    @property
    def is_chromosome(self) -> bool:
        """Whether it is stateless."""
        return isinstance(self.encoding, Chromosome)


@dataclass(frozen=True, eq=False)
class Evolution:
    """What the operators need to know besides the members.

    Parameters
    ----------
    posterior
        Probabilities ``[N, 2, T]`` of a graph network of given weights.
    fresh
        A new graph network's weights, for resets.
    movable
        [M, 2] Tensors that are to be placed.
    """

    config: EgrlConfig
    chance: np.random.Generator
    posterior: Callable[[Floats], Floats]
    fresh: Callable[[], Floats]
    movable: Ints

    def next_generation(self, members: list[Member]) -> list[Member]:
        """Elites as they are, first; then selected members, crossed and mutated. Fitnesses are those of the parents."""
        config = self.config
        if config.fixed_composition:
            kinds = [[m for m in members if m.is_chromosome == kind] for kind in (False, True)]
            if all(kinds):
                return self._next(kinds[0], kinds[1]) + self._next(kinds[1], kinds[0])
        return self._next(members, [])

    def _next(self, members, others):
        config = self.config
        ranked = sorted(members, key=lambda member: -member.fitness)
        elites = ranked[: max(min(2, len(members)), round(config.elite_fraction * len(members)))]
        selected = [self._tournament(ranked) for _ in range(len(members) - len(elites))]
        mates = elites if not others or not ranked[0].is_chromosome else elites + [max(others, key=lambda m: m.fitness)]
        children = [self._crossed(member, mates, selected) for member in selected]
        return elites + [self._mutated(child) for child in children]

    def _tournament(self, ranked: list[Member]) -> Member:
        entrants = self.chance.integers(len(ranked), size=self.config.tournament)
        # The members stand in order of their fitness.
        return ranked[int(entrants.min())]

    def _crossed(self, member: Member, elites: list[Member], selected: list[Member]) -> Member:
        if self.chance.random() >= self.config.crossover_fraction:
            return member
        other = elites[int(self.chance.integers(len(elites)))]
        mine, others = member.encoding, other.encoding
        if isinstance(mine, Chromosome) and isinstance(others, Chromosome):
            return replace(member, encoding=mine.crossed(others, int(self.chance.integers(len(mine.prior) + 1))))
        if not isinstance(mine, Chromosome) and not isinstance(others, Chromosome):
            if self.config.frozen:
                return member
            place = int(self.chance.integers(len(mine) + 1))
            return replace(member, encoding=np.concatenate([mine[:place], others[place:]]))
        if not self.config.seeding:
            return member
        network = others if isinstance(mine, Chromosome) else mine
        assert not isinstance(network, Chromosome)
        return replace(member, encoding=Chromosome.seeded(self.posterior(network), self.config.seeded_temperature))

    def _mutated(self, member: Member) -> Member:
        config = self.config
        if self.chance.random() >= config.mutation_fraction:
            return member
        encoding = member.encoding
        if isinstance(encoding, Chromosome):
            changed = encoding.mutated(self.chance, config.chromosome_moves, self.movable, config.least_temperature)
            return replace(member, encoding=changed)
        return member if config.frozen else replace(member, encoding=self._mutated_weights(encoding))

    def _mutated_weights(self, weights: Floats) -> Floats:
        config, chance = self.config, self.chance
        places = np.flatnonzero(chance.random(len(weights)) < config.weight_fraction)
        kind = chance.random(len(places))
        is_super = kind < config.super_mutation
        is_reset = (kind >= config.super_mutation) & (kind < config.super_mutation + config.reset_mutation)
        changed = weights.copy()
        strength = config.mutation_strength * np.where(is_super, SUPER, 1.0)
        changed[places] += (chance.normal(size=len(places)) * strength * np.abs(weights[places])).astype(np.float32)
        if is_reset.any():
            changed[places[is_reset]] = self.fresh()[places[is_reset]]
        return changed
