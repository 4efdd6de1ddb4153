"""Form ``prices`` of memory mapping: Lagrangian duality, with the cheapest path of each tensor by dynamic programming.

A unit of memory has a price at each step, the time of copies has a price at each moment, and each preload has one price. Each
use has an amount that its tensor earns if the use is *fast*, that is, in fast memory. Then, for every plan,

    denominator * latency >= sum over steps of the least of (weighted latency + amounts that its fast uses earn)
                           + sum over tensors of the cost of the cheapest path through its accesses
                           - price of all memory, all time of the channels and all preloads

On the left is the latency of the program. The *weighted latency* of a step is a product of three factors: its latency, its
``weight`` (the number of times that it runs), and the price of a picosecond of the step (:meth:`Mapping.latency_price`).

The rules are those of docs/reference/memory-mapping.md. Restrictions on offsets and on the order of copies are ignored, which
can only make the bound smaller.

An *access* is a step that uses a tensor, and a *gap* is the time between two accesses. In a gap, a tensor may be copied out, be
given up, stay, or be copied in. Boundary ``b`` is the moment before step ``b``; the last boundary is the end of the program. A
*cut* is an inequality about the memory of one step, rounded as in :func:`stowplan.certificates.checker.prices.rounded`. The
latency of a step is a table with an entry for each set of fast uses, or the largest of several affine functions, its *pieces*.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from stowplan.certificates.checker.prices import MAX_COMBINATIONS, Splits, cheapest, rounded
from stowplan.certificates.checker.reading import LARGEST, TOO_LARGE, Fields, bound_of, list_field, numbers, whole

#: Cost of a decision that no plan makes; it is more than all accesses earn.
NEVER = LARGEST * LARGEST

#: A boundary at which no copy starts.
NOWHERE = -1

#: A loop: the boundaries at which it begins and ends.
Loop = tuple[int, int]


class Mapping:
    """A problem with prices. All amounts are multiples of one over the denominator."""

    def __init__(self, problem: Fields, proof: Fields):
        self.problem, self.denominator = problem, whole(proof, "denominator", 1)
        self.horizon = len(problem["steps"])
        self.loops: tuple[Loop, ...] = tuple((loop["start"], loop["end"]) for loop in problem["loops"])
        self.has_stalls: bool = problem["stalls"] == "allowed"
        self.preload_price = whole(proof, "preload", default=0)
        uses = sum(len(step["uses"]) for step in problem["steps"])
        self.earned = [*numbers(proof, "access", -LARGEST, uses), 0]
        """Amount that each use earns if it is fast. The last entry stands for no use."""
        self.wait_price = self.denominator // problem["channels"] if self.has_stalls else NEVER
        """Price of a picosecond of a copy that runs during a stall. A picosecond of stall costs ``denominator``, and each
        channel can copy for a picosecond meanwhile, so each channel pays an equal part of the cost. Stalls happen at
        boundaries; if they are forbidden, no copy can run at a boundary."""
        self.channel_price = [min(price, self.wait_price) for price in numbers(proof, "channel", length=self.horizon)]
        """Price of a copy's time during each step."""
        # Lower bounds of the time that each step takes, in picoseconds: its latency times its weight.
        floors = [step["weight"] * least_of_step(step, 1, [0] * len(step["uses"]), 0) for step in problem["steps"]]
        self.time_until = None if self.has_stalls else [0, *accumulate(floors)]
        """Time up to each boundary. None if stalls are allowed, because copies then have more time."""
        self.memory_until = [0, *accumulate(numbers(proof, "memory", length=self.horizon))]
        """Price of a unit of memory in all steps before each boundary."""
        self.units = [-(-tensor["size"] // problem["alignment"]) for tensor in problem["tensors"]]
        """Size of each tensor in units of the alignment."""
        self.room = -(-problem["capacity"] // problem["alignment"])
        self.limits = self._limits(floors)
        """Price of all limited resources together."""
        self.cuts: list[list[tuple[int, int]]] = [[(-1, 0)] for _ in self.units]
        """For each tensor, rows (step, price of the tensor in all cuts of steps up to this one), by ascending steps."""
        self._read_cuts(proof)
        self.boundaries_outside = cache(self._boundaries_outside)

    def _limits(self, floors: list[int]) -> int:
        """Price times limit of all resources: memory of each step, preloads, and, without stalls, time of all channels in each
        step."""
        limits = self.room * self.memory_until[-1] + self.preload_price * self.problem["max_preloads"]
        if not self.has_stalls:
            limits += int(self.problem["channels"] * sum(map(int.__mul__, self.channel_price, floors)))
        return int(limits)

    def _read_cuts(self, proof: Fields) -> None:
        """Reads the cuts of a proof. Each has a price and a rounded inequality ``sum of units <= room`` for the memory of one
        step."""
        for cut in sorted(list_field(proof, "cuts"), key=lambda cut: whole(cut, "step")):
            step, price = whole(cut, "step"), whole(cut, "price")
            cut_units, room = rounded(cut, self.units, self.room)
            self.limits += room * price
            for tensor_cuts, units in zip(self.cuts, cut_units, strict=True):
                tensor_cuts += [(step, tensor_cuts[-1][1] + units * price)] if units else []

    def _boundaries_outside(self, loops: tuple[Loop, ...]) -> list[int]:
        """Boundaries that are not strictly inside any of these loops."""
        inside = (range(start + 1, end) for start, end in loops)
        return sorted({*range(self.horizon + 1)}.difference(*inside))

    def fits(self, tensor: int) -> bool:
        """Whether a tensor fits into fast memory."""
        return bool(self.units[tensor] <= self.room)

    def latency_price(self, step: int) -> int:
        """Price of a picosecond of a step. It is the denominator if stalls are forbidden. If they are allowed, each channel can
        copy for as long as the step takes, and the price of this time of all channels is subtracted."""
        return int(self.denominator - self.problem["channels"] * self.channel_price[step] * self.has_stalls)

    def held(self, tensor: int, start: int, end: int) -> int:
        """Price of the fast memory that a tensor occupies during steps ``[start, end)``."""
        cuts = self.cuts[tensor]
        before, after = (bisect_left(cuts, (step,)) - 1 for step in (start, end))
        return int(self.units[tensor] * (self.memory_until[end] - self.memory_until[start]) + cuts[after][1] - cuts[before][1])

    def copied(self, start: int, end: int, duration: int) -> int:
        """Minimum cost of a copy between two boundaries, as if all of it ran at the moment at which time is cheapest. It is
        NEVER if there is too little time."""
        # If stalls are allowed, a copy-out may start and end at the same boundary. With ``evictions`` = ``whole_steps``, the
        # tensor must then stay in fast memory for one more step, which does not exist at the end of the program.
        is_too_late = start == (self.horizon if self.problem["evictions"] == "whole_steps" else NOWHERE)
        if is_too_late or (self.time_until and (start >= end or self.time_until[end] - self.time_until[start] < duration)):
            return NEVER
        return duration * min([self.wait_price, *self.channel_price[start:end]])


def least_of_step(step: Fields, factor: int, prices: list[int], most_sets: int = MAX_COMBINATIONS) -> int:
    """Minimum of ``factor * latency + sum of the prices of fast uses`` over all sets of fast uses, or a smaller number if there
    are more than ``most_sets`` sets. ``prices`` has the price of each use."""
    roles = _roles(step)
    if step["table"] is not None:
        return _least_by_table(step["table"], factor, prices, roles)
    return _least_by_pieces(step["pieces"], factor, prices, roles, most_sets)


def _roles(step: Fields) -> list[list[int]]:
    """Uses of each tensor in a step. A tensor that is updated in place is fast in both uses, or in none."""
    uses = step["uses"]
    return [[at for at, use in enumerate(uses) if use["tensor"] == tensor] for tensor in {use["tensor"] for use in uses}]


def _least_by_table(table: Fields, factor: int, prices: list[int], roles: list[list[int]]) -> int:
    """Minimum of ``factor * latency_ps[set] + price of the set`` over sets of fast uses. A set is a number with a bit for each
    use that the table lists. ``roles`` are the uses of each tensor, as in :func:`_roles`."""
    sets = {0: 0}
    for uses in roles:
        bits = sum(1 << table["uses"].index(use) for use in uses if use in table["uses"])
        price = sum(prices[use] for use in uses)
        for uses_set, paid in [*sets.items()]:
            sets[uses_set | bits] = min(sets.get(uses_set | bits, paid + price), paid + price)
    return int(min(factor * table["latency_ps"][uses_set] + paid for uses_set, paid in sets.items()))


def _least_by_pieces(pieces: list[Fields], factor: int, prices: list[int], roles: list[list[int]], most_sets: int) -> int:
    """The same minimum for a latency in pieces, ``latency = max over pieces of base + sum over uses of slow or fast``."""
    slow = [factor * (piece["base_ps"] + sum(piece["slow_ps"])) for piece in pieces]
    choices = []
    for uses in roles:
        price = sum(prices[use] for use in uses)
        gains = [sum(piece["fast_ps"][use] - piece["slow_ps"][use] for use in uses) for piece in pieces]
        choices.append([[0 for _ in pieces], [price + factor * gain for gain in gains]])
    return cheapest(slow, choices, most_sets)


#: Large amount for a tensor whose accesses must be all fast or all slow. The tensor pays it for each access, and each fast
#: access earns it. A path with only fast accesses then has its usual cost. A path with a slow access costs more than 0, because
#: the amount is more than all uses earn. It is therefore never better than leaving the tensor in slow memory, which costs 0.
#: There are fewer than LARGEST / TOO_LARGE accesses, so that all together earn less than NEVER.
ALL_OR_NONE = LARGEST * TOO_LARGE

#: Number of boundaries at which the start of a copy is examined one by one; beyond them, a bound that holds for all is used.
MAX_EXAMINED = 200

#: Stands for no use. The last entry of ``earned`` belongs to it.
NO_USE = -1


class Access(NamedTuple):
    """The uses of a tensor by one step."""

    step: int
    read: int = NO_USE
    write: int = NO_USE


class States(NamedTuple):
    """Minimum cost so far of each state that a tensor may be in."""

    slow: int
    """Valid in slow memory, and not in fast memory."""
    lost: int
    """Valid in neither memory."""
    clean: int
    """In fast memory, and also valid in slow memory."""
    dirty: int
    """In fast memory, and valid only there."""


def prices(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Returns the bound on the objective, in ps, that the prices show. ``splits`` has the costs that a tree of splits adds to
    decisions (:data:`stowplan.certificates.checker.prices.Splits`). Here, decision ``(i,)`` is whether use i is fast."""
    mapping = Mapping(problem, proof)
    accesses: list[dict[int, Access]] = [{} for _ in mapping.units]
    total, first = splits[()] - mapping.limits, 0
    for number, step in enumerate(problem["steps"]):
        paid = list[int]()
        for use, part in enumerate(step["uses"], first):
            tensor = part["tensor"]
            role = {"write": use} if part["is_output"] else {"read": use}
            accesses[tensor][number] = accesses[tensor].get(number, Access(number))._replace(**role)
            paid.append(mapping.earned[use] + splits[use,] if mapping.fits(tensor) else NEVER)
        total += least_of_step(step, step["weight"] * mapping.latency_price(number), paid)
        first += len(paid)
    for tensor, tensor_accesses in enumerate(accesses):
        earns = any(mapping.earned[use] > 0 for access in tensor_accesses.values() for use in (access.read, access.write))
        # A tensor that earns nothing is best in slow memory, which costs nothing.
        if mapping.fits(tensor) and earns:
            total += min(0, Path(mapping, tensor, [*tensor_accesses.values()]).least())
    return bound_of(total, mapping.denominator)


class Path:
    """The path of one tensor through its accesses."""

    def __init__(self, mapping: Mapping, tensor: int, accesses: list[Access]):
        self.mapping, self.tensor, self.accesses = mapping, tensor, accesses
        self.facts: Fields = mapping.problem["tensors"][tensor]
        is_uniform = mapping.problem["alias_rule"] == "uniform" and len(self.facts["members"]) > 1
        self.extra = ALL_OR_NONE if is_uniform else 0
        """Amount that each fast access earns, and that the tensor pays for each access (:data:`ALL_OR_NONE`)."""
        is_local = not (self.facts["is_input"] or self.facts["is_output"])
        start, end = accesses[0].step, accesses[-1].step
        # A tensor may neither enter nor leave fast memory strictly inside a loop. The exception is a loop that contains all
        # accesses of a tensor that is neither input nor output: there the tensor may do so, but then it has no copies at all.
        outside = tuple(loop for loop in mapping.loops if not (is_local and loop[0] <= start and end < loop[1]))
        held = tuple((each["start"], each["end"]) for each in mapping.problem.get("in_flight", ()) if each["tensor"] == tensor)
        # A tensor in use by an asynchronous operation can neither enter nor leave fast memory before the operation ends.
        self.free = mapping.boundaries_outside(outside + held)
        """Boundaries at which it may enter or leave fast memory."""
        self.copies = mapping.boundaries_outside(mapping.loops) if outside == mapping.loops else []
        """Boundaries at which copies of it may start and end."""
        self.written = 0
        """The boundary after its last write."""

    def least(self) -> int:
        """The cost of the cheapest path. A tensor that is needed after the program must be valid in slow memory at the end."""
        first, horizon = 0, self.mapping.horizon
        states = self._begin()
        for access in self.accesses:
            states = self._gap(states, first, access.step)
            first = access.step + 1
            if access.write == NO_USE:
                states = self._read(states, access)
            else:
                states = self._write(states, access)
                self.written = first
        clean = min(states.clean, states.dirty + self._copied_out(first, horizon))
        slowest = min(states.slow, clean)
        ended = slowest if self.facts["is_output"] else min(slowest, states.lost, states.dirty)
        return self.extra * len(self.accesses) + ended

    def held(self, start: int, end: int) -> int:
        """Price of the fast memory that the tensor occupies during steps ``[start, end)``."""
        return self.mapping.held(self.tensor, start, end)

    def _begin(self) -> States:
        """The states at the start: an input is in slow memory, or preloaded; every other tensor has no value yet."""
        if not self.facts["is_input"]:
            return States(NEVER, 0, NEVER, NEVER)
        can_preload = self.mapping.problem["max_preloads"] > 0
        return States(0, NEVER, self.mapping.preload_price if can_preload else NEVER, NEVER)

    def _gap(self, states: States, first: int, step: int) -> States:
        """The states after the gap between two accesses, from boundary ``first`` to ``step``.

        The tensor can change its state in these ways, in this order:

        - A copy-out makes a dirty tensor clean.
        - A clean tensor leaves fast memory and is then slow or lost; a dirty one that leaves is lost. It pays for the memory up
          to the first boundary at which it may leave.
        - A copy-in makes a slow tensor clean.
        - A clean or dirty tensor stays as it is, and pays for the memory during the gap.
        """
        slow, lost, clean, dirty = states
        if dirty < NEVER:
            clean = min(clean, dirty + self._copied_out(first, step))
        leaves, stays = self._next_free(first), self.held(first, step)
        if leaves <= step:
            held = self.held(first, leaves)
            slow, lost = min(slow, clean + held), min(lost, clean + held, dirty + held)
        return States(slow, lost, min(clean + stays, slow + self._copied_in(first, step)), dirty + stays)

    def _read(self, states: States, access: Access) -> States:
        """The states after a read. The read is fast if the tensor is dirty, slow if it is only in slow memory, and the cheaper
        of both if it is clean. A tensor that is lost cannot be read."""
        held, earned = self._during(access)
        return States(states.slow, NEVER, states.clean + held - max(0, earned), states.dirty + held - earned)

    def _write(self, states: States, access: Access) -> States:
        """The states after a write.

        After a slow write, the tensor is valid only in slow memory; a fast write makes it dirty. For a fast write, the tensor
        is in fast memory already, or enters it at this step without a copy. It cannot enter without a copy if the step also
        reads it, because its present value is then needed.
        """
        slow, lost, clean, dirty = states
        is_read = access.read != NO_USE
        held, earned = self._during(access)
        begun = NEVER if is_read or self._next_free(access.step) != access.step else min(slow, lost)
        return States(slow if is_read else min(slow, lost), NEVER, NEVER, min(begun, clean, dirty) + held - earned)

    def _during(self, access: Access) -> tuple[int, int]:
        """The price of the tensor's memory during a step, and the amount that a fast access earns."""
        earned = self.mapping.earned[access.read] + self.mapping.earned[access.write] + self.extra
        return self.held(access.step, access.step + 1), earned

    def _next_free(self, boundary: int) -> int:
        """The first boundary, from this one on, at which the tensor may enter or leave fast memory."""
        return self.free[bisect_left(self.free, boundary)]

    def _window(self, first: int, last: int) -> list[int]:
        """Boundaries at which a copy that ends in the gap from ``first`` to ``last`` may start or end: those of ``copies`` from
        the last write of the tensor to ``last``. The list is empty if none of them is in the gap itself."""
        low, high = bisect_left(self.copies, self.written), bisect_right(self.copies, last)
        return self.copies[low:high] if low < high and self.copies[high - 1] >= first else []

    def _copied_out(self, first: int, last: int) -> int:
        """Minimum cost of a copy-out that ends in a gap, or a smaller number."""
        window = self._window(first, last)
        return self.mapping.copied(window[0], window[-1], self.facts["copy_out_ps"]) if window else NEVER

    def _copied_in(self, first: int, last: int) -> int:
        """Minimum cost of a copy-in that has ended by the end of a gap, and of the fast memory that it occupies from its start
        on, or a smaller number.

        The copy may start in an earlier gap and continue during slow reads.
        """
        best, window = NEVER, self._window(first, last)
        is_sliced = self.mapping.problem["prefetches"] == "sliced"
        for examined, start in enumerate(reversed(window)):
            earliest = start if examined < MAX_EXAMINED else window[0]
            paid = self.mapping.copied(earliest, window[-1], self.facts["copy_in_ps"])
            # The slices of a sliced copy may arrive one after the other up to the end of the window. The memory that they
            # occupy before is ignored, which can only make the bound smaller.
            held = self.held(window[-1] if is_sliced else start, last)
            best = min(best, held + paid)
            # An earlier start never needs less memory.
            if paid == 0 or held >= best or examined == MAX_EXAMINED:
                break
        return best
