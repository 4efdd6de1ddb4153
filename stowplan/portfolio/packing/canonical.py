"""Exact search over canonical plans with restarts: raises the bound from below and lowers the height from above.

Parts may be searched in other ways too, which find plans and prove nothing. Where nothing fits, :func:`find_conflict` says why:
an irreducible span of time and set of buffers that cannot be packed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from stowplan.models.packing.bounds import find_overload, peak_load
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import arrays, depth_first, orders, search
from stowplan.portfolio.packing.arrays import Data, Ints


class TreeSearchParameters(Parameters, frozen=True):
    """Parameters of the tree search."""

    shortest_run: int = 3000
    """Nodes of the shortest run; restarts follow Luby's sequence."""
    aims: tuple[float, ...] = (1.0, 0.7, 0.85)
    """Parts of the way from bound to height to aim at, run by run of those that do not aim at the bound: what is out of reach a
    little lower may be found at once.
    """
    bound_runs: int = 64
    """Runs at the bound, which is often the optimum, every second one; after them one in four."""


PARAMS = parameters(TreeSearchParameters, __name__)


def luby(number: int) -> int:
    """Term ``number`` (from 1) of 1, 1, 2, 1, 1, 2, 4, ... (Luby, Sinclair and Zuckerman 1993)."""
    power = number.bit_length()
    return 1 << (power - 1) if number == (1 << power) - 1 else luby(number - (1 << (power - 1)) + 1)


