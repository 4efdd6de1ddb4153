"""Enumeration of LLM placements: every sequence of devices, the numbers of layers on each by descent, spills by their price.

For a sequence of devices and a micro-batch, a placement is the number of layers on the host and on each device. Where the
layers of a device do not fit, parts of them are spilled to the host: those that cost the least for each byte that they free (a
greedy solution of the knapsack). Numbers of layers are changed by moving some from one memory to another while that improves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import permutations
from typing import NamedTuple

from stowplan.models.llm_placement.plan import Plan, plan_of
from stowplan.models.llm_placement.problem import HOST, Problem, layer_bytes
from stowplan.parameters import Parameters, parameters


class EnumerationParameters(Parameters, frozen=True):
    """Parameters of the enumeration."""

    promising: int = 12
    """Sequences of devices that are tried with every micro-batch: the best ones of a first look at all with one."""
    most_devices: int = 5
    """Devices up to which all sequences are looked at; of more, the fastest ones."""


PARAMS = parameters(EnumerationParameters, __name__)


class Spill(NamedTuple):
    """A way to spill parts of one layer of a class."""

    price: float
    """Picoseconds for each byte that is freed."""
    kind: int
    spilled: int
    freed: int
    more: int
    """Picoseconds."""


class Score(NamedTuple):
    """How good a placement is: first what does not fit, then the time."""

    excess: int
    """Bytes that are beyond the capacities."""
    time: int
    """Picoseconds of the request."""


class Chain:
    """The placements for one sequence of devices and one micro-batch."""

    def __init__(self, problem: Problem, order: Sequence[int], batch: int):
        self.problem, self.order, self.batch = problem, (HOST, *order), batch
        copier = problem.copier(order)
        self.classes = [(problem.layers[same[0]], same[0]) for same in problem.classes]
        kinds = range(len(self.classes))
        self.costs = {
            (kind, memory): [
                problem.cost(self.classes[kind][1], memory, batch, copier, spilled)
                for spilled in range(1 + (len(self.classes[kind][0].spillable) if memory != HOST else 0))
            ]
            for kind in kinds
            for memory in self.order
        }
        self.sizes = [[layer_bytes(layer, spilled) for spilled in range(1 + len(layer.spillable))] for layer, _ in self.classes]
        self.rooms = {memory: problem.room(memory, batch) for memory in self.order}
        self.transfers = sum(2 * problem.transfer(memory, batch) for memory in order)
        if order:
            self.transfers -= problem.transfer(order[-1], batch)
        self.before = _prefix_counts(problem)
        self.spills = {memory: self._spills(memory) for memory in order}

    def _spills(self, memory: int) -> list[Spill]:
        found = []
        for kind, sizes in enumerate(self.sizes):
            costs = self.costs[kind, memory]
            for spilled in range(1, len(sizes)):
                freed, more = sizes[0] - sizes[spilled], costs[spilled] - costs[0]
                if freed:
                    found.append(Spill(more / freed, kind, spilled, freed, more))
        return sorted(found)

    def start(self, kind: str) -> list[int]:
        """Numbers of layers, the host first: ``filled`` fills the fastest devices, ``shared`` gives all layers out by room."""
        count = len(self.problem.layers)
        mean = max(1, sum(map(layer_bytes, self.problem.layers)) // count)
        devices = self.order[1:]
        if not devices:
            return [count]
        if kind == "shared":
            total = sum(max(1, self.rooms[memory]) for memory in devices)
            sizes = [max(1, count * max(1, self.rooms[memory]) // total) for memory in devices]
        else:
            left, sizes = count - len(devices), [1] * len(devices)
            for place in sorted(range(len(devices)), key=lambda at: -self.problem.memories[devices[at]].weight_rate):
                taken = max(0, min(left, self.rooms[devices[place]] // mean - 1))
                sizes[place], left = sizes[place] + taken, left - taken
        if kind == "shared":
            sizes[-1] += count - sum(sizes)
        return [count - sum(sizes), *sizes]

    def score(self, sizes: Sequence[int]) -> Score:
        """Of numbers of layers."""
        return self._evaluate(sizes, None)

    def plan(self, sizes: Sequence[int]) -> Plan:
        """The plan of numbers of layers that fit."""
        chosen: list[tuple[int, int, int, int]] = []
        self._evaluate(sizes, chosen)
        memories = [memory for memory, size in zip(self.order, sizes, strict=True) for _ in range(size)]
        spilled = [0] * len(memories)
        for memory, kind, count, parts in chosen:
            same = [number for number in self.problem.classes[kind] if memories[number] == memory and not spilled[number]]
            for number in same[:count]:
                spilled[number] = parts
        return plan_of(self.problem, memories, spilled, self.batch)

    def _evaluate(self, sizes: Sequence[int], chosen: list[tuple[int, int, int, int]] | None) -> Score:
        time, excess, at, on_host = self.transfers, 0, 0, 0
        for memory, size in zip(self.order, sizes, strict=True):
            if not size:
                continue
            first, last = self.before[at], self.before[at + size]
            at += size
            counts = [after - before for before, after in zip(first, last, strict=True)]
            used = 0
            for kind, count in enumerate(counts):
                if count:
                    time += count * self.costs[kind, memory][0]
                    used += count * self.sizes[kind][0]
            if memory == HOST:
                on_host += used
                continue
            over = used - self.rooms[memory]
            for spill in self.spills[memory]:
                if over <= 0 and spill.more >= 0:
                    break
                count = counts[spill.kind] if spill.more < 0 else min(counts[spill.kind], -(-over // spill.freed))
                if count:
                    counts[spill.kind] -= count
                    time += count * spill.more
                    over -= count * spill.freed
                    on_host += count * spill.freed
                    if chosen is not None:
                        chosen.append((memory, spill.kind, count, spill.spilled))
            excess += max(0, over)
        return Score(excess + max(0, on_host - self.rooms[HOST]), time)

    def descend(self, sizes: list[int], closed: Callable[[], bool]) -> tuple[Score, list[int]]:
        """Move layers between memories while that improves; each device of the sequence keeps one."""
        best, steps = self.score(sizes), [1, 2, 4, 8, 16, 32, 64]
        is_improved = True
        while is_improved and not closed():
            is_improved = False
            for source, target in permutations(range(len(sizes)), 2):
                for step in steps:
                    if sizes[source] - step < (source > 0):
                        break
                    moved = [*sizes]
                    moved[source] -= step
                    moved[target] += step
                    score = self.score(moved)
                    if score < best:
                        best, sizes, is_improved = score, moved, True
        return best, sizes


def orders(problem: Problem) -> list[tuple[int, ...]]:
    """Sequences of devices; of devices that are alike, only those in which they come in their order."""
    devices = sorted(range(1, len(problem.memories)), key=lambda memory: -problem.memories[memory].weight_rate)
    devices = sorted(devices[: PARAMS.most_devices])

    @cache
    def alike(memory: int) -> tuple[object, ...]:
        fields = problem.memories[memory].__struct_fields__[1:]
        return tuple(getattr(problem.memories[memory], field) for field in fields)

    found = []
    for count in range(len(devices) + 1):
        for order in permutations(devices, count):
            # The first of devices that are alike stands for all.
            rest = [memory for memory in devices if memory not in order]
            ascending = all(
                one < two or alike(one) != alike(two) for at, one in enumerate(order) for two in order[at:] if one != two
            )
            if ascending and not any(alike(one) == alike(two) and two < one for one in order for two in rest):
                found.append(order)
    return found


def plans(problem: Problem, closed: Callable[[], bool]) -> Iterator[Plan]:
    """Better and better plans, until all sequences have been looked at or it is closed."""
    best: Score | None = None
    ranked: list[tuple[Score, tuple[int, ...]]] = []
    every = orders(problem)
    batches = range(len(problem.micro_batches))

    def looked_at(order: tuple[int, ...], batch: int) -> Iterator[tuple[Score, Plan | None]]:
        sequence = Chain(problem, order, batch)
        for kind in ("filled", "shared"):
            sizes = sequence.start(kind)
            if min(sizes) < 0 or len(order) >= len(problem.layers) + 1:
                continue
            score, sizes = sequence.descend(sizes, closed)
            yield score, None if score.excess else sequence.plan(sizes)

    for order in every:
        if closed():
            return
        for score, plan in looked_at(order, 0):
            ranked.append((score, order))
            if plan is not None and (best is None or score < best):
                best = score
                yield plan
    promising = list(dict.fromkeys(order for _, order in sorted(ranked)))[: PARAMS.promising]
    for batch in batches[1:]:
        for order in promising:
            if closed():
                return
            for score, plan in looked_at(order, batch):
                if plan is not None and (best is None or score < best):
                    best = score
                    yield plan


def _prefix_counts(problem: Problem) -> list[list[int]]:
    """[layers + 1][classes] how many of the first layers are of each class."""
    kind_of = {number: kind for kind, same in enumerate(problem.classes) for number in same}
    counts = [[0] * len(problem.classes)]
    for number in range(len(problem.layers)):
        row = [*counts[-1]]
        row[kind_of[number]] += 1
        counts.append(row)
    return counts
