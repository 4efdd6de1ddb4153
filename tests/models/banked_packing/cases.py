"""Small banked packing problems, and their least costs by trying every bank and every offset."""

from __future__ import annotations

import itertools
import random

from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Bank, Buffer, Problem


def random_problem(seed: int, most: int = 6) -> Problem:
    """Up to ``most`` buffers and three banks; some with alignment, reserved bytes or buffers bound for some banks, by seed."""
    chance = random.Random(seed)
    banks = [
        Bank(
            name=f"m{number}",
            capacity=chance.randint(2, 10),
            cost=chance.choice([0, 1, 1, 2, 5]),
            alignment=chance.choice([1, 2, 3]) if seed % 3 == 1 else 1,
            reserved=chance.randint(0, 2) if seed % 4 == 2 else 0,
        )
        for number in range(chance.randint(1, 3))
    ]
    buffers = []
    for number in range(chance.randint(1, most)):
        lower = chance.randint(-2, 6)
        names = tuple(chance.sample([bank.name for bank in banks], chance.randint(1, len(banks))))
        buffers.append(
            Buffer(
                id=f"b{number}",
                lower=lower,
                upper=lower + chance.randint(1, 6),
                size=chance.choice([0, 1, 2, 2, 3, 4]),
                uses=chance.randint(0, 4),
                alignment=chance.choice([1, 2]) if seed % 5 == 3 else 1,
                banks=names if chance.random() < 0.15 else (),
            )
        )
    return Problem(name=f"random {seed}", buffers=tuple(buffers), banks=tuple(banks))


def least_cost(problem: Problem) -> int | None:
    """Optimum by trying everything; None where nothing fits."""
    taken: set[tuple[int, int, int]] = set()
    best: int | None = None

    def cells(number: int, bank: int, offset: int) -> set[tuple[int, int, int]]:
        buffer, unit = problem.buffers[number], problem.banks[bank].alignment
        size = -(-buffer.size // unit) * unit
        return set(itertools.product([bank], range(buffer.lower, buffer.upper), range(offset, offset + size)))

    def place(number: int, cost: int) -> None:
        nonlocal best
        if best is not None and cost >= best:
            return
        if number == len(problem.buffers):
            best = cost
            return
        buffer = problem.buffers[number]
        for at, bank in enumerate(problem.banks):
            if buffer.banks and bank.name not in buffer.banks:
                continue
            size = -(-buffer.size // bank.alignment) * bank.alignment
            for offset in range(bank.reserved, bank.capacity - size + 1):
                if offset % bank.alignment or offset % buffer.alignment:
                    continue
                new = cells(number, at, offset)
                if not new & taken:
                    taken.update(new)
                    place(number + 1, cost + buffer.size * buffer.uses * bank.cost)
                    taken.difference_update(new)
                    if not size:
                        break

    place(0, 0)
    return best


def is_valid(problem: Problem, plan: Plan) -> bool:
    """Whether a plan keeps every rule, cell by cell."""
    taken: set[tuple[int, int, int]] = set()
    for buffer, at, offset in zip(problem.buffers, plan.banks, plan.offsets, strict=True):
        bank = problem.banks[at]
        size = -(-buffer.size // bank.alignment) * bank.alignment
        if (buffer.banks and bank.name not in buffer.banks) or offset % bank.alignment or offset % buffer.alignment:
            return False
        if offset < bank.reserved or offset + size > bank.capacity:
            return False
        new = {(at, time, byte) for time in range(buffer.lower, buffer.upper) for byte in range(offset, offset + size)}
        if new & taken:
            return False
        taken |= new
    return True
