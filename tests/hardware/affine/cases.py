"""Random affine programs: data movement of all kinds, mixed with a few operators."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from stowplan.frontends.affine import Builder, Variable
from stowplan.hardware.affine.expression import (
    Expression,
    add,
    constant,
    evaluate,
    floor_divide,
    index,
    modulo,
    scale,
)
from stowplan.hardware.affine.program import Program

__all__ = ["MOVES", "evaluate", "random_expression", "random_inputs", "random_program"]


def random_inputs(program: Program, seed: int = 0) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Normal noise for every input."""
    chance = np.random.default_rng(seed)
    return {name: chance.normal(size=program.tensors[name].shape) for name in program.inputs}


def random_expression(chance: random.Random, extents: tuple[int, ...], depth: int) -> tuple[Expression, Callable[..., int]]:
    """An expression, and the same function of the indices in plain Python."""
    kind = chance.random()
    if depth == 0 or kind < 0.15:
        if chance.random() < 0.8:
            number = chance.randrange(len(extents))
            return index(number), lambda *at: at[number]
        value = chance.randint(-9, 9)
        return constant(value), lambda *at: value
    one, first = random_expression(chance, extents, depth - 1)
    if kind < 0.5:
        two, second = random_expression(chance, extents, depth - 1)
        factor = chance.choice([-3, -1, 1, 2, 4, 6, 12])
        return add(one, two, extents, factor), lambda *at: first(*at) + factor * second(*at)
    by = chance.choice([2, 3, 4, 6, 8, 12])
    if kind < 0.7:
        return floor_divide(one, by, extents), lambda *at: first(*at) // by
    if kind < 0.9:
        return modulo(one, by, extents), lambda *at: first(*at) % by
    factor = chance.choice([-2, 2, 3, 4])
    return scale(one, factor), lambda *at: factor * first(*at)


def _transpose(b: Builder, x: Variable, chance: random.Random) -> Variable:
    return b.transpose(x, chance.sample(range(len(x.shape)), len(x.shape)))


def _repeat(b: Builder, x: Variable, chance: random.Random) -> Variable:
    return b.repeat(x, chance.randint(1, 3), chance.randrange(len(x.shape)))


def _tile(b: Builder, x: Variable, chance: random.Random) -> Variable:
    return b.tile(x, [chance.randint(1, 2) for _ in x.shape])


def _broadcast(b: Builder, x: Variable, chance: random.Random) -> Variable:
    return b.broadcast(x, (*x.shape[:1], chance.randint(1, 3), *x.shape[1:]), [0, *range(2, len(x.shape) + 1)])


def _reshape(b: Builder, x: Variable, chance: random.Random) -> Variable:
    def divisor(of: int) -> int:
        return chance.choice([each for each in range(1, of + 1) if of % each == 0])

    elements = x.tensor.elements
    first = divisor(elements)
    second = divisor(elements // first)
    left = elements // first
    return b.reshape(x, chance.choice([(first, left), (first, second, left // second), (elements,)]))


def _reverse(b: Builder, x: Variable, chance: random.Random) -> Variable:
    return b.reverse(x, chance.sample(range(len(x.shape)), chance.randint(1, len(x.shape))))


def _slice(b: Builder, x: Variable, chance: random.Random) -> Variable:
    starts = [chance.randrange(size) for size in x.shape]
    ends = [chance.randint(start + 1, size) for start, size in zip(starts, x.shape, strict=True)]
    return b.slice(x, starts, ends, [chance.randint(1, 3) for _ in x.shape])


def _split(b: Builder, x: Variable, chance: random.Random) -> Variable:
    axis = max(range(len(x.shape)), key=lambda at: x.shape[at])
    cut = chance.randint(1, x.shape[axis])
    sizes = [cut, x.shape[axis] - cut] if cut < x.shape[axis] else [cut]
    return chance.choice(b.split(x, sizes, axis))


def _concatenate(b: Builder, x: Variable, chance: random.Random) -> Variable:
    return b.concatenate([x, b.reverse(x, [0]), x][: chance.randint(1, 3)], chance.randrange(len(x.shape)))


def _pad(b: Builder, x: Variable, chance: random.Random) -> Variable:
    low, high = ([chance.randint(-1, 2) for _ in x.shape] for _ in range(2))
    interior = [chance.randint(0, 2) for _ in x.shape]
    for at, size in enumerate(x.shape):
        if size + low[at] + high[at] + (size - 1) * interior[at] < 1:
            low[at] = high[at] = 0
    return b.pad(x, low, high, interior, value=chance.choice([0.0, 2.5]))


def _skewed(b: Builder, x: Variable, chance: random.Random) -> Variable:
    """A loop nest written by hand: the store counts backwards and the loops are in another order."""
    rows, columns = x.shape[0], x.tensor.elements // x.shape[0]
    flat = b.reshape(x, (rows, columns))
    return b.copy(
        "skew", (columns, rows), lambda i, j: flat[j, i], (rows * columns,), lambda i, j: (rows * columns - 1 - (i * rows + j),)
    )


MOVES: dict[str, Callable[[Builder, Variable, random.Random], Variable]] = {
    "transpose": _transpose,
    "repeat": _repeat,
    "tile": _tile,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "split": _split,
    "concatenate": _concatenate,
    "pad": _pad,
    "skew": _skewed,
}


def random_program(seed: int, moves: int = 8, most_elements: int = 300) -> Program:
    """A checked program of up to ``moves`` moves with a few operators in between, and an operator at the end."""
    chance = random.Random(seed)
    b = Builder(f"random {seed}")
    values = [b.input("x", tuple(chance.randint(1, 6) for _ in range(chance.randint(1, 3)))) for _ in range(2)]
    for _ in range(chance.randint(1, moves)):
        x = chance.choice(values[-3:])
        if x.tensor.elements > most_elements:
            values.append(_slice(b, x, chance))
        elif chance.random() < 0.12:
            values.append(b.elementwise("tanh", x))
        else:
            values.append(MOVES[chance.choice(list(MOVES))](b, x, chance))
    return b.build(b.elementwise("negate", values[-1]))
