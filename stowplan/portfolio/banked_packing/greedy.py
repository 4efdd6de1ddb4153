"""Placing buffers one after the other, each in the cheapest bank that has a hole for it, at the lowest offset."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from stowplan.models.banked_packing.plan import Plan, plan_of
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.first_fit import FirstFit
from stowplan.parameters import Parameters, parameters


class ClimbParameters(Parameters, frozen=True):
    """Parameters of climbing."""

    noise: float = 0.15
    """Part of a rank by which climbing moves a buffer at random, at most."""


PARAMS = parameters(ClimbParameters, __name__)


def place(problem: Problem, order: Sequence[int]) -> tuple[Plan | None, list[int]]:
    """Plan of an order, None where some buffers found no place; and those that are not in their cheapest bank, or in none."""
    rooms = [FirstFit(bank.capacity) for bank in problem.banks]
    begin = min((buffer.lower for buffer in problem.buffers), default=0)
    end = max((buffer.upper for buffer in problem.buffers), default=0)
    for memory, room in zip(problem.banks, rooms, strict=True):
        if memory.reserved:
            room.put(begin, end, memory.reserved, 0)
    banks, offsets = [-1] * len(order), [0] * len(order)
    late = []
    for number in order:
        buffer = problem.buffers[number]
        for bank in problem.allowed[number]:
            size = problem.size_in(number, bank)
            step = problem.step(number, bank)
            at = rooms[bank].take(buffer.lower, buffer.upper, size, step) if size else problem.lowest_offset_in(number, bank)
            if at is not None:
                banks[number], offsets[number] = bank, at
                break
        if banks[number] != (problem.allowed[number] or (-1,))[0] or banks[number] < 0:
            late.append(number)
    if -1 in banks:
        return None, late
    return plan_of(problem, banks, offsets), late


def orders(problem: Problem) -> Iterator[tuple[str, list[int]]]:
    """Names and orders: by size, as executorch's planner has it; by uses, also for each moment of life; by traffic; by area.

    Who has the fewest banks to choose from comes first in all of them.
    """
    buffers = problem.buffers
    keys: dict[str, Callable[[int], float]] = {
        "by_size": lambda number: -buffers[number].size,
        "by_uses": lambda number: -buffers[number].uses,
        "by_density": lambda number: -buffers[number].uses / (buffers[number].upper - buffers[number].lower),
        "by_traffic": lambda number: -problem.traffic(number),
        "by_area": lambda number: -buffers[number].size * (buffers[number].upper - buffers[number].lower),
    }
    for name, key in keys.items():
        yield name, sorted(range(len(buffers)), key=lambda number: (len(problem.allowed[number]), key(number), number))


def climb(
    problem: Problem, seed: int, rounds: int | None, on_plan: Callable[[Plan, str], None], should_stop: Callable[[], bool]
) -> None:
    """The orders, then each of them again and again: what came into a dear bank, or none, comes sooner.

    Parameters
    ----------
    rounds
        Placements at most; None for no limit.
    on_plan
        Called with every plan that is cheaper than those before, and the name of its order.
    """
    chance = random.Random(seed)
    best: int | None = None
    ranks: list[tuple[str, list[float]]] = []

    def take(plan: Plan | None, name: str) -> bool:
        nonlocal best
        if plan is None or (best is not None and plan.objective >= best):
            return False
        best = plan.objective
        on_plan(plan, name)
        return True

    count = 0
    for name, order in orders(problem):
        if should_stop():
            return
        plan, late = place(problem, order)
        count += 1
        take(plan, name)
        rank = [0.0] * len(order)
        for at, number in enumerate(order):
            rank[number] = at
        for number in late:
            rank[number] *= 0.7
        ranks.append((name, rank))
    n = max(1, len(problem.buffers))
    while not should_stop() and (rounds is None or count < rounds):
        at = chance.randrange(len(ranks))
        name, rank = ranks[at]
        tried = [place + n * PARAMS.noise * chance.random() for place in rank]
        plan, late = place(problem, sorted(range(len(tried)), key=lambda number: tried[number]))
        count += 1
        if take(plan, f"{name}_again") or chance.random() < 0.3:
            for number in chance.sample(late, min(len(late), 3)):
                tried[number] *= 0.7
            ranks[at] = name, tried
