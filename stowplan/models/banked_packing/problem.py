"""The instance of banked packing: buffers of fixed lives, and banks of memory of fixed sizes.

See docs/reference/banked-packing.md.

A bound, and why nothing fits, can be said of it at once.
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
    """A memory."""

    name: str
    capacity: int
    """Bytes, those that are reserved among them. Hard."""
    cost: int
    """Of one byte of one use, in any unit: lower is faster."""
    alignment: int = 1
    """Offsets in it are multiples of this many bytes, and a buffer takes a multiple of it."""
    reserved: int = 0
    """Bytes at its bottom that are not to be used."""


class Buffer(SizedLife, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that takes bytes of one bank, at one offset, for its whole life."""

    uses: int = 1
    """How often all of its bytes are read or written."""
    alignment: int = 1
    """Its offset is a multiple of this many bytes."""
    banks: tuple[str, ...] = ()
    """Names of the banks it may be in; empty for all."""


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A validated instance; construction raises :class:`~stowplan.errors.InputError` where it breaks a rule."""

    buffers: tuple[Buffer, ...]
    banks: tuple[Bank, ...]
    parts: tuple[Part, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of a graph, as in packing: views, and results of operators in the place of operands. Left out of files that have none."""
    results: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ids of the buffers and parts that the graph returns, in its order. Left out where there is no graph."""
    name: str = ""
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
        most = max(bank.cost for bank in self.banks)
        coarsest = max(bank.alignment for bank in self.banks)
        expect_unique((buffer.id for buffer in self.buffers), "buffers")
        check_parts(self.buffers, self.parts or (), self.results or ())
        total = worst = 0
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
            total += buffer.size + buffer.alignment * coarsest
            worst += buffer.size * buffer.uses * most
            if max(total, worst) >= LIMIT:
                raise InputError(f"the bytes, or what they cost, add up to more than {LIMIT - 1}", place=place)

    @cached_property
    def allowed(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the banks each buffer may be in and is not too large for, cheapest first."""
        order = sorted(range(len(self.banks)), key=lambda bank: (self.banks[bank].cost, bank))
        allowed = []
        for number, buffer in enumerate(self.buffers):
            names = set(buffer.banks) or {bank.name for bank in self.banks}
            allowed.append(
                tuple(
                    bank
                    for bank in order
                    if self.banks[bank].name in names
                    and self.first(number, bank) + self.taken(number, bank) <= self.banks[bank].capacity
                )
            )
        return tuple(allowed)

    def taken(self, buffer: int, bank: int) -> int:
        """Bytes that a buffer takes in a bank."""
        unit = self.banks[bank].alignment
        return self.buffers[buffer].size + -self.buffers[buffer].size % unit

    def bottom(self, bank: int) -> int:
        """First offset of a bank that may be used."""
        return self.banks[bank].reserved + -self.banks[bank].reserved % self.banks[bank].alignment

    def step(self, buffer: int, bank: int) -> int:
        """Bytes that offsets of a buffer in a bank are multiples of."""
        return lcm(self.buffers[buffer].alignment, self.banks[bank].alignment)

    def first(self, buffer: int, bank: int) -> int:
        """Lowest offset of a buffer in a bank."""
        return self.banks[bank].reserved + -self.banks[bank].reserved % self.step(buffer, bank)

    def room(self, bank: int) -> int:
        """Bytes of a bank that may be used."""
        return max(0, self.banks[bank].capacity - self.bottom(bank))

    def traffic(self, buffer: int) -> int:
        """Bytes read and written of a buffer."""
        return self.buffers[buffer].size * self.buffers[buffer].uses

    def cost(self, buffer: int, bank: int) -> int:
        """What a buffer costs in a bank."""
        return self.traffic(buffer) * self.banks[bank].cost

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of what a plan depends on: everything but the name, parts and results."""
        return files.digest([self.buffers, self.banks])


@dataclass(frozen=True)
class Overload:
    """Buffers that cannot all have a place."""

    buffers: tuple[int, ...]
    reason: str
    """One sentence for people."""


def floor(problem: Problem) -> int:
    """Cost with every buffer in the cheapest bank that it may be in: no plan is cheaper."""
    return sum(min((problem.cost(number, bank) for bank in banks), default=0) for number, banks in enumerate(problem.allowed))


def placement_of(problem: Problem) -> Placement:
    """The problem as items and memories."""
    pairs = [(number, bank) for number, banks in enumerate(problem.allowed) for bank in banks]
    return Placement(
        items=[
            Item(buffer.lower, buffer.upper, {bank: problem.taken(number, bank) for bank in problem.allowed[number]})
            for number, buffer in enumerate(problem.buffers)
        ],
        memories=[Memory(problem.room(number), bank.capacity) for number, bank in enumerate(problem.banks)],
        steps={pair: problem.step(*pair) for pair in pairs},
        lowest={pair: problem.first(*pair) for pair in pairs},
    )


def find_overload(problem: Problem) -> Overload | None:
    """Why nothing fits, where that shows without a search; None where it does not."""
    for number, banks in enumerate(problem.allowed):
        if not banks:
            buffer = problem.buffers[number]
            where = " or ".join(buffer.banks) if buffer.banks else "any bank"
            rooms = ", ".join(f"{bank.name} {problem.room(at)}" for at, bank in enumerate(problem.banks))
            return Overload((number,), f"buffer {buffer.id} of {buffer.size} bytes does not fit in {where} (bytes: {rooms})")
    every = frozenset(range(len(problem.banks)))
    for moment in placement_of(problem).moments:
        # Buffers without bytes explain nothing.
        live = [number for number in moment if problem.buffers[number].size]
        # Whoever may only be in some banks needs room there; all subsets of banks that turn up are looked at.
        for among in {frozenset(problem.allowed[number]) for number in live} | {every}:
            bound = [number for number in live if among.issuperset(problem.allowed[number])]
            needed = sum(problem.buffers[number].size for number in bound)
            room = sum(problem.room(bank) for bank in among)
            if needed > room:
                names = ", ".join(problem.banks[bank].name for bank in sorted(among))
                ids = ", ".join(problem.buffers[number].id for number in bound[:6]) + (", ..." if len(bound) > 6 else "")
                reason = f"{len(bound)} buffers ({ids}) live at once and take {needed} bytes, and {names} have {room}"
                return Overload(tuple(bound), reason)
    return None
