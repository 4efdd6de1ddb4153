"""Exact search over canonical plans with restarts: it raises the bound from below and lowers the height from above.

A plan is *canonical* if no buffer can be moved lower by itself (:mod:`stowplan.portfolio.packing.depth_first`). Each *run* of
the depth-first search looks for a plan within some height between the bound and the best height, and ends at a limit of *nodes*
(partial plans). The same scheme drives beam search (:mod:`.beam`), which finds plans and proves nothing. If no plan fits into
the capacity, :func:`find_conflict` explains why: it returns a span of time and a set of buffers that cannot be packed in it,
both as small as possible.

:class:`stowplan.portfolio.packing.arrays.Data` has the buffers: time is divided into *sections*, sizes and offsets are counted
in *units* of ``Data.unit`` bytes, and n is the number of buffers. A *part* is a set of buffers whose lives do not meet those of
any other buffer, so that it can be packed independently. *Overlaps*, pairs of buffers that may share bytes although both are
live, are not supported. Nothing in this module raises an error, except as stated.
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
    """Largest number of nodes of the shortest run; the lengths of restarts follow Luby's sequence (:func:`luby`)."""
    aims: tuple[float, ...] = (1.0, 0.7, 0.85)
    """The heights that runs try, one after the other, if they do not look for a plan at the bound. Each is a fraction of the
    distance from the bound (0) to one unit below the best height (1). There are several, because a plan may be found quickly at
    one height although no run is long enough to find a slightly lower plan."""
    bound_runs: int = 64
    """Number of runs at the bound after which only every fourth run looks for a plan there. Before, every second run does,
    because the bound is often the optimum."""


PARAMS = parameters(TreeSearchParameters, __name__)


def luby(number: int) -> int:
    """Term ``number`` (from 1) of Luby's sequence 1, 1, 2, 1, 1, 2, 4, ... (Luby, Sinclair and Zuckerman 1993).

    It is a good sequence of lengths for a search that is restarted. ``number`` must be at least 1.
    """
    power = number.bit_length()
    return 1 << (power - 1) if number == (1 << power) - 1 else luby(number - (1 << (power - 1)) + 1)


