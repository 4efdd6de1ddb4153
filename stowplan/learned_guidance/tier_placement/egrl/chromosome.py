"""Boltzmann chromosomes: for each tensor a prior over tiers and a temperature. Khadka et al., ICLR 2021, appendix E."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

#: Temperatures of a new chromosome, evenly; and the priors', from 0 to this.
TEMPERATURES, PRIORS = (0.1, 10.0), 1.0

#: What a mutation multiplies by: mean and standard deviation of priors, and of temperatures.
PRIOR_CHANGE, TEMPERATURE_CHANGE = (1.0, 0.1), (0.95, 0.1)


@dataclass(frozen=True, eq=False)
class Chromosome:
    """A policy for one network of N layers; not changed once made."""

    prior: Floats
    """[N, 2, T]"""
    temperature: Floats
    """[N, 2]"""

    @classmethod
    def random(
        cls, layers: int, tiers: int, chance: np.random.Generator, temperatures: tuple[float, float] = TEMPERATURES
    ) -> Chromosome:
        """Priors and temperatures drawn evenly."""
        return cls(
            prior=chance.uniform(0.0, PRIORS, (layers, 2, tiers)).astype(np.float32),
            temperature=chance.uniform(*temperatures, (layers, 2)).astype(np.float32),
        )

    @classmethod
    def seeded(cls, probabilities: Floats, temperature: float) -> Chromosome:
        """One that believes in a graph network's posterior ``[N, 2, T]``."""
        return cls(probabilities.astype(np.float32), np.full(probabilities.shape[:2], temperature, np.float32))

    @classmethod
    def believing(cls, tiers: Ints, count: int, temperature: float) -> Chromosome:
        """One that believes in a map ``[N, 2]`` of so many tiers."""
        return cls.seeded(np.eye(count, dtype=np.float32)[tiers], temperature)

    @property
    def probabilities(self) -> Floats:
        """[N, 2, T]"""
        scaled = self.prior / self.temperature[..., None]
        scaled -= scaled.max(axis=-1, keepdims=True)
        raised = np.exp(scaled)
        found: Floats = raised / raised.sum(axis=-1, keepdims=True)
        return found

    def draw(self, chance: np.random.Generator) -> Ints:
        """[N, 2] Tiers drawn from the softmax."""
        return draw(self.probabilities, chance)

    def crossed(self, other: Chromosome, place: int) -> Chromosome:
        """Its layers up to ``place``, and the other's from there on."""
        return Chromosome(
            np.concatenate([self.prior[:place], other.prior[place:]]),
            np.concatenate([self.temperature[:place], other.temperature[place:]]),
        )

    def mutated(self, chance: np.random.Generator, moves: float, movable: Ints, least_temperature: float) -> Chromosome:
        """A neighbour.

        Parameters
        ----------
        moves
            Tensors that get another favourite, on average; 0: every prior changes a little, as in the paper.
        movable
            [M, 2] (layer, 0 for weights or 1 for the output) of the tensors that are to be placed.
        """
        change = chance.normal(*TEMPERATURE_CHANGE, self.temperature.shape)
        temperature = np.maximum(self.temperature * change, least_temperature).astype(np.float32)
        if moves == 0:
            return Chromosome((self.prior * chance.normal(*PRIOR_CHANGE, self.prior.shape)).astype(np.float32), temperature)
        prior = self.prior.copy()
        count = min(len(movable), 1 + int(chance.poisson(max(0.0, moves - 1))))
        for layer, part in movable[chance.choice(len(movable), count, replace=False)].tolist():
            values = prior[layer, part]
            # The favourite changes places with another.
            was = int(values.argmax())
            to = (was + 1 + int(chance.integers(len(values) - 1))) % len(values) if len(values) > 1 else was
            values[was], values[to] = values[to], values[was]
        return Chromosome(prior, temperature)

    def taking_over(self, tiers: Ints) -> Chromosome:
        """The same with these tiers ``[N, 2]`` as its favourites: each changes places with what was the favourite."""
        best = self.prior.argmax(axis=-1)
        layers, parts = np.nonzero(best != tiers)
        if not len(layers):
            return self
        prior = self.prior.copy()
        old, new = best[layers, parts], tiers[layers, parts]
        prior[layers, parts, old] = self.prior[layers, parts, new]
        prior[layers, parts, new] = self.prior[layers, parts, old]
        return Chromosome(prior, self.temperature)


def draw(probabilities: Floats, chance: np.random.Generator) -> Ints:
    """[...] Numbers drawn from distributions ``[..., T]``."""
    summed = np.cumsum(probabilities, axis=-1)
    drawn = chance.random(probabilities.shape[:-1])[..., None] * summed[..., -1:]
    found: Ints = np.minimum((drawn >= summed).sum(axis=-1), probabilities.shape[-1] - 1).astype(np.int64)
    return found
