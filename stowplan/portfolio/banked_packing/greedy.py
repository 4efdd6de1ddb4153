"""Greedy placement for banked packing: one buffer after the other goes into the cheapest bank that has a free range of bytes
for it, at the lowest free offset.

A *bank* is one of several memories. The *number* of a buffer or a bank is its position in the problem. An *order* is a list of
the numbers of all buffers. The functions raise no errors.
"""

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
    """Largest random delay of a buffer in a variation of an order, as a fraction of the number of buffers. With 0.15 and 100
    buffers, a buffer's place is raised by a random number below 15 before the buffers are sorted by it."""


PARAMS = parameters(ClimbParameters, __name__)


def place(problem: Problem, order: Sequence[int]) -> tuple[Plan | None, list[int]]:
    """Place the buffers in an order, which lists all their numbers.

    Returns
    -------
    tuple
        First, the plan, or None if no bank has space for some buffer. Second, the numbers of the buffers that are in no bank,
        or not in the cheapest bank that may hold them. A buffer without space does not end the placement of the others.
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
    """Yield five orders, each with its name.

    In every order, buffers that may be in fewer banks come first. Buffers that may be in equally many banks are in descending
    order of one number, which the name tells:

    - ``by_size``: the size, as in ExecuTorch's greedy planner
    - ``by_uses``: the number of uses
    - ``by_density``: the number of uses for each moment of life
    - ``by_traffic``: the bytes that are read and written in total
    - ``by_area``: the size times the length of life
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

    Buffers that ended in no bank, or not in the cheapest that may hold them, come earlier in the first variation of an order.
    After a variation that is better than all plans before, or by chance, up to three such buffers come earlier again.

    Parameters
    ----------
    problem
        The problem.
    seed
        Seed of the random variations.
    rounds
        Largest number of placements of all buffers; None for no limit. The orders themselves are tried even if it is smaller
        than their number.
    on_plan
        Called with every plan that is cheaper than all before, and the name of its order. For a variation of the order,
        ``_again`` follows the name.
    should_stop
        Function that is called before each placement and says whether to return.
    """
    chance = random.Random(seed)
    best: int | None = None
    # For each order, its name and the rank of each buffer, by which variations sort: at first the place in the order. The rank
    # of a displaced buffer is multiplied by 0.7, and 30 % of the variations that are not better are kept all the same. Both
    # numbers are tuned.
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