@dataclass
class Part:
    """The search state of one independent part of a problem; all heights are in units."""

    data: Data
    """The buffers of the part."""
    offsets: Ints
    """[n] offsets of the best plan so far in units; empty if there is none."""
    bound: int
    """Proven lower bound of the height."""
    seed: int
    """Seed of the random orders."""
    simple_orders: bool = True
    """Whether the first runs sort buffers by a single feature, such as the length of the life, alone or after the pressure
    (:func:`.orders.random_keys`). This order decides which of two buffers at the same offset is placed first."""
    best: int | None = None
    """Height of the best plan so far; None if there is none."""
    runs: int = 0
    """Number of runs so far."""
    _bound_runs: int = 0
    """Number of runs so far that looked for a plan at the bound."""
    _keys: Iterator[orders.Floats] = field(init=False)
    """The keys [n] by which the next runs order buffers of equal offset."""

    def __post_init__(self) -> None:
        self._keys = orders.random_keys(self.data, self.seed, self.simple_orders)
        self._prepared = depth_first.PreparedBuffers(self.data)

    def next_target(self, capacity: int | None, floor: int) -> tuple[int, int]:
        """The height to try next, and the length of the run as a multiple of the shortest.

        The height is the capacity, if there is one. Otherwise runs alternate between the bound and heights above it. Each of
        the two follows a Luby sequence of its own, because otherwise the few long runs might all go to one of them.

        Parameters
        ----------
        capacity
            Capacity in units; None if the problem asks for the least height.
        floor
            Lower bound of the height of the whole problem, in units.
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
        """Search for a plan within ``height`` units; returns the number of nodes.

        ``length`` limits the nodes, as a multiple of :attr:`TreeSearchParameters.shortest_run`. If a plan is found, it is
        adopted. If it is proven that there is none, the bound is raised. If the limit comes first, neither happens.
        """
        self.runs += 1
        order = orders.by_key(self.data, next(self._keys))
        outcome, nodes, offsets = self._prepared.search(height, order, PARAMS.shortest_run * length)
        if outcome == depth_first.FOUND:
            self.adopt(offsets)
        elif outcome == depth_first.EXHAUSTED:
            self.bound = max(self.bound, height + 1)
        return nodes

    def adopt(self, offsets: Ints) -> None:
        """Keep a plan, given by its offsets [n] in units, if it is lower than the best so far."""
        top = int((offsets + self.data.size).max())
        if self.best is None or top < self.best:
            self.best, self.offsets = top, offsets


@dataclass
class CanonicalSearch:
    """The search over all parts of a problem."""

    parts: list[Part]
    """The independent parts."""
    capacity: int | None
    """Capacity in units; None if the problem asks for the least height."""
    floor: int = 0
    """A lower bound of the height of the whole problem, in units, that other candidates have proven."""

    @property
    def bound(self) -> int:
        """Proven lower bound of the height, in units."""
        return max([self.floor, *(part.bound for part in self.parts)])

    @property
    def height(self) -> int | None:
        """Height of the plan in units; None while some part has no plan."""
        heights = [part.best for part in self.parts]
        return None if None in heights else max((height for height in heights if height is not None), default=0)

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that no plan fits into the capacity."""
        return self.capacity is not None and self.bound > self.capacity

    @property
    def finished(self) -> bool:
        """Whether the plan is proven optimal or fits into the capacity, or it is proven that no plan fits."""
        good_enough = self.bound if self.capacity is None else self.capacity
        return self.infeasible or (self.height is not None and self.height <= good_enough)

    def step(self) -> int:
        """Make one run on a part without a plan or, if all parts have one, on the highest; returns the number of nodes.

        Raises ValueError if every part has a plan that is good enough.
        """
        good_enough = self.bound if self.capacity is None else self.capacity
        waiting = [part for part in self.parts if part.best is None or part.best > good_enough]
        part = min(waiting, key=lambda run: (run.best is not None, run.runs if run.best is None else -run.best))
        return part.run(*part.next_target(self.capacity, self.bound))

    def offsets(self, data: Data) -> Ints:
        """[n] offsets of the plan in units; every part must have one. ``data`` has all buffers of the problem."""
        offsets = np.zeros(len(data.size), np.int64)
        index = {int(number): at for at, number in enumerate(data.numbers)}
        for part in self.parts:
            offsets[[index[int(number)] for number in part.data.numbers]] = part.offsets
        return offsets

    def adopt(self, data: Data, offsets: Ints) -> None:
        """Adopt a plan of the whole problem in those parts in which it is lower than the best plan so far.

        ``data`` has all buffers of the problem, and ``offsets`` [n] are their offsets in units.
        """
        index = {int(number): at for at, number in enumerate(data.numbers)}
        for part in self.parts:
            part.adopt(offsets[[index[int(number)] for number in part.data.numbers]])

    def run(self, improved: Callable[[], None], should_stop: Callable[[], bool], node_limit: int | None = None) -> int:
        """Search until the search is finished or stopped, or has used ``node_limit`` nodes; returns the number of nodes.

        ``improved`` is called after each better plan or bound. ``should_stop`` is called before each run. With a
        ``node_limit`` of None, only these two end the search.
        """
        nodes = 0
        # ``should_stop`` comes first, because it may also pass on a plan or a bound of another candidate.
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
    """Set up a search. The first bound of each part is its load or, if that is higher, the top of its highest fixed buffer.

    Parameters
    ----------
    data
        The buffers of the whole problem.
    capacity
        Capacity in units; None asks for the least height.
    seed
        Seed of the random orders.
    offsets
        Offsets [n] in units of a plan to start from. By default, a search without a capacity starts from first fit by size, and
        one with a capacity from no plan.
    simple_orders
        Whether to begin with orders by single features of the buffers.
    part_type
        The class that searches a part.
    """
    parts = []
    for component in arrays.parts(data):
        tops = component.fixed + component.size
        bound = max(int(component.load().max()), int(tops[component.fixed >= 0].max(initial=0)))
        parts.append(part_type(component, np.empty(0, np.int64), bound, seed, simple_orders))
    whole_search = CanonicalSearch(parts, capacity)
    if offsets is not None:
        whole_search.adopt(data, offsets)
    elif capacity is None:
        # Without a plan, all runs would look for one at the bound.
        for part in parts:
            placed = search.Placements(part.data, lambda: False).first_fit(part.data.size.astype(float))
            if placed is not None:
                part.adopt(placed[1])
    return whole_search


#: Largest number of buffers that an explanation names.
_NAMED = 6


