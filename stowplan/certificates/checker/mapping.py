"""Form ``prices`` of memory mapping: Lagrangian duality, checked by a small dynamic programme for each tensor.

Memory has a price at each step, copies at each moment, preloads have one, and each use has what a tensor earns by being fast
there. Then no plan costs less than: each step at its least, with the earnings of its fast uses as a cost; each tensor at its
least, on a path through its accesses; less what all memory and all time of the channels would cost. Read from
docs/reference/memory-mapping.md; what offsets and the order of copies forbid is left out.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from itertools import accumulate

from stowplan.certificates.checker import steps as step_costs
from stowplan.certificates.checker.cut import Cut
from stowplan.certificates.checker.reading import Fields, listed, need, numbers, whole
from stowplan.certificates.checker.tree import Splits

#: A cost that no path has.
NEVER = 1 << 400

#: Boundaries at which a copy is looked at one by one; beyond them a bound that holds for all is taken.
MOST_LOOKS = 200


class Free:
    """Boundaries that are not strictly inside one of some loops, and the nearest ones before and after each."""

    def __init__(self, horizon: int, loops: tuple[tuple[int, int], ...]):
        depth = [0] * (horizon + 2)
        for start, end in loops:
            if end - start > 1:
                depth[start + 1] += 1
                depth[end] -= 1
        self.is_free = [each == 0 for each in accumulate(depth)][: horizon + 1]
        self.before = list(accumulate((at if free else 0 for at, free in enumerate(self.is_free)), max))
        back = (at if self.is_free[at] else horizon for at in range(horizon, -1, -1))
        self.after = list(accumulate(back, min))[::-1]


class Channel:
    """Prices of the channels' time: a copy in a window pays for its duration where it is cheapest.

    Positions are those of boundaries (even) and steps (odd) in turn.
    """

    def __init__(self, steps: list[int], waits: list[int] | None, floors: list[int]):
        self.floor = [0, *accumulate(floors)]
        self.stalls = waits is not None
        price = [NEVER] * (2 * len(steps) + 1)
        price[::2] = waits or price[::2]
        price[1::2] = steps
        self.table = [price]
        while len(self.table[-1]) > 1 << len(self.table) - 1:
            last, width = self.table[-1], 1 << len(self.table) - 1
            self.table.append(list(map(min, last, last[width:])))

    def least(self, start: int, end: int) -> int:
        """Least price in the window from boundary ``start`` to ``end``."""
        low, high = 2 * start, 2 * end + 1
        level = (high - low).bit_length() - 1
        row = self.table[level]
        return min(row[low], row[high - (1 << level)])

    def fits(self, start: int, end: int, duration: int) -> bool:
        """Whether a copy can be made in a window."""
        return start <= end and (self.stalls or (start < end and self.floor[end] - self.floor[start] >= duration))


class Mapping:
    """A problem with prices; all of these are multiples of one over the denominator."""

    def __init__(self, problem: Fields, proof: Fields):
        self.problem, self.steps = problem, problem["steps"]
        self.loops = tuple((loop["start"], loop["end"]) for loop in problem["loops"])
        self.free_of = lru_cache(maxsize=256)(Free)
        self.horizon = horizon = len(self.steps)
        self.unit = whole(proof, "denominator", 1)
        memory = numbers(proof, "memory", length=horizon)
        self.preload = whole(proof, "preload", default=0)
        self.access = numbers(proof, "access", -(1 << 200), sum(len(step["uses"]) for step in self.steps))
        self.time, waits = numbers(proof, "channel", length=horizon), numbers(proof, "wait", length=horizon + 1)
        self.stalls = problem["stalls"] == "allowed"
        self.floors = [step["weight"] * step_costs.floor(step) for step in self.steps]
        dearest = max(*self.time, *waits) * problem["channels"]
        need(not self.stalls or dearest <= self.unit, "proof.channel", "time of the channels is dearer than time itself")
        self.channel = Channel(self.time, waits if self.stalls else None, self.floors)
        self.until = [0, *accumulate(memory)]
        self.units = [-(-tensor["size"] // problem["alignment"]) for tensor in problem["tensors"]]
        self.room = -(-problem["capacity"] // problem["alignment"])
        cuts = ((whole(part, "step"), Cut(part, self.units, self.room)) for part in listed(proof, "cuts"))
        self.cuts = sorted(cuts, key=lambda cut: cut[0])
        self.cut_at = [step for step, _ in self.cuts]
        need(max(self.cut_at, default=-1) < horizon, "proof.cuts", "a step that is not there")

    def bound(self, splits: Splits) -> int:
        """What no plan's objective is below, in ps."""
        total, first = -splits.total, 0
        used: list[list[tuple[int, int, int]]] = [[] for _ in self.units]
        for index, (step, time) in enumerate(zip(self.steps, self.time, strict=True)):
            factor = self.unit - self.problem["channels"] * time if self.stalls else self.unit
            earned = self.access[first : first + len(step["uses"])]
            may = [self.units[use["tensor"]] <= self.room for use in step["uses"]]
            priced = [price + splits.price.get((number,), 0) for number, price in enumerate(earned, first)]
            total += step_costs.least(step, step["weight"] * factor, priced, may)
            here: dict[int, list[int]] = {}
            for number, use in enumerate(step["uses"], first):
                here.setdefault(use["tensor"], [-1, -1])[use["is_output"]] = number
            for tensor, (read, write) in here.items():
                used[tensor].append((index, read, write))
            first += len(earned)
        for tensor, accesses in enumerate(used):
            # With nothing to earn, slow memory is best, and costs nothing.
            if self.units[tensor] <= self.room and any(self.access[at] > 0 for each in accesses for at in each[1:] if at >= 0):
                total += min(0, Path(self, tensor, accesses).least())
        total -= sum(cut.room * cut.price for _, cut in self.cuts)
        total -= self.room * self.until[-1] + self.preload * self.problem["max_preloads"]
        if not self.stalls:
            total -= self.problem["channels"] * sum(map(int.__mul__, self.time, self.floors))
        return int(-(-total // self.unit))


class Path:
    """Cheapest path of one tensor through its accesses.

    States are what holds right before an access: ``slow`` valid in slow memory and nowhere else; ``lost`` nowhere; ``clean``
    fast and valid in slow memory, too; ``dirty`` fast alone.
    """

    def __init__(self, mapping: Mapping, tensor: int, accesses: list[tuple[int, int, int]]):
        self.mapping, self.accesses = mapping, accesses
        self.info = info = mapping.problem["tensors"][tensor]
        self.units = units = mapping.units[tensor]
        self.paid = [0, *accumulate(cut.price * cut.takes(tensor, units) for _, cut in mapping.cuts)]
        first, last = accesses[0][0], accesses[-1][0]
        is_local = not (info["is_input"] or info["is_output"])
        # Loops that the tensor is outside of; those that hold all its accesses do not bind it.
        outside = tuple(each for each in mapping.loops if not (is_local and each[0] <= first and last < each[1]))
        self.may_copy = outside == mapping.loops
        self.copy, self.free = (mapping.free_of(mapping.horizon, each) for each in (mapping.loops, outside))
        self.sliced = mapping.problem["prefetches"] == "sliced"

    def least(self) -> int:
        """Its cost."""
        mapping, free = self.mapping, self.free
        slow, lost = (0, NEVER) if self.info["is_input"] else (NEVER, 0)
        clean = mapping.preload if self.info["is_input"] and mapping.problem["max_preloads"] else NEVER
        dirty = NEVER
        self.since, self.left = 0, list[tuple[int, int]]()
        first = 0
        for step, read, write in self.accesses:
            slow, lost, clean, dirty = self._gap(first, step, slow, lost, clean, dirty)
            held = self.held(step, step + 1)
            earned = (mapping.access[read] if read >= 0 else 0) + (mapping.access[write] if write >= 0 else 0)
            if write < 0:
                lost, dirty = NEVER, dirty + held - earned
                clean += held - max(0, earned)
            else:
                begun = min(slow, lost) if read < 0 and free.is_free[step] else NEVER
                dirty = min(begun, clean, dirty) + held - earned
                slow = slow if read >= 0 else min(slow, lost)
                lost, clean = NEVER, NEVER
                self.since, self.left = step + 1, []
            first = step + 1
        slow, lost, clean, dirty = self._gap(first, mapping.horizon, slow, lost, clean, dirty, is_end=True)
        return min(slow, clean) if self.info["is_output"] else min(slow, lost, clean, dirty)

    def held(self, start: int, end: int) -> int:
        """What the place of the tensor costs during steps ``[start, end)``."""
        until, cut_at = self.mapping.until, self.mapping.cut_at
        cost = self.units * (until[end] - until[start])
        cuts = self.paid[bisect_left(cut_at, end)] - self.paid[bisect_left(cut_at, start)] if cut_at else 0
        return int(cost + cuts)

    def _gap(
        self, first: int, last: int, slow: int, lost: int, clean: int, dirty: int, *, is_end: bool = False
    ) -> tuple[int, int, int, int]:
        """States at the end of the gap from boundary ``first`` to ``last``, from those at its start."""
        leave = self.free.after[first]
        stay = self.held(first, last)
        end = self.copy.before[last]
        if leave <= last or is_end:
            held = self.held(first, min(leave, last))
            lost = min(lost, clean + held, dirty + held)
            slow = min(slow, clean + held)
        clean += 0 if is_end else stay
        if self.may_copy and end >= first and dirty < NEVER:
            begin, channel, duration = self.copy.after[self.since], self.mapping.channel, self.info["copy_out_ps"]
            if channel.fits(begin, end, duration):
                clean = min(clean, dirty + stay + duration * channel.least(begin, end))
            slow = min(slow, dirty + self._evicted(first, end))
        dirty += 0 if is_end else stay
        if slow < NEVER:
            self.left.append((first, slow))
            if self.may_copy and end >= first and not is_end:
                clean = min(clean, self._copied_in(last, end))
        return slow, lost, clean, dirty

    def _evicted(self, first: int, end: int) -> int:
        """Cost, or less, of a copy-out after which the tensor leaves in this gap: the shortest stay, the cheapest time."""
        begin, duration = self.copy.after[self.since], self.info["copy_out_ps"]
        at = self.copy.after[max(first, begin)]
        while at <= end and not self.mapping.channel.fits(begin, at, duration):
            at = self.copy.after[at + 1] if at < end else end + 1
        return NEVER if at > end else self.held(first, at) + int(duration) * self.mapping.channel.least(begin, end)

    def _copied_in(self, last: int, end: int) -> int:
        """Least cost of a path that is slow until a copy-in starts, and landed at boundary ``last``.

        The copy may start in an earlier gap, and pass over slow reads.
        """
        channel, begin, at = self.mapping.channel, self.copy.after[self.since], end
        duration: int = self.info["copy_in_ps"]
        while at >= begin and not channel.fits(at, end, duration):
            at = self.copy.before[at - 1] if at > begin else -1
        found, gap = NEVER, len(self.left) - 1
        for _ in range(MOST_LOOKS):
            if at < begin:
                return found
            while gap and self.left[gap][0] > at:
                gap -= 1
            # The slices of a sliced copy may come late, all but a first one that takes the time.
            price, held = channel.least(at, end), self.held(end if self.sliced else at, last)
            found = min(found, self.left[gap][1] + held + duration * price)
            if price * duration == 0 or self.left[-1][1] + held >= found:
                return found
            at = self.copy.before[at - 1] if at > begin else -1
        # No earlier start holds less memory, has a cheaper copy, or comes after less that was paid.
        return min(found, self.left[-1][1] + held + duration * channel.least(begin, end))


def prices(problem: Fields, proof: Fields, splits: Splits) -> int:
    """Least objective in ps. A decision of a split is the number of a use: whether it is fast."""
    return Mapping(problem, proof).bound(splits)
