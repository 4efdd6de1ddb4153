"""The baselines that the Streaming Engine paper names (section 4): random legal play, and evolutionary search over placements.

Random play takes instruction by instruction, in order of height, to any place that breaks no rule. In the evolution a genome is
a tile for each group of instructions that must share one. Whole generations are judged with NumPy: what breaks a rule of places
counts first, then the initiation interval (II) that the loads of the tiles need, then the clocks of an iteration, for which
times are found by list scheduling. Tournaments choose parents; a child takes connected parts of the graph from one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from stowplan.portfolio.modulo_scheduling.body import FAR, Ints
from stowplan.portfolio.modulo_scheduling.mapper import Mapper
from stowplan.portfolio.modulo_scheduling.search import PARAMS, Tally, end

#: Attempts that a random play gets at an II before it goes to the next.
_PLAYS = 50

#: Genomes of a generation, genomes of a tournament, and those that live on unchanged.
POPULATION, TOURNAMENT, ELITE = 64, 3, 4

#: IIs above what loads need that are tried before a placement counts as one without times.
_SLACK = 4

#: Weights of the cost: a broken rule, a clock of the II, and one unit of uneven load; a clock of the iteration counts 1.
_BROKEN, _II, _UNEVEN = 1e9, 1e5, 1e-3


class _StuckError(Exception):
    """An instruction has no free place."""


class _RandomMapper(Mapper):
    """Any free place, not the best; ends where there is none."""

    def run(self, order: Sequence[float], budget: int, stop: Callable[[], bool]) -> bool:
        """Place everything, highest ``order`` first; whether that worked."""
        try:
            return super().run(order, budget, stop)
        except _StuckError:
            return False

    def _cost(self, time: int, distance: float) -> float:
        return self._chance.random() * FAR / 2

    def _force(self, number: int) -> list[int]:
        raise _StuckError


def random_play(tally: Tally, seed: int, evaluations: int, stop: Callable[[], bool]) -> None:
    """Instruction by instruction, in order of height, each to any place that breaks no rule; what ends in none is given up.

    IIs from the least upwards until one works, then again and again at that and the one below.
    """
    body, chance = tally.body, random.Random(seed)
    every = list(body.iis)
    at = 0
    while tally.evaluations < evaluations and every and not stop():
        ii = every[at]
        order = [float(height) for height in body.heights(ii)]
        for _ in range(_PLAYS):
            mapper = _RandomMapper(body, ii, chance)
            done = mapper.run(order, body.count, stop)
            # A play that ends early has cost an evaluation all the same: as in the paper, it is one more that failed.
            tally.placements += body.count
            if done:
                tally.offer(ii, mapper.tiles, mapper.times)
            if stop() or tally.evaluations >= evaluations:
                return
        if tally.best is None:
            at = min(at + 1, len(every) - 1)
        else:
            # Not every II between two may be left: limits on delays refute some.
            best = every.index(tally.best.ii)
            at = max(0, best - (at == best))


class Evolution:
    """A population; :meth:`generation` replaces it by the next one."""

    def __init__(self, tally: Tally, seed: int):
        self.tally = tally
        self.body = body = tally.body
        self._chance = np.random.default_rng(seed)
        self._draw = random.Random(seed)
        self._pairs = np.array(
            [(one, two) for one, others in enumerate(body.apart) for two in others if one < two], np.int64
        ).reshape(-1, 2)
        edges = {(body.group[each.source], body.group[each.target]) for each in body.structure.between}
        self._edges = np.array(sorted(edge for edge in edges if edge[0] != edge[1]), np.int64).reshape(-1, 2)
        self._hops = np.array(body.hops)
        self._sizes = np.array([len(members) for members in body.members])
        self._words = np.array(body.words)
        self._near = body.neighbours()
        self._slots = min(body.problem.machine.spoke_depth, body.problem.machine.instruction_depth)
        self.genomes = np.stack([self._walked() for _ in range(POPULATION)])
        self.costs = self._judge(self.genomes)

    def _walked(self) -> Ints:
        """A genome in which neighbours stand near each other: a walk through the graph, each step to a tile within reach."""
        body = self.body
        genome = np.full(len(body.members), -1, np.int64)
        for first in self._draw.sample(range(len(genome)), len(genome)):
            frontier = [first] if genome[first] < 0 else []
            while frontier:
                group = frontier.pop(self._draw.randrange(len(frontier)))
                if genome[group] < 0:
                    genome[group] = self._tile_near(genome, group)
                    frontier += [other for other in self._near[group] if genome[other] < 0]
        return genome

    def _tile_near(self, genome: Ints, group: int) -> int:
        placed = [int(genome[other]) for other in self._near[group] if genome[other] >= 0]
        allowed = self.body.allowed[group]
        if placed:
            at = self._draw.choice(placed)
            near = [tile for tile in allowed if self._hops[at][tile] < FAR or self._hops[tile][at] < FAR]
            allowed = near or allowed
        return self._draw.choice(allowed)

    def generation(self, stop: Callable[[], bool]) -> None:
        """Children of tournament winners in place of all but the best."""
        order = np.argsort(self.costs, kind="stable")
        children = [self._child() for _ in range(POPULATION - ELITE)]
        if stop():
            return
        fresh = np.stack(children)
        costs = self._judge(fresh, stop)
        self.genomes = np.concatenate((self.genomes[order[:ELITE]], fresh))
        self.costs = np.concatenate((self.costs[order[:ELITE]], costs))

    def _winner(self) -> Ints:
        entrants = self._draw.sample(range(POPULATION), TOURNAMENT)
        winner: Ints = self.genomes[min(entrants, key=lambda each: self.costs[each])]
        return winner

    def _child(self) -> Ints:
        one, two = self._winner().copy(), self._winner()
        groups = len(one)
        if self._draw.random() < 0.6:
            # A connected part from the other parent.
            size = self._draw.randint(1, max(1, groups // 2))
            part, frontier = {self._draw.randrange(groups)}, []
            frontier = list(part)
            while frontier and len(part) < size:
                for other in self._near[frontier.pop(0)]:
                    if other not in part:
                        part.add(other)
                        frontier.append(other)
            chosen = sorted(part)
            one[chosen] = two[chosen]
        for _ in range(1 + int(self._chance.poisson(1.0))):
            group = self._draw.randrange(groups)
            one[group] = self._tile_near(one, group)
        return one

    def _judge(self, genomes: Ints, stop: Callable[[], bool] = lambda: False) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """[genomes] Costs. Placements that break no rule are given times, and offered as plans."""
        body, count = self.body, len(genomes)
        self.tally.placements += count * body.count
        broken = np.zeros(count)
        if len(self._edges):
            broken += (self._hops[genomes[:, self._edges[:, 0]], genomes[:, self._edges[:, 1]]] >= FAR).sum(axis=1)
        if len(self._pairs):
            broken += (genomes[:, self._pairs[:, 0]] == genomes[:, self._pairs[:, 1]]).sum(axis=1)
        load, words = np.zeros((count, body.tiles)), np.zeros((count, body.tiles))
        rows = np.arange(count)[:, None]
        np.add.at(load, (rows, genomes), self._sizes)
        np.add.at(words, (rows, genomes), self._words)
        broken += (words > body.room).sum(axis=1) + np.maximum(0, load - self._slots).sum(axis=1)
        ii = np.maximum(load.max(axis=1), body.least_ii)
        costs = _BROKEN * broken + _II * ii + _UNEVEN * (load**2).sum(axis=1)
        for each in np.flatnonzero(broken == 0):
            if stop():
                break
            costs[each] = self._timed(genomes[each], int(ii[each])) + _UNEVEN * float((load[each] ** 2).sum())
        result: np.ndarray[tuple[int], np.dtype[np.float64]] = costs
        return result

    def _timed(self, genome: Ints, least: int) -> float:
        """Cost of a placement with times: II and clocks of an iteration; that of a broken rule where there are none."""
        body = self.body
        for ii in range(least, min(least + _SLACK, body.problem.machine.spoke_depth + 1)):
            mapper = Mapper(body, ii, self._draw, genome.tolist())
            if mapper.run([float(each) for each in body.heights(ii)], PARAMS.first_ratio * body.count, lambda: False):
                times = mapper.times
                self.tally.offer(ii, mapper.tiles, times)
                return _II * ii + end(body, times)
        return _BROKEN + _II * least
