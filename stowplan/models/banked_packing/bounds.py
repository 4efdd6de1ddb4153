"""What can be said of a banked packing problem at once: a bound, and why nothing fits."""

from __future__ import annotations

from dataclasses import dataclass

from stowplan.models.banked_packing.problem import Problem


@dataclass(frozen=True)
class Overload:
    """Buffers that cannot all have a place."""

    buffers: tuple[int, ...]
    reason: str
    """One sentence for people."""


def floor(problem: Problem) -> int:
    """Cost with every buffer in the cheapest bank that it may be in: no plan is cheaper."""
    costs = [[problem.banks[bank].cost for bank in banks] for banks in problem.allowed]
    return sum(problem.traffic(number) * min(each, default=0) for number, each in enumerate(costs))


def moments(problem: Problem) -> list[list[int]]:
    """Sets of buffers that live at once, the largest ones: what lives at any moment is part of one of them."""
    events = sorted(
        (moment, begins, number)
        for number, buffer in enumerate(problem.buffers)
        if buffer.size
        for moment, begins in ((buffer.lower, True), (buffer.upper, False))
    )
    live: set[int] = set()
    found: list[list[int]] = []
    grown = False
    for _, begins, number in events:
        if begins:
            live.add(number)
            grown = True
            continue
        if grown:
            found.append(sorted(live))
            grown = False
        live.remove(number)
    return found


def find_overload(problem: Problem) -> Overload | None:
    """Why nothing fits, where that shows without a search; None where it does not."""
    for number, banks in enumerate(problem.allowed):
        if not banks:
            buffer = problem.buffers[number]
            where = " or ".join(buffer.banks) if buffer.banks else "any bank"
            rooms = ", ".join(f"{bank.name} {problem.room(at)}" for at, bank in enumerate(problem.banks))
            return Overload((number,), f"buffer {buffer.id} of {buffer.size} bytes does not fit in {where} (bytes: {rooms})")
    every = frozenset(range(len(problem.banks)))
    for live in moments(problem):
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
