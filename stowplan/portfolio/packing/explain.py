"""Why nothing fits, where only a search shows it: an irreducible span of time and set of buffers that cannot be packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from stowplan.models.packing.bounds import find_overload, peak_load
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.portfolio.packing import arrays, canonical

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
    return msgspec.structs.replace(problem, buffers=tuple(kept))


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
        low, high = 1, len(moments) - 1
        while low < high:
            middle = (low + high) // 2
            if self._refuted(everyone, moments[0], moments[middle]):
                high = middle
            else:
                low = middle + 1
        end = moments[high]
        low, last = 0, high - 1
        while low < last:
            middle = (low + last + 1) // 2
            if self._refuted(everyone, moments[middle], end):
                low = middle
            else:
                last = middle - 1
        start = moments[low]
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

    def _refuted(self, numbers: Sequence[int], start: int, end: int) -> bool:
        """Whether it is proven that these buffers do not fit."""
        if self._should_stop():
            self._unsure = True
            return False
        problem = clip(self._problem, numbers, start, end)
        if find_overload(problem) is not None:
            return True
        data = arrays.build(problem)
        if problem.capacity is None or len(data.size) == 0:
            return False
        search = canonical.start(data, problem.capacity // data.unit, self._seed)
        # One proof that is out of reach must not use up all.
        self._node_limit -= search.run(lambda: None, self._should_stop, max(1, self._node_limit // 10))
        self._unsure |= not search.finished
        return search.infeasible
