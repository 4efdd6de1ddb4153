"""Small graphs of operators, and their least peaks by trying every order."""

from __future__ import annotations

import random
from collections.abc import Iterator

from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.operator_order.verify import verify


def random_problem(seed: int, most: int = 7) -> Problem:
    """Up to ``most`` operators; views, places taken over, inputs that stay, fixed precedences and alignment, by seed."""
    chance = random.Random(seed)
    tensors: list[Tensor] = []
    ops: list[Op] = []
    roots: list[int] = []

    def add(size: int, alias_of: int | None = None) -> int:
        alignment = chance.choice([1, 1, 2, 4]) if seed % 3 == 1 and alias_of is None else 1
        tensors.append(Tensor(id=f"t{len(tensors)}", size=size, alignment=alignment, alias_of=alias_of))
        roots.append(len(tensors) - 1 if alias_of is None else roots[alias_of])
        return len(tensors) - 1

    inputs = tuple(add(chance.randint(0, 4)) for _ in range(chance.randint(0, 2)))
    for number in range(chance.randint(1, most)):
        reads = sorted(chance.sample(range(len(tensors)), min(len(tensors), chance.choice([0, 1, 1, 2, 2, 3]))))
        if reads and seed % 4 == 2 and chance.random() < 0.4:
            base = chance.choice(reads)
            ops.append(Op(id=f"o{number}", reads=tuple(reads), writes=(add(tensors[base].size, base),)))
            continue
        in_place: list[tuple[int, int]] = []
        writes = []
        for _ in range(chance.choice([1, 1, 1, 2])):
            operand = chance.choice(reads) if reads and seed % 2 and chance.random() < 0.6 else None
            if operand is not None and roots[operand] not in {roots[one] for one, _ in in_place}:
                writes.append(add(tensors[roots[operand]].size))
                in_place.append((operand, writes[-1]))
            else:
                writes.append(add(chance.randint(0, 5)))
        ops.append(Op(id=f"o{number}", reads=tuple(reads), writes=tuple(writes), in_place=tuple(in_place)))
    pairs = [(one, other) for other in range(len(ops)) for one in range(other)]
    written = [tensor for op in ops for tensor in op.writes]
    return Problem(
        name=f"random {seed}",
        tensors=tuple(tensors),
        ops=tuple(ops),
        inputs=inputs,
        outputs=tuple(sorted(chance.sample(written, chance.randint(0, min(2, len(written)))))),
        free_inputs=seed % 5 != 3,
        precedences=tuple(chance.sample(pairs, 1)) if pairs and seed % 7 == 5 else (),
    )


def orders(problem: Problem) -> Iterator[list[int]]:
    """Every order in which the operators can run."""

    def extend(order: list[int]) -> Iterator[list[int]]:
        if len(order) == len(problem.ops):
            yield order
            return
        for op in range(len(problem.ops)):
            if op not in order and set(problem.predecessors[op]) <= set(order):
                yield from extend([*order, op])

    yield from extend([])


def peak_of(problem: Problem, order: list[int]) -> int:
    """Peak of an order, by the verifier."""
    plan = Plan(problem=problem.digest, objective=0, arena=0, order=tuple(order), offsets=(0,) * len(problem.tensors))
    peak = verify(problem, plan).objective
    assert peak is not None
    return peak


def least_peak(problem: Problem) -> int:
    """Optimum in bytes."""
    return min(peak_of(problem, order) for order in orders(problem))
