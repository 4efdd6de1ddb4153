"""What memory mapping costs at the prices of a proof: steps by their fast uses, places in fast memory, and copies.

Rules are those of docs/reference/memory-mapping.md.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from itertools import accumulate

from stowplan.certificates.checker.prices import MOST_SETS, cheapest, rounded
from stowplan.certificates.checker.reading import LARGEST, Fields, listed, numbers, whole

#: The cost of what no plan does: more than all accesses earn.
NEVER = LARGEST * LARGEST

#: A boundary that no copy starts at.
NOWHERE = -1

#: A loop: boundaries at which it begins and ends.
Loop = tuple[int, int]


class Mapping:
    """A problem with prices; all of these are multiples of one over the denominator."""

    def __init__(self, problem: Fields, proof: Fields):
        self.problem, self.denominator = problem, whole(proof, "denominator", 1)
        self.horizon = len(problem["steps"])
        self.loops: tuple[Loop, ...] = tuple((loop["start"], loop["end"]) for loop in problem["loops"])
        self.has_stalls: bool = problem["stalls"] == "allowed"
        self.preload_price = whole(proof, "preload", default=0)
        uses = sum(len(step["uses"]) for step in problem["steps"])
        self.earned = [*numbers(proof, "access", -LARGEST, uses), 0]
        """By each use that is fast; the last is of no use at all."""
        self.wait_price = self.denominator // problem["channels"] if self.has_stalls else NEVER
        """Of a copy's time at boundaries: that of all channels there is time itself."""
        self.channel_price = [min(price, self.wait_price) for price in numbers(proof, "channel", length=self.horizon)]
        """Of a copy's time during each step."""
        # No choice undercuts these latencies.
        floors = [step["weight"] * least_of_step(step, 1, [0] * len(step["uses"]), 0) for step in problem["steps"]]
        self.time_until = None if self.has_stalls else [0, *accumulate(floors)]
        """Time up to each boundary, where copies have no other."""
        self.memory_until = [0, *accumulate(numbers(proof, "memory", length=self.horizon))]
        """What a unit of memory costs in all steps before each boundary."""
        self.units = [-(-tensor["size"] // problem["alignment"]) for tensor in problem["tensors"]]
        """Of the alignment, of each tensor."""
        self.room = -(-problem["capacity"] // problem["alignment"])
        self.limits = self._limits(floors)
        """What all that is limited would cost together."""
        self.cuts: list[list[tuple[int, int]]] = [[(-1, 0)] for _ in self.units]
        """Of each tensor (step, what it costs in cuts of steps up to that)."""
        self._read_cuts(proof)
        self.boundaries_outside = cache(self._boundaries_outside)

    def _limits(self, floors: list[int]) -> int:
        """Price times limit: memory of each step, preloads, and, without stalls, time of all channels in each step."""
        limits = self.room * self.memory_until[-1] + self.preload_price * self.problem["max_preloads"]
        if not self.has_stalls:
            limits += int(self.problem["channels"] * sum(map(int.__mul__, self.channel_price, floors)))
        return int(limits)

    def _read_cuts(self, proof: Fields) -> None:
        """Cuts price memory of one step: ``sum of units <= room``, rounded."""
        for cut in sorted(listed(proof, "cuts"), key=lambda cut: whole(cut, "step")):
            step, price = whole(cut, "step"), whole(cut, "price")
            taken, room = rounded(cut, self.units, self.room)
            self.limits += room * price
            for own, units in zip(self.cuts, taken, strict=True):
                own += [(step, own[-1][1] + units * price)] if units else []

    def _boundaries_outside(self, loops: tuple[Loop, ...]) -> list[int]:
        """Boundaries that are not strictly inside one of some loops."""
        inside = (range(start + 1, end) for start, end in loops)
        return sorted({*range(self.horizon + 1)}.difference(*inside))

    def fits(self, tensor: int) -> bool:
        """Whether a tensor may be in fast memory at all."""
        return bool(self.units[tensor] <= self.room)

    def latency_price(self, step: int) -> int:
        """Of the latency of a step: where stalls are allowed, it is time of all channels, too, and counts less by that."""
        return int(self.denominator - self.problem["channels"] * self.channel_price[step] * self.has_stalls)

    def held(self, tensor: int, start: int, end: int) -> int:
        """What the place of a tensor costs during steps ``[start, end)``."""
        cuts = self.cuts[tensor]
        before, after = (bisect_left(cuts, (step,)) - 1 for step in (start, end))
        return int(self.units[tensor] * (self.memory_until[end] - self.memory_until[start]) + cuts[after][1] - cuts[before][1])

    def copied(self, start: int, end: int, duration: int) -> int:
        """Least cost of a copy between two boundaries, all of it where time is cheapest; NEVER where it has no time."""
        # What is copied out where the program ends would have to stay for one more step.
        is_too_late = start == (self.horizon if self.problem["evictions"] == "whole_steps" else NOWHERE)
        if is_too_late or (self.time_until and (start >= end or self.time_until[end] - self.time_until[start] < duration)):
            return NEVER
        return duration * min([self.wait_price, *self.channel_price[start:end]])


def least_of_step(step: Fields, factor: int, prices: list[int], most_sets: int = MOST_SETS) -> int:
    """Least of ``factor * latency + sum of the prices of fast uses``, over all sets of uses, or less than that."""
    roles = _roles(step)
    if step["table"] is not None:
        return _least_by_table(step["table"], factor, prices, roles)
    return _least_by_pieces(step["pieces"], factor, prices, roles, most_sets)


def _roles(step: Fields) -> list[list[int]]:
    """Uses of each tensor: one that is updated in place is fast in both, or in none."""
    uses = step["uses"]
    return [[at for at, use in enumerate(uses) if use["tensor"] == tensor] for tensor in {use["tensor"] for use in uses}]


def _least_by_table(table: Fields, factor: int, prices: list[int], roles: list[list[int]]) -> int:
    """Least of ``factor * latency_ps[set] + price of the set``, a set with a bit for each of the table's uses."""
    sets = {0: 0}
    for uses in roles:
        bits = sum(1 << table["uses"].index(use) for use in uses if use in table["uses"])
        price = sum(prices[use] for use in uses)
        for known, paid in [*sets.items()]:
            sets[known | bits] = min(sets.get(known | bits, paid + price), paid + price)
    return int(min(factor * table["latency_ps"][known] + paid for known, paid in sets.items()))


def _least_by_pieces(pieces: list[Fields], factor: int, prices: list[int], roles: list[list[int]], most_sets: int) -> int:
    """``latency = max over pieces of base + sum over uses of slow or fast``."""
    slow = [factor * (piece["base_ps"] + sum(piece["slow_ps"])) for piece in pieces]
    choices = []
    for uses in roles:
        price = sum(prices[use] for use in uses)
        gains = [sum(piece["fast_ps"][use] - piece["slow_ps"][use] for use in uses) for piece in pieces]
        choices.append([[0 for _ in pieces], [price + factor * gain for gain in gains]])
    return cheapest(slow, choices, most_sets)
