"""Form ``prices`` of memory mapping: Lagrangian duality, with the cheapest path of each tensor by dynamic programming.

Memory has a price at each step, the time of copies at each moment, a preload has one, and each use has what a tensor earns by
being fast there. Then, for every plan,

    denominator * latency >= sum over steps of the least of (weighted latency + what its fast uses earn)
                           + sum over tensors of the cost of the cheapest path through its accesses
                           - what all memory, all time of the channels and all preloads would cost

Rules are those of docs/reference/memory-mapping.md; what offsets and the order of copies forbid is left out.

Between two accesses a tensor may be copied out, be given up, stay, or be copied in.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from stowplan.certificates.checker.mapping_costs import NEVER, Mapping, least_of_step
from stowplan.certificates.checker.prices import Splits
from stowplan.certificates.checker.problems import TOO_LARGE
from stowplan.certificates.checker.reading import LARGEST, Fields, bound_of

#: What each access of a tensor earns, and the tensor pays, where all of them are to be fast or none: more than uses are worth.
#: There are fewer than LARGEST / TOO_LARGE accesses, so that all together earn less than NEVER.
TOGETHER = LARGEST * TOO_LARGE

#: Boundaries at which a copy is looked at one by one; beyond them a bound that holds for all is taken.
MOST_LOOKS = 200

#: In the place of a use's number: none. The last entry of what uses earn stands for it.
NO_USE = -1


class Access(NamedTuple):
    """What one step does with a tensor: the numbers of its uses."""

    step: int
    read: int = NO_USE
    write: int = NO_USE


class States(NamedTuple):
    """Least cost so far of each state that a tensor may be in."""

    slow: int
    """Valid in slow memory, and not in fast memory."""
    lost: int
    """Valid nowhere."""
    clean: int
    """In fast memory, and valid in slow memory, too."""
    dirty: int
    """In fast memory, and valid there alone."""


def prices(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Least objective in ps. A decision of a split is the number of a use: whether it is fast."""
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
    for tensor, own in enumerate(accesses):
        earns = any(mapping.earned[use] > 0 for access in own.values() for use in (access.read, access.write))
        # With nothing to earn, slow memory is best, and costs nothing.
        if mapping.fits(tensor) and earns:
            total += min(0, Path(mapping, tensor, [*own.values()]).least())
    return bound_of(total, mapping.denominator)


class Path:
    """One tensor, from access to access."""

    def __init__(self, mapping: Mapping, tensor: int, accesses: list[Access]):
        self.mapping, self.tensor, self.accesses = mapping, tensor, accesses
        self.facts: Fields = mapping.problem["tensors"][tensor]
        is_uniform = mapping.problem["alias_rule"] == "uniform" and len(self.facts["members"]) > 1
        self.extra = TOGETHER if is_uniform else 0
        """What each fast access earns, and the tensor pays for each, where its members are fast together, or not at all."""
        is_local = not (self.facts["is_input"] or self.facts["is_output"])
        start, end = accesses[0].step, accesses[-1].step
        # Loops that hold all accesses of a tensor do not bind it, but then it has no copies.
        outside = tuple(loop for loop in mapping.loops if not (is_local and loop[0] <= start and end < loop[1]))
        self.free = mapping.boundaries_outside(outside)
        """Boundaries at which it may come and go."""
        self.copies = mapping.boundaries_outside(mapping.loops) if outside == mapping.loops else []
        """Boundaries at which copies of it may start and end."""
        self.written = 0
        """The boundary after its last write."""

    def least(self) -> int:
        """Its cost: of what is needed after the program, with a valid place in slow memory."""
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
        """What its place costs during steps ``[start, end)``."""
        return self.mapping.held(self.tensor, start, end)

    def _begin(self) -> States:
        """An input is in slow memory, or preloaded; all else has no value yet."""
        if not self.facts["is_input"]:
            return States(NEVER, 0, NEVER, NEVER)
        can_preload = self.mapping.problem["max_preloads"] > 0
        return States(0, NEVER, self.mapping.preload_price if can_preload else NEVER, NEVER)

    def _gap(self, states: States, first: int, step: int) -> States:
        """Between two accesses, from boundary ``first`` to ``step``.

        clean <- dirty + copy-out; slow and lost <- clean or dirty, held up to the first boundary at which it may go;
        clean <- clean, held, or slow + copy-in; dirty <- dirty, held
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
        """Fast or slow where it is valid in both; a value that is nowhere is not read."""
        held, earned = self._during(access)
        return States(states.slow, NEVER, states.clean + held - max(0, earned), states.dirty + held - earned)

    def _write(self, states: States, access: Access) -> States:
        """Fast, also with a place that begins here, which makes it dirty; or slow. What is updated is read first."""
        slow, lost, clean, dirty = states
        is_read = access.read != NO_USE
        held, earned = self._during(access)
        begun = NEVER if is_read or self._next_free(access.step) != access.step else min(slow, lost)
        return States(slow if is_read else min(slow, lost), NEVER, NEVER, min(begun, clean, dirty) + held - earned)

    def _during(self, access: Access) -> tuple[int, int]:
        """What its place costs during a step, and what a fast access earns."""
        earned = self.mapping.earned[access.read] + self.mapping.earned[access.write] + self.extra
        return self.held(access.step, access.step + 1), earned

    def _next_free(self, boundary: int) -> int:
        """The first boundary from one on at which it may come and go."""
        return self.free[bisect_left(self.free, boundary)]

    def _window(self, first: int, last: int) -> list[int]:
        """Boundaries for copies from the last write to the end of a gap, where one is in the gap."""
        low, high = bisect_left(self.copies, self.written), bisect_right(self.copies, last)
        return self.copies[low:high] if low < high and self.copies[high - 1] >= first else []

    def _copied_out(self, first: int, last: int) -> int:
        """Least cost of a copy-out that ends in a gap, or less."""
        window = self._window(first, last)
        return self.mapping.copied(window[0], window[-1], self.facts["copy_out_ps"]) if window else NEVER

    def _copied_in(self, first: int, last: int) -> int:
        """Least cost of a copy-in that has landed by the end of a gap, and of the place from its start on, or less.

        The copy may start in an earlier gap, and pass over slow reads.
        """
        best, window = NEVER, self._window(first, last)
        is_sliced = self.mapping.problem["prefetches"] == "sliced"
        for look, start in enumerate(reversed(window)):
            earliest = start if look < MOST_LOOKS else window[0]
            paid = self.mapping.copied(earliest, window[-1], self.facts["copy_in_ps"])
            # The slices of a sliced copy may come late, all but a first one that takes the time.
            held = self.held(window[-1] if is_sliced else start, last)
            best = min(best, held + paid)
            # No earlier start holds less memory.
            if paid == 0 or held >= best or look == MOST_LOOKS:
                break
        return best