@dataclass
class Part:
    """Search for one independent part; heights in units."""

    data: Data
    offsets: Ints
    """Best plan so far; empty where there is none."""
    bound: int
    """Proven: no plan is lower."""
    seed: int
    simple_orders: bool = True
    best: int | None = None
    runs: int = 0
    _bound_runs: int = 0
    _keys: Iterator[orders.Floats] = field(init=False)

    def __post_init__(self) -> None:
        self._keys = orders.random_keys(self.data, self.seed, self.simple_orders)
        self._shape = depth_first.Shape(self.data)

    def aim(self, capacity: int | None, floor: int) -> tuple[int, int]:
        """Height to try next, and length of the run in terms of the shortest.

        The height is the capacity where there is one. Without, bound and height are closed in on in turn, each with lengths
        of its own: the few long runs must not all fall to one of them.
        """
        if capacity is not None:
            return capacity, luby(self.runs + 1)
        low = max(self.bound, floor)
        if self.best is None or self.runs % (2 if self._bound_runs < PARAMS.bound_runs else 4) == 0:
            self._bound_runs += 1
            return low, luby(self._bound_runs)
        turn = self.runs - self._bound_runs
        return low + int(PARAMS.aims[turn % len(PARAMS.aims)] * (self.best - 1 - low)), luby(turn // len(PARAMS.aims) + 1)

    def run(self, height: int, length: int) -> int:
        """One run for a plan within ``height``; returns its nodes. Improves ``best`` or ``bound`` where it ends in time."""
        self.runs += 1
        order = orders.by_key(self.data, next(self._keys))
        outcome, nodes, offsets = self._shape.search(height, order, PARAMS.shortest_run * length)
        if outcome == depth_first.FOUND:
            self.adopt(offsets)
        elif outcome == depth_first.EXHAUSTED:
            self.bound = max(self.bound, height + 1)
        return nodes

    def adopt(self, offsets: Ints) -> None:
        """Keep a plan where it is better than the one at hand."""
        top = int((offsets + self.data.size).max())
        if self.best is None or top < self.best:
            self.best, self.offsets = top, offsets


@dataclass
class CanonicalSearch:
    """All parts of a problem."""

    parts: list[Part]
    capacity: int | None
    """Units; None asks for the least height."""
    floor: int = 0
    """A bound of the whole that others have proven, in units."""

    @property
    def bound(self) -> int:
        """Proven least height, in units."""
        return max([self.floor, *(part.bound for part in self.parts)])

    @property
    def height(self) -> int | None:
        """Height of the plan, None while a part has none."""
        heights = [part.best for part in self.parts]
        return None if None in heights else max((height for height in heights if height is not None), default=0)

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that nothing fits."""
        return self.capacity is not None and self.bound > self.capacity

    @property
    def finished(self) -> bool:
        """Whether nothing is left to find or to prove."""
        enough = self.bound if self.capacity is None else self.capacity
        return self.infeasible or (self.height is not None and self.height <= enough)

    def step(self) -> int:
        """One run for the part that stands out most; returns its nodes."""
        enough = self.bound if self.capacity is None else self.capacity
        waiting = [part for part in self.parts if part.best is None or part.best > enough]
        part = min(waiting, key=lambda run: (run.best is not None, run.runs if run.best is None else -run.best))
        return part.run(*part.aim(self.capacity, self.bound))

    def adopt(self, data: Data, offsets: Ints) -> None:
        """Keep what is better in a plan ``offsets`` [n] of all parts, which are those of ``data``."""
        index = {int(number): at for at, number in enumerate(data.numbers)}
        for part in self.parts:
            part.adopt(offsets[[index[int(number)] for number in part.data.numbers]])

    def run(self, improved: Callable[[], None], should_stop: Callable[[], bool], node_limit: int | None = None) -> int:
        """Steps until finished, stopped or out of nodes, which it returns; calls ``improved`` on a better plan or bound."""
        nodes = 0
        # Whoever says whether to stop may also bring a plan or a bound.
        while not should_stop() and not self.finished and (node_limit is None or nodes < node_limit):
            before = self.height, self.bound
            nodes += self.step()
            if before != (self.height, self.bound):
                improved()
        return nodes


def start(
    data: Data,
    capacity: int | None,
    seed: int,
    offsets: Ints | None = None,
    *,
    simple_orders: bool = True,
    part_type: Callable[..., Part] = Part,
) -> CanonicalSearch:
    """A search that knows the load bound, and the plan ``offsets`` [n] where one is given.

    It begins with orders by single features of the buffers, unless ``simple_orders`` are left out. ``part_type`` says how parts
    are searched.
    """
    parts = []
    for component in arrays.parts(data):
        taken = component.fixed + component.size
        bound = max(int(component.load().max()), int(taken[component.fixed >= 0].max(initial=0)))
        parts.append(part_type(component, np.empty(0, np.int64), bound, seed, simple_orders))
    every = CanonicalSearch(parts, capacity)
    if offsets is not None:
        every.adopt(data, offsets)
    elif capacity is None:
        # Without any height there is nothing to aim at but the bound.
        for part in parts:
            placed = search.Placements(part.data, lambda: False).first_fit(part.data.size.astype(float))
            if placed is not None:
                part.adopt(placed[1])
    return every


#: Buffers that a sentence names.
_NAMED = 6


@dataclass(frozen=True)
class Conflict:
    """Buffers that do not fit into the capacity in a span of time, whatever is done with all others."""

    start: int
    end: int
    """Half-open span; of their lives only what lies in it counts."""
    buffers: tuple[int, ...]
    """Numbers of the buffers, ascending."""
    irreducible: bool
    """Proven: without any one of the buffers, or in a shorter part of the span, the rest fits."""

    def details(self, problem: Problem) -> dict[str, Any]:
        """For the result: a sentence for people, and the same as data."""
        names = [problem.buffers[number].id for number in self.buffers]
        load = peak_load(clip(problem, self.buffers, self.start, self.end))
        listed = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
        least = "without any one of them the others fit" if self.irreducible else "fewer might do"
        sentence = (
            f"{len(names)} buffers ({listed}) cannot be placed in [{self.start}, {self.end}) within {problem.capacity} bytes, "
            f"though they need at most {load} bytes at a moment; {least}"
        )
        span = [self.start, self.end]
        conflict = {"proof": "search", "span": span, "load": load, "buffers": names, "irreducible": self.irreducible}
        return {"explanation": sentence, "conflict": conflict}


def clip(problem: Problem, numbers: Sequence[int], start: int, end: int) -> Problem:
    """Only these buffers, and of their lives only what lies in ``[start, end)``."""
    kept: list[Buffer] = []
    for number in numbers:
        buffer = problem.buffers[number]
        pieces = [(max(start, low), min(end, high)) for low, high in buffer.pieces if low < end and start < high]
        if pieces:
            gaps = tuple((low, high) for (_, low), (high, _) in pairwise(pieces))
            kept.append(msgspec.structs.replace(buffer, lower=pieces[0][0], upper=pieces[-1][1], gaps=gaps))
    return msgspec.structs.replace(problem, buffers=tuple(kept), parts=(), results=())


def find_conflict(problem: Problem, seed: int, node_limit: int, should_stop: Callable[[], bool]) -> Conflict:
    """Shorten the time, then leave out buffers, as long as it is proven that the rest still does not fit.

    ``problem`` must be known not to fit. The proofs may take ``node_limit`` nodes of the search together; where that is not
    enough, or ``should_stop`` says so, the conflict is valid but perhaps not irreducible.
    """
    return _Filter(problem, seed, node_limit, should_stop).run()


class _Filter:
    """A deletion filter (Chinneck and Dravnieks 1991) over moments and buffers."""

    def __init__(self, problem: Problem, seed: int, node_limit: int, should_stop: Callable[[], bool]):
        self._problem = problem
        self._seed, self._node_limit, self._should_stop = seed, node_limit, should_stop
        self._unsure = False

    def run(self) -> Conflict:
        moments = sorted({moment for buffer in self._problem.buffers for piece in buffer.pieces for moment in piece})
        everyone = [number for number, buffer in enumerate(self._problem.buffers) if buffer.size > 0]
        # What does not fit in a span does not fit in a longer one: the ends can be found by halving.
        ends = moments[1:-1]
        last = 1 + bisect_left(ends, True, key=lambda moment: self._refuted(everyone, moments[0], moment))
        end = moments[last]
        starts = moments[last - 1 : 0 : -1]
        start = [*starts, moments[0]][bisect_left(starts, True, key=lambda moment: self._refuted(everyone, moment, end))]
        buffers = self._problem.buffers
        kept = [number for number in everyone if clip(self._problem, [number], start, end).buffers]
        # Small ones are needed least often. Many at a time at first.
        kept.sort(key=lambda number: (buffers[number].size, number))
        count = len(kept) // 2
        while count:
            at = 0
            while at < len(kept):
                rest = kept[:at] + kept[at + count :]
                if self._refuted(rest, start, end):
                    kept = rest
                else:
                    at += count
            count //= 2
        return Conflict(start, end, tuple(sorted(kept)), not self._unsure)

    def _refuted(self, numbers: Sequence[int], since: int, until: int) -> bool:
        """Whether it is proven that these buffers do not fit."""
        if self._should_stop():
            self._unsure = True
            return False
        problem = clip(self._problem, numbers, since, until)
        if find_overload(problem) is not None:
            return True
        data = arrays.build(problem)
        if problem.capacity is None or len(data.size) == 0:
            return False
        search = start(data, problem.capacity // data.unit, self._seed)
        # One proof that is out of reach must not use up all.
        self._node_limit -= search.run(lambda: None, self._should_stop, max(1, self._node_limit // 10))
        self._unsure |= not search.finished
        return search.infeasible
