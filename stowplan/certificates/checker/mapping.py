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

from stowplan.certificates.checker.prices import MOST_SETS, Splits, cheapest, rounded
from stowplan.certificates.checker.problems import TOO_LARGE
from stowplan.certificates.checker.reading import LARGEST, Fields, listed, numbers, rounded_up, whole

#: What each access of a tensor earns, and the tensor pays, where all of them are to be fast or none: more than uses are worth.
TOGETHER = LARGEST * TOO_LARGE

#: The cost of what no plan does: more than all accesses earn, of which there are fewer than LARGEST / TOO_LARGE.
NEVER = LARGEST * LARGEST

#: A boundary that no copy starts at.
NOWHERE = -1

#: Boundaries at which a copy is looked at one by one; beyond them a bound that holds for all is taken.
MOST_LOOKS = 200


def prices(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Least objective in ps. A decision of a split is the number of a use: whether it is fast."""
    known = Mapping(problem, proof)
    # Of each tensor its accesses, by step: the step, and the numbers of the read and the write, -1 for none.
    used: list[dict[int, list[int]]] = [{} for _ in known.units]
    total, first = splits[()] - known.paid, 0
    for index, step in enumerate(problem["steps"]):
        costs = list[int]()
        for number, use in enumerate(step["uses"], first):
            used[use["tensor"]].setdefault(index, [index, -1, -1])[1 + use["is_output"]] = number
            fits = known.units[use["tensor"]] <= known.room
            costs.append(known.access[number] + splits[number,] if fits else NEVER)
        total += _least(step, step["weight"] * known.worth[index], costs)
        first += len(costs)
    for tensor, accesses in enumerate(used):
        # With nothing to earn, slow memory is best, and costs nothing.
        if known.units[tensor] <= known.room and any(known.access[at] > 0 for each in accesses.values() for at in each[1:]):
            total += min(0, Path(known, tensor, [*accesses.values()]).least())
    return rounded_up(total, known.unit)


def _least(step: Fields, factor: int, price: list[int], most_sets: int = MOST_SETS) -> int:
    """Least of ``factor`` x latency + the prices of fast uses, over all sets of uses, or less than that."""
    table, pieces, uses = step["table"], step["pieces"], step["uses"]
    # A tensor that is updated in place is fast in both roles, or in none.
    tensors = [[at for at, use in enumerate(uses) if use["tensor"] == tensor] for tensor in {use["tensor"] for use in uses}]
    if table is not None:
        sets = {0: 0}
        for roles in tensors:
            more = sum(1 << table["uses"].index(at) for at in roles if at in table["uses"])
            for number, paid in [*sets.items()]:
                sets[number | more] = min(sets.get(number | more, NEVER), paid + sum(price[at] for at in roles))
        return int(min(factor * table["latency_ps"][number] + paid for number, paid in sets.items()))
    slow, choices = [factor * (piece["base_ps"] + sum(piece["slow_ps"])) for piece in pieces], []
    for roles in tensors:
        gain = [sum(piece["fast_ps"][at] - piece["slow_ps"][at] for at in roles) for piece in pieces]
        choices.append([[0 for _ in slow], [sum(price[at] for at in roles) + factor * each for each in gain]])
    return cheapest(slow, choices, most_sets)


class Mapping:
    """A problem with prices; all of these are multiples of one over the denominator."""

    def __init__(self, problem: Fields, proof: Fields):
        steps, self.problem, self.unit = problem["steps"], problem, whole(proof, "denominator", 1)
        every, channels, stalls = range(len(steps) + 1), problem["channels"], problem["stalls"] == "allowed"
        self.end = len(steps) if problem["evictions"] == "whole_steps" else NOWHERE
        """Where no copy starts: what is copied out there would have to stay for one more step."""
        self.loops = tuple((loop["start"], loop["end"]) for loop in problem["loops"])
        self.preload = whole(proof, "preload", default=0)
        self.access = [*numbers(proof, "access", -LARGEST, sum(len(step["uses"]) for step in steps)), 0]
        """What each use earns; the last is none."""
        self.wait = self.unit // channels if stalls else NEVER
        """What a copy's time costs at boundaries: time of all channels there is time itself."""
        self.time = [min(price, self.wait) for price in numbers(proof, "channel", length=len(steps))]
        """What it costs during each step."""
        # Latencies that no choice undercuts.
        floors = [step["weight"] * _least(step, 1, [0] * len(step["uses"]), 0) for step in steps]
        self.supply = None if stalls else [0, *accumulate(floors)]
        """Time up to each boundary, where copies have no other."""
        self.worth = [self.unit - channels * price * stalls for price in self.time]
        """Of the latency of each step: where stalls are allowed, it is time of the channels, too."""
        self.until = [0, *accumulate(numbers(proof, "memory", length=len(steps)))]
        self.units = [-(-tensor["size"] // problem["alignment"]) for tensor in problem["tensors"]]
        self.room = -(-problem["capacity"] // problem["alignment"])
        self.paid = self.room * self.until[-1] + self.preload * problem["max_preloads"]
        self.paid += 0 if stalls else channels * sum(map(int.__mul__, self.time, floors))
        self.cuts: list[list[tuple[int, int]]] = [[(-1, 0)] for _ in self.units]
        """Of each tensor (step, what cuts of steps up to that cost)."""
        for part in sorted(listed(proof, "cuts"), key=lambda part: whole(part, "step")):
            step, price = whole(part, "step"), whole(part, "price")
            taken, room = rounded(part, self.units, self.room)
            self.paid += room * price
            for own, units in zip(self.cuts, taken, strict=True):
                own += [(step, own[-1][1] + units * price)] if units else []
        # Boundaries that are not strictly inside one of some loops.
        self.free = cache(lambda loops: sorted({*every}.difference(*(range(start + 1, end) for start, end in loops))))

    def copied(self, start: int, end: int, duration: int) -> int:
        """Least cost of a copy between two boundaries; NEVER where there is no time for it."""
        if start == self.end or (self.supply and (start >= end or self.supply[end] - self.supply[start] < duration)):
            return NEVER
        return duration * min([self.wait, *self.time[start:end]])


class Path:
    """Cheapest path of one tensor through its accesses.

    States are what holds right before an access: ``slow`` valid in slow memory and nowhere else; ``lost`` nowhere; ``clean``
    fast and valid in slow memory, too; ``dirty`` fast alone.
    """

    def __init__(self, known: Mapping, tensor: int, accesses: list[list[int]]):
        self.known, self.accesses, self.info = known, accesses, known.problem["tensors"][tensor]
        self.units, self.cuts = known.units[tensor], known.cuts[tensor]
        # Members of one tensor may have to be fast together, or not at all.
        self.extra = TOGETHER if known.problem["alias_rule"] == "uniform" and len(self.info["members"]) > 1 else 0
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
        first = self.since = 0
        for step, read, write in self.accesses:
            leave, stay = free[bisect_left(free, first)], self.held(first, step)
            clean = min(clean, dirty + self._copied_out(first, step)) if dirty < NEVER else clean
            if leave <= step:
                held = self.held(first, leave)
                slow, lost = min(slow, clean + held), min(lost, clean + held, dirty + held)
            clean, dirty = min(clean + stay, slow + self._copied_in(first, step)), dirty + stay
            first, held, earned = step + 1, self.held(step, step + 1), known.access[read] + known.access[write] + self.extra
            if write < 0:
                lost, clean, dirty = NEVER, clean + held - max(0, earned), dirty + held - earned
                continue
            begun = min(slow, lost) if read < 0 and free[bisect_left(free, step)] == step else NEVER
            dirty = min(begun, clean, dirty) + held - earned
            slow, lost, clean = slow if read >= 0 else min(slow, lost), NEVER, NEVER
            self.since = first
        clean = min(clean, dirty + self._copied_out(first, len(known.time)))
        return self.extra * len(self.accesses) + (min(slow, clean) if self.info["is_output"] else min(slow, lost, clean, dirty))

    def held(self, start: int, end: int) -> int:
        """What the place of the tensor costs during steps ``[start, end)``."""
        until, (before, after) = self.known.until, (bisect_left(self.cuts, (at,)) - 1 for at in (start, end))
        return int(self.units * (until[end] - until[start]) + self.cuts[after][1] - self.cuts[before][1])

    def _window(self, first: int, last: int) -> range:
        """Places of ``copies`` from the last write to the end of a gap, where one is in the gap."""
        low, high = bisect_left(self.copies, self.since), bisect_right(self.copies, last)
        return range(low, high) if low < high and self.copies[high - 1] >= first else range(0)

    def _copied_out(self, first: int, last: int) -> int:
        """Least cost of a copy-out that ends in a gap, or less."""
        window, copies = self._window(first, last), self.copies
        return self.known.copied(copies[window[0]], copies[window[-1]], self.info["copy_out_ps"]) if window else NEVER

    def _copied_in(self, first: int, last: int) -> int:
        """Least cost of a copy-in that has landed by the end of a gap, and of the place from its start on.

        The copy may start in an earlier gap, and pass over slow reads.
        """
        found, window = NEVER, self._window(first, last)
        for look, at in enumerate(self.copies[place] for place in reversed(window)):
            earliest = at if look < MOST_LOOKS else self.copies[window[0]]
            paid = self.known.copied(earliest, self.copies[window[-1]], self.info["copy_in_ps"])
            # The slices of a sliced copy may come late, all but a first one that takes the time.
            start = self.copies[window[-1]] if self.known.problem["prefetches"] == "sliced" else at
            found = min(found, self.held(start, last) + paid)
            # No earlier start holds less memory.
            if paid == 0 or self.held(start, last) >= found or look == MOST_LOOKS:
                break
        return found
