"""The banked packing problem: buffers with fixed live ranges, and several banks of memory with fixed sizes and costs.

The rules are on docs/reference/banked-packing.md. A *bank* is one of several memories. This module also has a bound and a test
of infeasibility that need no search.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import TYPE_CHECKING

import msgspec

from stowplan import files
from stowplan.checks import expect, expect_range, expect_unique
from stowplan.document import ProblemDocument
from stowplan.errors import InputError
from stowplan.models.packing.problem import Part, SizedLife, check_parts
from stowplan.models.placement.items import Item, Memory, Placement

if TYPE_CHECKING:
    from stowplan.models.banked_packing.plan import Plan  # noqa: F401

#: Times, bytes and the cost of any plan stay below this in absolute value.
LIMIT = 1 << 60


class Bank(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A bank: one of several memories, with a size, a cost of accesses and an alignment."""

    name: str
    """Name of the bank, which no other bank has."""
    capacity: int
    """Size of the bank in bytes, including the reserved bytes."""
    cost: int
    """Cost of reading or writing one byte once, in any unit; a faster bank has a lower cost."""
    alignment: int = 1
    """Offsets in the bank are multiples of this number of bytes, and sizes of buffers are rounded up to it."""
    reserved: int = 0
    """Number of bytes at the start of the bank that must not be used."""


