"""Enumeration of LLM placements: every sequence of devices with every micro-batch, the layers divided by dynamic programming.

The layers of a language model are placed on the host (the CPU with its RAM) and on devices. The *micro-batch* is the number of
tokens of a prompt that are computed at once. A *memory* is that of the host, number 0, or of a device, number d + 1. Two layers
are of one *class* if they differ at most in their names. The time of a placement is that of one request, which computes a
prompt and generates an answer. Times are in picoseconds, and the functions raise no errors.

For a sequence of devices and a micro-batch, a placement divides the layers into consecutive *segments*: one on the host, which
may be empty, and one on each device. If the layers of a segment do not fit on their device, parts of them are *spilled*, that
is, stay on the host (:mod:`stowplan.portfolio.llm_placement.spills`). The time of a segment depends on no other segment.
Therefore the best division of the last layers among the last devices is a part of the best division of all layers.

The result is not always optimal, for two reasons. First, the parts to spill are chosen by a greedy rule. Second, the best
division may need more memory on the host than there is. Then each byte on the host gets a *price* in picoseconds, which is
added to the time. Bisection looks for the lowest price with which the best division fits (a Lagrangian relaxation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import permutations
from typing import NamedTuple

import numpy as np

from stowplan.models.llm_placement.plan import Case, Plan, cases, plan_of, transfers_ps
from stowplan.models.llm_placement.problem import HOST, Problem, layer_bytes
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.llm_placement.spills import Floats, Integers, Knapsack, Level, Spills


class EnumerationParameters(Parameters, frozen=True):
    """Parameters of the enumeration."""

    most_devices: int = 5
    """Number of devices of which all sequences are tried. If there are more, only those are used that read weights fastest."""
    most_prices: int = 24
    """Largest number of prices of a byte on the host that are tried for each sequence of devices. The first price is 0, and no
    other is tried if the host has enough memory for it."""


PARAMS = parameters(EnumerationParameters, __name__)


class Segments(NamedTuple):
    """All segments of layers on one device. Arrays are indexed by the first layer of a segment and the layer after its last."""

    time: Floats
    """``[layers + 1, layers + 1]`` time of the segment in picoseconds. It is infinite if the segment has no layer, or does not
    fit even with all parts spilled."""
    host: Floats
    """``[layers + 1, layers + 1]`` bytes of the segment that are spilled."""
    knapsack: Knapsack
    """Solves the choice of the parts to spill."""
    spills: Spills
    """The spilled parts of all segments that have a layer."""
    groups: Integers
    """``[layers + 1, layers + 1]`` number of the segment in ``spills``; -1 if it has no layer."""


class Divisions:
    """The divisions of the layers in one :class:`~stowplan.models.llm_placement.plan.Case`.

    A case is a choice of the micro-batch and of the device that computes prompts for layers on the host. Costs are computed for
    one layer of each class.
    """

    def __init__(self, problem: Problem, case: Case):
        self.problem, self.batch = problem, case.batch
        self.count = len(problem.layers)
        self.kinds = [same[0] for same in problem.classes]
        self.sizes = np.array([layer_bytes(problem.layers[layer]) for layer in self.kinds], np.int64)
        self.before = _prefix_counts(problem)
        # Picoseconds and bytes of the segments [0, end) on the host, by end.
        costs = [problem.cost(layer, HOST, case.batch, case.copier) for layer in self.kinds]
        self.host_time = (self.before @ np.array(costs, np.int64)).astype(np.float64)
        self.host_bytes = (self.before @ self.sizes).astype(np.float64)
        self.segments = {memory: self._segments(memory, case) for memory in range(1, len(problem.memories))}

    def _segments(self, memory: int, case: Case) -> Segments:
        """Returns all segments on the device whose memory has the number ``memory``."""
        problem, size = self.problem, self.count + 1
        costs, levels = [], []
        for layer in self.kinds:
            row = problem.layers[layer]
            times = [problem.cost(layer, memory, case.batch, case.copier, parts) for parts in range(1 + len(row.spillable))]
            costs.append(times[0])
            levels.append(
                [Level(layer_bytes(row) - layer_bytes(row, parts), time - times[0]) for parts, time in enumerate(times)]
            )
        first, end = np.triu_indices(size, 1)
        counts = self.before[end] - self.before[first]
        knapsack = Knapsack(levels)
        spills = knapsack.spill(counts, counts @ self.sizes - problem.room(memory, case.batch))
        time, host = np.full((size, size), np.inf), np.zeros((size, size))
        groups = np.full((size, size), -1)
        time[first, end] = counts @ np.array(costs, np.int64) + spills.time
        host[first, end] = spills.freed
        groups[first, end] = np.arange(len(first))
        return Segments(time, host, knapsack, spills, groups)

    def best(self, order: Sequence[int], limit: float) -> Plan | None:
        """The best plan that is found for a sequence of devices.

        Parameters
        ----------
        order
            Memory numbers of the devices, in the order of their layers; empty for none.
        limit
            Time in picoseconds, without transfers between devices, that the plan must stay below; infinite for no limit.

        Returns
        -------
        Plan or None
            None if no division that is found takes less than ``limit`` and fits.
        """
        room = self.problem.room(HOST, self.batch)
        least, cuts = limit, None
        low, price, high = 0.0, 0.0, np.inf
        for number in range(PARAMS.most_prices):
            time, host, ends = self._divide(order, price)
            if number == 0 and not time.min() < limit:
                return None
            fitting = np.where(host <= room, time, np.inf)
            start = int(fitting.argmin())
            if fitting[start] < least:
                least, cuts = fitting[start], [start]
                for each in ends:
                    cuts.append(int(each[cuts[-1]]))
            if host[(time + price * host).argmin()] > room:
                low = price
            else:
                high = price
            if high == 0:
                break
            # The first price above 0 makes as many bytes as fit on the host as expensive as the whole request.
            price = (low + high) / 2 if high < np.inf else max(2 * low, time.min() / max(1, room))
        return None if cuts is None else self._plan(order, cuts)

    def _divide(self, order: Sequence[int], price: float) -> tuple[Floats, Floats, list[Integers]]:
        """The divisions that are best at a price of bytes on the host (ps for a byte), for each number of layers on the host.

        Returns
        -------
        tuple
            ``[layers + 1]`` times in picoseconds and ``[layers + 1]`` bytes on the host, by the number of layers on the host. A
            time is infinite if there is no division. Then, for each device in the order of ``order``, ``[layers + 1]`` the end
            of its best segment (the layer after its last), by the segment's first layer.
        """
        every = np.arange(self.count + 1)
        time, host = np.where(every == self.count, 0.0, np.inf), np.zeros(self.count + 1)
        ends = []
        for memory in reversed(order):
            segments = self.segments[memory]
            times, bytes_ = segments.time + time, segments.host + host
            end = (times + price * bytes_).argmin(axis=1)
            time, host = times[every, end], bytes_[every, end]
            ends.append(end)
        return self.host_time + time, self.host_bytes + host, ends[::-1]

    def _plan(self, order: Sequence[int], ends: Sequence[int]) -> Plan:
        """The plan in which the host has the layers before ``ends[0]``, and device ``order[d]`` those from ``ends[d]`` up to,
        but without, ``ends[d + 1]``."""
        memories = [HOST] * ends[0]
        levels = [0] * self.count
        for memory, start, end in zip(order, ends, ends[1:], strict=False):
            memories += [memory] * (end - start)
            segments = self.segments[memory]
            counts = (self.before[end] - self.before[start]).tolist()
            for kind, count, level in segments.knapsack.levels_of(segments.spills, int(segments.groups[start, end]), counts):
                same = [layer for layer in self.problem.classes[kind] if start <= layer < end and not levels[layer]]
                for layer in same[:count]:
                    levels[layer] = level
        return plan_of(self.problem, memories, levels, self.batch)


def orders(problem: Problem) -> list[tuple[int, ...]]:
    """The sequences of devices to try, each a tuple of memory numbers. The first is empty: all layers are on the host.

    Sequences that differ only by an exchange of equal devices count as one. The sequence with the lowest numbers is taken.
    Devices are equal if they differ at most in their names. No sequence has more devices than the model has layers.
    """
    devices = sorted(range(1, len(problem.memories)), key=lambda memory: -problem.memories[memory].weight_rate)
    devices = sorted(devices[: PARAMS.most_devices])

    @cache
    def alike(memory: int) -> tuple[object, ...]:
        fields = problem.memories[memory].__struct_fields__[1:]
        return tuple(getattr(problem.memories[memory], field) for field in fields)

    found = []
    for count in range(min(len(devices), len(problem.layers)) + 1):
        for order in permutations(devices, count):
            # Of devices that are equal, those with the lowest numbers are used, in ascending order.
            rest = [memory for memory in devices if memory not in order]
            ascending = all(
                one < two or alike(one) != alike(two) for at, one in enumerate(order) for two in order[at:] if one != two
            )
            if ascending and not any(alike(one) == alike(two) and two < one for one in order for two in rest):
                found.append(order)
    return found


def plans(problem: Problem, closed: Callable[[], bool]) -> Iterator[Plan]:
    """Yield better and better plans, until all sequences have been tried or ``closed`` returns True; none if none fits."""
    best = np.inf
    every = orders(problem)
    for case in cases(problem):
        of_case = [order for order in every if problem.copier(order) == case.copier]
        if not of_case or closed():
            continue
        divisions = Divisions(problem, case)
        for order in of_case:
            if closed():
                return
            plan = divisions.best(order, best - transfers_ps(problem, order, case.batch))
            if plan is not None and plan.objective < best:
                best = plan.objective
                yield plan


def _prefix_counts(problem: Problem) -> Integers:
    """``[layers + 1, classes]`` how many of the first 0, 1, 2, ... layers belong to each class."""
    counts = np.zeros((len(problem.layers) + 1, len(problem.classes)), np.int64)
    for kind, same in enumerate(problem.classes):
        counts[np.array(same) + 1, kind] = 1
    return counts.cumsum(axis=0)
