"""A network of layers to train EGRL on: its chip, graph and best map, the proposals of policies, and the replay buffer.

Unless it says otherwise, *network* means a network of layers here, and not the graph network that places it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stowplan.errors import InputError
from stowplan.hardware.nnp_i.chip import REWARD_SCALE, Chip
from stowplan.hardware.nnp_i.compiler import Rectifier
from stowplan.hardware.nnp_i.problem import latency_ps
from stowplan.learned_guidance.tier_placement.egrl.checkpoint import pack_maps, unpack_maps
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.learner import Learner
from stowplan.learned_guidance.tier_placement.egrl.population import Chromosome, Encoding, Member, draw
from stowplan.learned_guidance.tier_placement.graph import graph_of
from stowplan.learned_guidance.training import checkpoint
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Replay:
    """The replay buffer, which keeps the last maps of each network.

    Parameters
    ----------
    layers
        Number of layers of each network.
    size
        Number of maps of all networks together.
    """

    def __init__(self, layers: list[int], size: int):
        self._room = max(1, size // len(layers))
        """Largest number of maps of each network."""
        self._layers = layers
        # Each network has a ring of the same number of maps, with a byte for each tier.
        self._maps: list[list[npt.NDArray[np.int8]]] = [[] for _ in layers]
        self._rewards: list[list[float]] = [[] for _ in layers]
        self._added = [0] * len(layers)
        """Number of maps of each network that have been added so far."""

    def add(self, network: int, tiers: Ints, reward: float) -> None:
        """Add a map ``[N, 2]`` of the network with this index, in place of its oldest one if there is no room."""
        place = self._added[network] % self._room
        # The next free slot of the ring, or the slot of the oldest map.
        self._maps[network][place : place + 1] = [tiers.astype(np.int8)]
        self._rewards[network][place : place + 1] = [reward]
        self._added[network] += 1

    def sample(self, network: int, size: int, rng: np.random.Generator) -> tuple[Ints, npt.NDArray[np.float32]]:
        """Draw maps ``[size, N, 2]`` of the network with this index and their rewards ``[size]`` uniformly, with replacement;
        raise ValueError if it has none."""
        drawn = rng.integers(len(self._rewards[network]), size=size).tolist()
        maps = np.array([self._maps[network][place] for place in drawn], np.int64)
        return maps, np.array([self._rewards[network][place] for place in drawn], np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return the replay as plain values and tensors."""
        maps = [np.array(ring, np.int8).reshape(-1, count, 2) for ring, count in zip(self._maps, self._layers, strict=True)]
        return {
            "added": list(self._added),
            "maps": [torch.from_numpy(ring) for ring in maps],
            "rewards": [torch.tensor(ring, dtype=torch.float32) for ring in self._rewards],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned; raise ValueError if it belongs to another replay."""
        added = [int(count) for count in state["added"]]
        maps, rewards = [ring.numpy() for ring in state["maps"]], [ring.tolist() for ring in state["rewards"]]
        for count, layers, ring_maps, values in zip(added, self._layers, maps, rewards, strict=True):
            expected = (min(count, self._room), layers, 2)
            if ring_maps.shape != expected or len(values) != len(ring_maps):
                raise ValueError(f"found maps of shape {ring_maps.shape}, expected {expected}")
        self._added, self._maps, self._rewards = added, [[*ring.astype(np.int8)] for ring in maps], rewards


@dataclass
class Best:
    """The best map of a network so far."""

    speedup: float = 0.0
    """Measured speedup over the compiler's map; 0 before a map could be executed."""
    latency_ps: int | None = None
    """Latency in ps without noise."""
    tiers: Ints | None = None
    """[N, 2] the map: tiers of the weights and of the output of each layer."""
    evaluations: int = 0
    """Number of evaluations of this network."""
    points: list[tuple[int, float]] = field(default_factory=list)
    """(evaluations of this network, speedup) of each map that was better than all earlier maps."""


class Network:
    """A network to train on: its chip, its graph, and its best map. ``seed`` is that of the noise of measurements. Raises
    InputError if the problem has no node features or wrong ones."""

    def __init__(self, problem: Problem, config: EgrlConfig, seed: int):
        self.problem = problem
        self.chip = Chip(problem, noise=config.noise, seed=seed)
        self.graph = graph_of(problem, config.features)
        self.best = Best()
        self.shown: list[Ints] = []
        """Maps to imitate."""
        self.movable = np.argwhere(np.stack([self.graph.has_weights, np.ones(len(problem.layers), np.bool_)], axis=1))
        """[M, 2] tensors to place: layer, and 0 for weights or 1 for the output."""

    def evaluate(self, maps: Ints) -> npt.NDArray[np.float64]:
        """Return the rewards [K] of maps [K, N, 2], and update the best map. Each map counts as an evaluation."""
        evaluations = self.chip.evaluate_many(maps)
        best = self.best
        for tiers, speedup, latency in zip(maps, evaluations.speedups.tolist(), evaluations.latency_ps.tolist(), strict=True):
            best.evaluations += 1
            if speedup > best.speedup:
                best.speedup, best.latency_ps, best.tiers = speedup, latency, tiers.copy()
                best.points.append((best.evaluations, speedup))
        return evaluations.rewards

    def plan(self) -> Plan | None:
        """Return the best map as a plan; None if there is none."""
        if self.best.tiers is None:
            return None
        # The chip is not used, because it would count an evaluation.
        memory_map = Rectifier(self.problem).rectify(self.best.tiers[:, 0].tolist(), self.best.tiers[:, 1].tolist()).map
        return self.chip.plan(memory_map)

    @property
    def speedup(self) -> float | None:
        """The speedup of the best map over the compiler's, without noise."""
        return None if self.best.latency_ps is None else self._speedup(self.best.latency_ps)

    def demonstration(self, map_or_plan: Plan | Ints) -> Ints:
        """Return the map ``[N, 2]`` of a demonstration, if the chip can execute it unchanged.

        Raises
        ------
        InputError
            If the plan belongs to another problem, or the chip cannot execute the map unchanged.
        """
        count, tiers = len(self.problem.layers), self.graph.tiers
        if isinstance(map_or_plan, Plan):
            if map_or_plan.problem != self.problem.digest:
                raise InputError(f"is a plan of another problem ({map_or_plan.name}), expected one of {self.problem.name}")
            if not len(map_or_plan.weight_tiers) == len(map_or_plan.output_tiers) == count:
                raise InputError(f"has not a tier for the weights and one for the output of each of the {count} layers")
            map_or_plan = np.array([map_or_plan.weight_tiers, map_or_plan.output_tiers], np.int64).T
        if map_or_plan.shape != (count, 2):
            raise InputError(f"found tiers of shape {map_or_plan.shape}, expected {(count, 2)}")
        if not (map_or_plan.min() >= 0 and map_or_plan.max() < tiers):
            raise InputError(f"found tiers {map_or_plan.min()} to {map_or_plan.max()}, expected 0 to {tiers - 1}")
        (compiled,), (epsilon,) = self.chip.compiled(map_or_plan[None])
        if epsilon > 0:
            raise InputError(f"cannot be executed as it is: {epsilon:.2%} of the bytes have no room where they are meant to go")
        return np.asarray(compiled)

    def reward(self, tiers: Ints) -> float:
        """Return the reward of a map ``[N, 2]`` without noise. The chip does not count an evaluation."""
        (compiled,), (epsilon,) = self.chip.compiled(tiers[None])
        latency = latency_ps(self.chip.problem, compiled[:, 0].tolist(), compiled[:, 1].tolist())
        return REWARD_SCALE * (-float(epsilon) if epsilon > 0 else self._speedup(latency))

    def _speedup(self, latency_ps: int) -> float:
        """The speedup of a latency over that of the compiler's map."""
        return self.chip.compiler_ps / latency_ps if latency_ps else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the best map and the counts as plain values."""
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
        """Continue from a state that :meth:`state_dict` returned; raise one of ``checkpoint.DAMAGE`` if it is not valid."""
        layers = len(self.problem.layers)
        speedup, latency, evaluations = state["best"]
        tiers = unpack_maps(state["best_tiers"], layers)
        points = [(int(count), float(value)) for count, value in state["points"]]
        self.best = Best(speedup, latency, tiers[0] if tiers else None, evaluations, points)
        self.shown = unpack_maps(state["shown"], layers)
        self.chip.evaluations, self.chip.inferences = state["chip"]
        self.chip.noise_generator.bit_generator.state = checkpoint.unpack_generator(state["noise"]).bit_generator.state


def check_tiers(networks: Sequence[Network]) -> None:
    """Raise InputError if the chips of the networks have different numbers of tiers."""
    first = networks[0]
    for network in networks:
        if network.graph.tiers != first.graph.tiers:
            raise InputError(
                f"found chips of unlike tiers: {first.graph.tiers} for {first.problem.name}, {network.graph.tiers} for "
                f"{network.problem.name}; expected as many for all networks"
            )


#: Largest number of nodes in one forward pass of the population, over all members. Such a pass takes about 1 s.
NODES_AT_ONCE = 20_000


@dataclass(frozen=True, eq=False)
class Proposer:
    """Makes proposals ``[N, 2]``, tiers of weights and outputs, for the network of layers with the index ``number``."""

    config: EgrlConfig
    learner: Learner
    network: Network
    number: int

    @property
    def _rows_at_once(self) -> int:
        """Largest number of graph networks in one forward pass."""
        return max(1, NODES_AT_ONCE // len(self.network.problem.layers))

    def propose(self, encodings: Sequence[Encoding], rng: np.random.Generator) -> list[Ints]:
        """Return proposals of as many encodings as fit one forward pass: draws of chromosomes, likeliest maps of networks."""
        rows: list[Floats] = []
        count = 0
        for encoding in encodings:
            if not isinstance(encoding, Chromosome):
                if len(rows) == self._rows_at_once:
                    break
                rows.append(encoding)
            count += 1
        likeliest = iter(self.likeliest(rows))
        return [
            self._clear_missing_weights(encoding.draw(rng) if isinstance(encoding, Chromosome) else next(likeliest))
            for encoding in encodings[:count]
        ]

    def likeliest(self, rows: Sequence[Floats]) -> Ints:
        """Return the likeliest maps [M, N, 2] of graph networks with these weights."""
        most = self._rows_at_once
        parts = (rows[at : at + most] for at in range(0, len(rows), most))
        return np.array([tiers for part in parts for tiers in self.learner.posteriors(self.number, part).argmax(-1)], np.int64)

    def explore(self, rng: np.random.Generator) -> Ints:
        """Return a proposal of the learner's policy, with some tensors in uniformly drawn tiers."""
        probabilities = self.learner.posterior(self.number)
        tiers = draw(probabilities, rng)
        is_random = rng.random(tiers.shape) < self.config.exploration
        return self._clear_missing_weights(np.where(is_random, rng.integers(probabilities.shape[-1], size=tiers.shape), tiers))

    def _clear_missing_weights(self, tiers: Ints) -> Ints:
        """Return tiers with 0 for layers without weights."""
        tiers[~self.network.graph.has_weights, 0] = 0
        return tiers

    def rectify_proposals(self, maps: Ints, members: Sequence[Member]) -> tuple[Ints, list[Member]]:
        """Rectify the draws of chromosomes, which adopt the result; with ``repair_networks`` rectify all proposals. Return the
        maps and the members after that.

        Parameters
        ----------
        maps
            [K, N, 2] proposals of these members, possibly followed by others.
        members
            The members that made the first of these proposals, in the same order.
        """
        repaired_members = list(members)
        encodings = {at: member.encoding for at, member in enumerate(members) if isinstance(member.encoding, Chromosome)}
        places = [*range(len(maps))] if self.config.repair_networks else [*encodings]
        if not places:
            return maps, repaired_members
        maps = maps.copy()
        maps[places] = self.network.chip.compiled(maps[places])[0]
        for at, encoding in encodings.items():
            repaired_members[at] = Member(encoding.with_likeliest(maps[at]))
        return maps, repaired_members
