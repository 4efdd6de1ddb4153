"""Greedy placement for banked packing: one buffer after the other goes into the cheapest bank that has a free range of bytes
for it, at the lowest free offset."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from stowplan.models.banked_packing.plan import Plan, plan_of
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.first_fit import FirstFit
from stowplan.parameters import Parameters, parameters


class ClimbParameters(Parameters, frozen=True):
    """Parameters of hill climbing."""

    noise: float = 0.15
    """Part of the number of buffers by which hill climbing moves a buffer back in the order at random, at most."""


PARAMS = parameters(ClimbParameters, __name__)


def place(problem: Problem, order: Sequence[int]) -> tuple[Plan | None, list[int]]:
    """Place the buffers in an order.

    Returns
    -------
    tuple
        The plan, None if no bank has space for some buffer; and the numbers of the buffers that are not in their cheapest bank.
    """
    spaces = [FirstFit(bank.capacity) for bank in problem.banks]
    begin = min((buffer.lower for buffer in problem.buffers), default=0)
    end = max((buffer.upper for buffer in problem.buffers), default=0)
    for memory, space in zip(problem.banks, spaces, strict=True):
        if memory.reserved:
            space.put(begin, end, memory.reserved, 0)
    banks, offsets = [-1] * len(order), [0] * len(order)
    displaced = []
    for number in order:
        buffer = problem.buffers[number]
        for bank in problem.allowed[number]:
            size = problem.size_in(number, bank)
            step = problem.step(number, bank)
            at = spaces[bank].take(buffer.lower, buffer.upper, size, step) if size else problem.lowest_offset_in(number, bank)
            if at is not None:
                banks[number], offsets[number] = bank, at
                break
        if banks[number] != (problem.allowed[number] or (-1,))[0] or banks[number] < 0:
            displaced.append(number)
    if -1 in banks:
        return None, displaced
    return plan_of(problem, banks, offsets), displaced


def orders(problem: Problem) -> Iterator[tuple[str, list[int]]]:
    """Yield names and orders of the buffers: by descending size, uses, uses for each moment of life, traffic, and size times
    life.

    Traffic is the number of bytes that are read and written. The first order is that of ExecuTorch's greedy planner. In all
    orders, buffers that may be in fewer banks come first.
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
    """Place the buffers in each of the orders, then in random variations of them.

    Buffers that ended in no bank, or not in their cheapest one, come earlier in later variations.

    Parameters
    ----------
    problem
        The problem.
    seed
        Seed of the random variations.
    rounds
        Largest number of placements of all buffers; None for no limit. The orders themselves are always tried.
    on_plan
        Called with every plan that is cheaper than all before, and the name of its order.
    should_stop
        Function that is called before each placement and says whether to return.
    """
    chance = random.Random(seed)
    best: int | None = None
    ranks: list[tuple[str, list[float]]] = []

    def report_if_better(plan: Plan | None, name: str) -> bool:
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
        plan, displaced = place(problem, order)
        count += 1
        report_if_better(plan, name)
        rank = [0.0] * len(order)
        for at, number in enumerate(order):
            rank[number] = at
        for number in displaced:
            rank[number] *= 0.7
        ranks.append((name, rank))
    n = max(1, len(problem.buffers))
    while not should_stop() and (rounds is None or count < rounds):
        at = chance.randrange(len(ranks))
        name, rank = ranks[at]
        ranks_tried = [place + n * PARAMS.noise * chance.random() for place in rank]
        plan, displaced = place(problem, sorted(range(len(ranks_tried)), key=lambda number: ranks_tried[number]))
        count += 1
        if report_if_better(plan, f"{name}_again") or chance.random() < 0.3:
            for number in chance.sample(displaced, min(len(displaced), 3)):
                ranks_tried[number] *= 0.7
            ranks[at] = name, ranks_tried
