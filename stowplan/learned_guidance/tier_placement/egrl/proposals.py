"""Maps that policies propose for a network of layers: of members of the population, and of the learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.learner import Learner
from stowplan.learned_guidance.tier_placement.egrl.population import Chromosome, Encoding, Member, draw
from stowplan.learned_guidance.tier_placement.egrl.workload import Network

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

#: Nodes of one forward pass of the population, all members together: a second or so.
NODES_AT_ONCE = 20_000


@dataclass(frozen=True, eq=False)
class Proposer:
    """Makes proposals ``[N, 2]``, of tiers for weights and outputs, for the network of this number."""

    config: EgrlConfig
    learner: Learner
    network: Network
    number: int

    @property
    def _rows_at_once(self) -> int:
        return max(1, NODES_AT_ONCE // len(self.network.problem.layers))

    def proposed(self, encodings: Sequence[Encoding], rng: np.random.Generator) -> list[Ints]:
        """Of the first encodings, as many as go into one forward pass: draws of chromosomes, likeliest maps of networks."""
        rows: list[Floats] = []
        taken = 0
        for encoding in encodings:
            if not isinstance(encoding, Chromosome):
                if len(rows) == self._rows_at_once:
                    break
                rows.append(encoding)
            taken += 1
        likeliest = iter(self.likeliest(rows))
        return [
            self._placed(encoding.draw(rng) if isinstance(encoding, Chromosome) else next(likeliest))
            for encoding in encodings[:taken]
        ]

    def likeliest(self, rows: Sequence[Floats]) -> Ints:
        """[M, N, 2] Of graph networks of these weights."""
        most = self._rows_at_once
        parts = (rows[at : at + most] for at in range(0, len(rows), most))
        return np.array([tiers for part in parts for tiers in self.learner.posteriors(self.number, part).argmax(-1)], np.int64)

    def explored(self, rng: np.random.Generator) -> Ints:
        """Of the learner's policy, with some tensors sent anywhere."""
        probabilities = self.learner.posterior(self.number)
        tiers = draw(probabilities, rng)
        anywhere = rng.random(tiers.shape) < self.config.exploration
        return self._placed(np.where(anywhere, rng.integers(probabilities.shape[-1], size=tiers.shape), tiers))

    def _placed(self, tiers: Ints) -> Ints:
        """With 0 for weights that there are none of."""
        tiers[~self.network.graph.has_weights, 0] = 0
        return tiers

    def repaired(self, maps: Ints, members: Sequence[Member]) -> tuple[Ints, list[Member]]:
        """Chromosomes propose what the compiler makes of their draws, and take it over; ``repair_networks``: all propose it.

        Parameters
        ----------
        maps
            [K, N, 2] Proposals: of these members, and maybe more.
        """
        repaired_members = list(members)
        encodings = {at: member.encoding for at, member in enumerate(members) if isinstance(member.encoding, Chromosome)}
        places = [*range(len(maps))] if self.config.repair_networks else [*encodings]
        if not places:
            return maps, repaired_members
        maps = maps.copy()
        maps[places] = self.network.chip.compiled(maps[places])[0]
        for at, encoding in encodings.items():
            repaired_members[at] = Member(encoding.taking_over(maps[at]))
        return maps, repaired_members