@dataclass(frozen=True)
class Conflict:
    """Buffers that do not fit into the capacity during a span of time, wherever the remaining buffers are placed."""

    start: int
    """First moment of the span, which is half-open: ``[start, end)``."""
    end: int
    """First moment after the span. Only the part of each life that lies in the span counts."""
    buffers: tuple[int, ...]
    """Numbers of the buffers, ascending."""
    irreducible: bool
    """Whether it is proven that the buffers fit if any one of them is left out, or if the span is made shorter."""

    def details(self, problem: Problem) -> dict[str, Any]:
        """Details for the result: an explanation in one sentence, and the same facts as data."""
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
    """The problem with only the buffers ``numbers``, and with only the part of their lives that lies in ``[start, end)``.

    Buffers that are not live in this span are left out.
    """
    clipped: list[Buffer] = []
    for number in numbers:
        buffer = problem.buffers[number]
        pieces = [(max(start, low), min(end, high)) for low, high in buffer.pieces if low < end and start < high]
        if pieces:
            gaps = tuple((low, high) for (_, low), (high, _) in pairwise(pieces))
            clipped.append(msgspec.structs.replace(buffer, lower=pieces[0][0], upper=pieces[-1][1], gaps=gaps))
    return msgspec.structs.replace(problem, buffers=tuple(clipped), parts=(), results=())


def find_conflict(problem: Problem, seed: int, node_limit: int, should_stop: Callable[[], bool]) -> Conflict:
    """Find a small conflict: shorten the span of time, then leave out buffers, as long as the rest provably does not fit.

    The result means nothing for a problem that has a plan.

    Parameters
    ----------
    problem
        A problem with a capacity that is proven to be infeasible.
    seed
        Seed of the searches that prove subproblems infeasible.
    node_limit
        Nodes that all these searches may use together. Once they are used up, each further search ends after one run. The
        conflict is then valid, but it may not be irreducible.
    should_stop
        Function that returns whether to end the search for a smaller conflict. If it does, the conflict is valid as well, but
        it may not be irreducible.
    """
    return _DeletionFilter(problem, seed, node_limit, should_stop).run()


class _DeletionFilter:
    """A deletion filter (Chinneck and Dravnieks 1991): it drops moments and buffers without which the rest still does not
    fit."""

    def __init__(self, problem: Problem, seed: int, node_limit: int, should_stop: Callable[[], bool]):
        self._problem = problem
        self._seed, self._node_limit, self._should_stop = seed, node_limit, should_stop
        self._is_incomplete = False

    def run(self) -> Conflict:
        """Find the conflict."""
        moments = sorted({moment for buffer in self._problem.buffers for piece in buffer.pieces for moment in piece})
        numbers = [number for number, buffer in enumerate(self._problem.buffers) if buffer.size > 0]
        # Buffers that do not fit in a span do not fit in a longer one either, so bisection finds both ends of the shortest
        # span.
        ends = moments[1:-1]
        last = 1 + bisect_left(ends, True, key=lambda moment: self._refuted(numbers, moments[0], moment))
        end = moments[last]
        starts = moments[last - 1 : 0 : -1]
        start = [*starts, moments[0]][bisect_left(starts, True, key=lambda moment: self._refuted(numbers, moment, end))]
        buffers = self._problem.buffers
        remaining = [number for number in numbers if clip(self._problem, [number], start, end).buffers]
        # Small buffers are rarely part of a conflict, so they are dropped first: half of all at once, then ever fewer.
        remaining.sort(key=lambda number: (buffers[number].size, number))
        count = len(remaining) // 2
        while count:
            at = 0
            while at < len(remaining):
                rest = remaining[:at] + remaining[at + count :]
                if self._refuted(rest, start, end):
                    remaining = rest
                else:
                    at += count
            count //= 2
        return Conflict(start, end, tuple(sorted(remaining)), not self._is_incomplete)

    def _refuted(self, numbers: Sequence[int], begin: int, end: int) -> bool:
        """Whether counting bytes or a search proves that the buffers ``numbers`` do not fit between two moments.

        It is False as well if a limit ends the search; the conflict is then marked as not irreducible.
        """
        if self._should_stop():
            self._is_incomplete = True
            return False
        problem = clip(self._problem, numbers, begin, end)
        if find_overload(problem) is not None:
            return True
        data = arrays.build(problem)
        if problem.capacity is None or len(data.size) == 0:
            return False
        search = start(data, problem.capacity // data.unit, self._seed)
        # A single proof that is out of reach must not use up all nodes.
        self._node_limit -= search.run(lambda: None, self._should_stop, max(1, self._node_limit // 10))
        self._is_incomplete |= not search.finished
        return search.infeasible