class Buffer(SizedLife, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tensor or other data that occupies bytes of one bank, at one offset, during its whole live range."""

    uses: int = 1
    """How often all of its bytes are read or written."""
    alignment: int = 1
    """The offset is a multiple of this number of bytes."""
    banks: tuple[str, ...] = ()
    """Names of the banks that the buffer may be placed in; empty for all banks."""


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A banked packing problem. Constructing one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    buffers: tuple[Buffer, ...]
    """The buffers. Their *numbers* are their positions in this tuple."""
    banks: tuple[Bank, ...]
    """The banks. Their *numbers* are their positions in this tuple."""
    parts: tuple[Part, ...] | msgspec.UnsetType = msgspec.UNSET
    """Tensors of a model that lie inside a buffer, as in packing: views, and outputs of operators that overwrite an input.
    Files omit the field if there are none."""
    results: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ids of the buffers and parts that the model returns, in its order. Files omit the field if the problem was not read from
    a model."""
    name: str = ""
    """Name of the problem, for people."""
    format: str = "stowplan.banked_packing.problem"
    version: int = 1

    def __post_init__(self) -> None:
        names = {bank.name for bank in self.banks}
        if not self.banks or len(names) < len(self.banks):
            raise InputError(
                f"found {len(self.banks)} banks of {len(names)} names, expected at least one, each of its own name"
            )
        for number, bank in enumerate(self.banks):
            place = f"banks[{number}] ({bank.name})"
            expect_range(place, "capacity", bank.capacity, 0, LIMIT)
            expect_range(place, "cost", bank.cost, 0, LIMIT)
            expect_range(place, "alignment", bank.alignment, 1, LIMIT)
            expect_range(place, "reserved", bank.reserved, 0, LIMIT)
        highest_cost = max(bank.cost for bank in self.banks)
        largest_alignment = max(bank.alignment for bank in self.banks)
        expect_unique((buffer.id for buffer in self.buffers), "buffers")
        check_parts(self.buffers, self.parts or (), self.results or ())
        total_bytes = total_cost = 0
        for number, buffer in enumerate(self.buffers):
            place = f"buffers[{number}] ({buffer.id})"
            expect_range(place, "lower", abs(buffer.lower), 0, LIMIT)
            expect_range(place, "upper", abs(buffer.upper), 0, LIMIT)
            expect(buffer.lower < buffer.upper, place, f"upper {buffer.upper}", f"more than lower, {buffer.lower}")
            expect_range(place, "size", buffer.size, 0, LIMIT)
            expect_range(place, "uses", buffer.uses, 0, LIMIT)
            expect_range(place, "alignment", buffer.alignment, 1, LIMIT)
            for name in buffer.banks:
                expect(name in names, place, f"bank {name!r}", f"one of {', '.join(sorted(names))}")
            total_bytes += buffer.size + buffer.alignment * largest_alignment
            total_cost += buffer.size * buffer.uses * highest_cost
            if max(total_bytes, total_cost) >= LIMIT:
                raise InputError(f"the bytes, or what they cost, add up to more than {LIMIT - 1}", place=place)

    @cached_property
    def allowed(self) -> tuple[tuple[int, ...], ...]:
        """For each buffer, the numbers of the banks that it may be placed in and fits into alone, cheapest first."""
        by_cost = sorted(range(len(self.banks)), key=lambda bank: (self.banks[bank].cost, bank))
        allowed = []
        for number, buffer in enumerate(self.buffers):
            names = set(buffer.banks) or {bank.name for bank in self.banks}
            allowed.append(
                tuple(
                    bank
                    for bank in by_cost
                    if self.banks[bank].name in names
                    and self.lowest_offset_in(number, bank) + self.size_in(number, bank) <= self.banks[bank].capacity
                )
            )
        return tuple(allowed)

    def size_in(self, buffer: int, bank: int) -> int:
        """Size in bytes of a buffer in a bank: its size rounded up to the bank's alignment."""
        unit = self.banks[bank].alignment
        return self.buffers[buffer].size + -self.buffers[buffer].size % unit

    def bottom(self, bank: int) -> int:
        """The first offset in bytes after the reserved bytes of a bank, rounded up to the bank's alignment."""
        return self.banks[bank].reserved + -self.banks[bank].reserved % self.banks[bank].alignment

    def step(self, buffer: int, bank: int) -> int:
        """Alignment in bytes of a buffer's offset in a bank: the least common multiple of both alignments."""
        return lcm(self.buffers[buffer].alignment, self.banks[bank].alignment)

    def lowest_offset_in(self, buffer: int, bank: int) -> int:
        """Lowest offset in bytes that a buffer may have in a bank."""
        return self.banks[bank].reserved + -self.banks[bank].reserved % self.step(buffer, bank)

    def usable_bytes(self, bank: int) -> int:
        """Number of bytes of a bank that buffers may use."""
        return max(0, self.banks[bank].capacity - self.bottom(bank))

    def traffic(self, buffer: int) -> int:
        """Bytes of a buffer that are read and written in total: its size times the number of its uses."""
        return self.buffers[buffer].size * self.buffers[buffer].uses

    def cost(self, buffer: int, bank: int) -> int:
        """Cost of placing a buffer in a bank."""
        return self.traffic(buffer) * self.banks[bank].cost

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of everything that plans depend on; name, parts and results are left out."""
        return files.digest([self.buffers, self.banks])


@dataclass(frozen=True)
class Overload:
    """A reason why a problem is infeasible: buffers that do not all fit."""

    buffers: tuple[int, ...]
    """Numbers of the buffers."""
    reason: str
    """The reason as one sentence for people."""


def floor_bound(problem: Problem) -> int:
    """Lower bound on the cost of any plan: the cost if every buffer could be in the cheapest bank that may hold it.

    A buffer that fits into no bank counts as 0.
    """
    return sum(min((problem.cost(number, bank) for bank in banks), default=0) for number, banks in enumerate(problem.allowed))


def placement_of(problem: Problem) -> Placement:
    """The problem in the terms of :mod:`stowplan.models.placement.items`: buffers are items, banks are memories."""
    pairs = [(number, bank) for number, banks in enumerate(problem.allowed) for bank in banks]
    return Placement(
        items=[
            Item(buffer.lower, buffer.upper, {bank: problem.size_in(number, bank) for bank in problem.allowed[number]})
            for number, buffer in enumerate(problem.buffers)
        ],
        memories=[Memory(problem.usable_bytes(number), bank.capacity) for number, bank in enumerate(problem.banks)],
        steps={pair: problem.step(*pair) for pair in pairs},
        lowest={pair: problem.lowest_offset_in(*pair) for pair in pairs},
    )


def find_overload(problem: Problem) -> Overload | None:
    """A reason why no plan exists, if one can be found without a search; otherwise None, which does not prove that a plan
    exists.

    There are two reasons: a buffer fits into none of its banks, or a set of banks is too small for buffers that are live at
    the same time and may only be placed in these banks.
    """
    for number, banks in enumerate(problem.allowed):
        if not banks:
            buffer = problem.buffers[number]
            banks_text = " or ".join(buffer.banks) if buffer.banks else "any bank"
            capacities = ", ".join(f"{bank.name} {problem.usable_bytes(at)}" for at, bank in enumerate(problem.banks))
            return Overload(
                (number,), f"buffer {buffer.id} of {buffer.size} bytes does not fit in {banks_text} (bytes: {capacities})"
            )
    every = frozenset(range(len(problem.banks)))
    for live_set in placement_of(problem).maximal_live_sets:
        # Buffers of 0 bytes are no part of a reason.
        live = [number for number in live_set if problem.buffers[number].size]
        # Buffers that may only be in a subset of the banks must fit there. The subsets that are checked are those of single
        # buffers, and the set of all banks.
        for subset in {frozenset(problem.allowed[number]) for number in live} | {every}:
            confined = [number for number in live if subset.issuperset(problem.allowed[number])]
            needed = sum(problem.buffers[number].size for number in confined)
            usable = sum(problem.usable_bytes(bank) for bank in subset)
            if needed > usable:
                names = ", ".join(problem.banks[bank].name for bank in sorted(subset))
                ids = ", ".join(problem.buffers[number].id for number in confined[:6]) + (", ..." if len(confined) > 6 else "")
                reason = f"{len(confined)} buffers ({ids}) live at once and take {needed} bytes, and {names} have {usable}"
                return Overload(tuple(confined), reason)
    return None
