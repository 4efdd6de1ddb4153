"""Form ``prices`` of memory mapping: Lagrangian duality, checked by a small dynamic programme for each tensor.

Memory has a price at each step, copies at each moment, preloads have one, and each use has what a tensor earns by being fast
there. Then no plan costs less than: each step at its least, with the earnings of its fast uses as a cost; each tensor at its
least, on a path through its accesses; less what all memory and all time of the channels would cost. Read from
docs/reference/memory-mapping.md; what offsets and the order of copies forbid is left out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache
from itertools import accumulate

from stowplan.certificates.checker.prices import MOST_SETS, NONE, Splits, cheapest, rounded
from stowplan.certificates.checker.reading import Fields, listed, need, numbers, pick, whole

#: A cost that no path has.
NEVER = 1 << 400

#: Boundaries at which a copy is looked at one by one; beyond them a bound that holds for all is taken.
MOST_LOOKS = 200

#: An access of a tensor: its step, and the numbers of the read and the write, -1 for none.
Access = list[int]


def prices(problem: Fields, proof: Fields, splits: Splits = NONE) -> int:
    """Least objective in ps. A decision of a split is the number of a use: whether it is fast."""
    known = Mapping(problem, proof)
    used: list[dict[int, Access]] = [{} for _ in known.units]
    total, first = -splits.total, 0
    for index, step in enumerate(problem["steps"]):
        costs = list[int]()
        for number, use in enumerate(step["uses"], first):
            used[use["tensor"]].setdefault(index, [index, -1, -1])[1 + use["is_output"]] = number
            fits = known.units[use["tensor"]] <= known.room
            costs.append(known.access[number] + splits.price[number,] if fits else NEVER)
        factor = known.unit - problem["channels"] * known.time[index] if known.stalls else known.unit
        total += _least(step, step["weight"] * factor, costs)
        first += len(costs)
    for tensor, accesses in enumerate(used):
        # With nothing to earn, slow memory is best, and costs nothing.
        if known.units[tensor] <= known.room and any(known.access[at] > 0 for each in accesses.values() for at in each[1:]):
            total += min(0, Path(known, tensor, [*accesses.values()]).least())
    total -= known.paid + known.room * known.until[-1] + known.preload * problem["max_preloads"]
    if not known.stalls:
        total -= problem["channels"] * sum(map(int.__mul__, known.time, known.floors))
    return int(-(-total // known.unit))


def _least(step: Fields, factor: int, price: list[int], most_sets: int = MOST_SETS) -> int:
    """Least of ``factor`` x latency + the prices of fast uses, over all sets of uses, or less than that."""
    table, pieces, uses = step["table"], step["pieces"], step["uses"]
    if table is not None:
        paid = [sum(min(0, cost) for at, cost in enumerate(price) if at not in table["uses"])]
        for at in table["uses"]:
            paid += [before + price[at] for before in paid]
        return int(min(factor * time + cost for time, cost in zip(table["latency_ps"], paid, strict=True)))
    slow, choices = [factor * (piece["base_ps"] + sum(piece["slow_ps"])) for piece in pieces], []
    for tensor in {use["tensor"] for use in uses}:
        # A tensor that is updated in place is fast in both roles, or in none.
        roles = [at for at, use in enumerate(uses) if use["tensor"] == tensor]
        gain = [sum(piece["fast_ps"][at] - piece["slow_ps"][at] for at in roles) for piece in pieces]
        choices.append([[0 for _ in slow], [sum(price[at] for at in roles) + factor * each for each in gain]])
    return cheapest(slow, choices, most_sets)


class Mapping:
    """A problem with prices; all of these are multiples of one over the denominator."""

    def __init__(self, problem: Fields, proof: Fields):
        steps, self.problem, self.unit = problem["steps"], problem, whole(proof, "denominator", 1)
        self.loops = tuple((loop["start"], loop["end"]) for loop in problem["loops"])
        self.preload = whole(proof, "preload", default=0)
        self.access = [*numbers(proof, "access", -(1 << 200), sum(len(step["uses"]) for step in steps)), 0]
        """What each use earns; the last is none."""
        self.time, waits = numbers(proof, "channel", length=len(steps)), numbers(proof, "wait", length=len(steps) + 1)
        self.stalls = problem["stalls"] == "allowed"
        dearest = max(*self.time, *waits) * problem["channels"]
        need(not self.stalls or dearest <= self.unit, "proof.channel", "time of the channels is dearer than time itself")
        waits = waits if self.stalls else [NEVER for _ in waits]
        self.copying = [price for pair in zip(waits, [*self.time, NEVER], strict=True) for price in pair]
        """What a copy's time costs at boundaries (even) and during steps (odd)."""
        # Latencies that no choice undercuts.
        self.floors = [step["weight"] * _least(step, 1, [0] * len(step["uses"]), 0) for step in steps]
        self.supply = [0, *accumulate(self.floors)]
        self.until = [0, *accumulate(numbers(proof, "memory", length=len(steps)))]
        self.units = [-(-tensor["size"] // problem["alignment"]) for tensor in problem["tensors"]]
        self.room, self.paid = -(-problem["capacity"] // problem["alignment"]), 0
        self.cuts: list[list[tuple[int, int]]] = [[(-1, 0)] for _ in self.units]
        """Of each tensor (step, what cuts of steps up to that cost)."""
        for part in sorted(listed(proof, "cuts"), key=lambda part: whole(part, "step")):
            step, price = whole(part, "step"), whole(part, "price")
            pick(steps, step, "proof.cuts")
            taken, room = rounded(part, self.units, self.room)
            self.paid += room * price
            for own, units in zip(self.cuts, taken, strict=True):
                own += [(step, own[-1][1] + units * price)] if units else []
        self.free = cache(self._free)

    def _free(self, loops: tuple[tuple[int, int], ...]) -> list[int]:
        """Boundaries that are not strictly inside one of some loops."""
        return sorted({*range(len(self.until))}.difference(*(range(start + 1, end) for start, end in loops)))

    def fits(self, start: int, end: int, duration: int) -> bool:
        """Whether a copy can be made in a window."""
        return self.stalls or (start < end and bool(self.supply[end] - self.supply[start] >= duration))


class Path:
    """Cheapest path of one tensor through its accesses.

    States are what holds right before an access: ``slow`` valid in slow memory and nowhere else; ``lost`` nowhere; ``clean``
    fast and valid in slow memory, too; ``dirty`` fast alone.
    """

    def __init__(self, known: Mapping, tensor: int, accesses: list[Access]):
        self.known, self.accesses, self.info = known, accesses, known.problem["tensors"][tensor]
        self.units, self.cuts = known.units[tensor], known.cuts[tensor]
        is_local = not (self.info["is_input"] or self.info["is_output"])
        start, end = accesses[0][0], accesses[-1][0]
        # Loops that the tensor is outside of; those that hold all its accesses do not bind it, but then it has no copies.
        outside = tuple(each for each in known.loops if not (is_local and each[0] <= start and end < each[1]))
        self.free, self.copies = known.free(outside), known.free(known.loops) if outside == known.loops else []

    def least(self) -> int:
        """Its cost."""
        known, free, is_input = self.known, self.free, self.info["is_input"]
        slow, lost, dirty = (0 if is_input else NEVER), (NEVER if is_input else 0), NEVER
        clean = known.preload if is_input and known.problem["max_preloads"] else NEVER
        first, self.since, self.left = 0, 0, list[tuple[int, int]]()
        for step, read, write in self.accesses:
            leave, stay = free[bisect_left(free, first)], self.held(first, step)
            if leave <= step:
                held = self.held(first, leave)
                slow, lost = min(slow, clean + held), min(lost, clean + held, dirty + held)
            paid, at = self._copied_out(first, step) if dirty < NEVER else (NEVER, step)
            clean, slow = min(clean, dirty + paid) + stay, min(slow, dirty + paid + self.held(first, at))
            self.left.append((first, slow))
            clean, dirty = min(clean, self._copied_in(first, step)), dirty + stay
            first, held, earned = step + 1, self.held(step, step + 1), known.access[read] + known.access[write]
            if write < 0:
                lost, clean, dirty = NEVER, clean + held - max(0, earned), dirty + held - earned
                continue
            begun = min(slow, lost) if read < 0 and free[bisect_left(free, step)] == step else NEVER
            dirty = min(begun, clean, dirty) + held - earned
            slow, lost, clean = slow if read >= 0 else min(slow, lost), NEVER, NEVER
            self.left, self.since = [], first
        paid, at = self._copied_out(first, len(known.floors))
        left = (slow, clean, dirty + paid + self.held(first, at)) if self.info["is_output"] else (slow, lost, clean, dirty)
        return min(left)

    def held(self, start: int, end: int) -> int:
        """What the place of the tensor costs during steps ``[start, end)``."""
        until, (before, after) = self.known.until, (bisect_left(self.cuts, (at,)) - 1 for at in (start, end))
        return int(self.units * (until[end] - until[start]) + self.cuts[after][1] - self.cuts[before][1])

    def _copied_out(self, first: int, last: int) -> tuple[int, int]:
        """Least cost of a copy-out that ends in a gap, or less; and the boundary from which on the tensor may leave then."""
        copies, copying, duration = self.copies, self.known.copying, self.info["copy_out_ps"]
        ends = copies[bisect_left(copies, first) : bisect_right(copies, last)]
        begin = copies[bisect_left(copies, self.since)] if ends else 0
        at = next((at for at in ends if self.known.fits(begin, at, duration)), None)
        return (NEVER, last) if at is None else (duration * min(copying[2 * begin : 2 * ends[-1] + 1]), at)

    def _copied_in(self, first: int, last: int) -> int:
        """Least cost of a path that is slow until a copy-in starts, and landed in a gap.

        The copy may start in an earlier gap, and pass over slow reads.
        """
        copies, copying, duration = self.copies, self.known.copying, self.info["copy_in_ps"]
        low, high = bisect_left(copies, self.since), bisect_right(copies, last) - 1
        if high < low or copies[high] < first or self.left[-1][1] >= NEVER:
            return NEVER
        found, price, gap, end = NEVER, NEVER, len(self.left) - 1, copies[high]
        until = 2 * end + 1
        for look, at in enumerate(copies[number] for number in range(high, low - 1, -1)):
            # No earlier start holds less memory, or comes after less that was paid.
            start = at if look < MOST_LOOKS else copies[low]
            price, until = min([price, *copying[2 * start : until]]), 2 * at
            if self.known.fits(start, end, duration):
                while gap and self.left[gap][0] > at:
                    gap -= 1
                # The slices of a sliced copy may come late, all but a first one that takes the time.
                held = self.held(end if self.known.problem["prefetches"] == "sliced" else at, last)
                found = min(found, self.left[gap][1] + held + int(duration * price))
                if price * duration == 0 or self.left[-1][1] + held >= found or start < at:
                    break
        return found
