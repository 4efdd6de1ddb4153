"""Random small programs with integers, and their optima by trying every point."""

from __future__ import annotations

import itertools
import random

import numpy as np
from scipy import sparse

from stowplan.models.mip.matrix import MatrixModel


def random_model(rng: random.Random, *, columns: int = 5, rows: int = 4, whole: bool = True) -> MatrixModel:
    """Small integer boxes, integer coefficients, rows with any sides; often infeasible. ``whole``: no continuous column."""
    width = rng.randint(1, columns)
    lower = np.array([rng.randint(-2, 1) for _ in range(width)], dtype=float)
    upper = lower + np.array([rng.randint(0, 3) for _ in range(width)])
    height = rng.randint(0, rows)
    dense = np.array([[rng.choice([0, 0, rng.randint(-4, 4)]) for _ in range(width)] for _ in range(height)], dtype=float)
    matrix = sparse.csr_matrix(dense.reshape(height, width))
    matrix.eliminate_zeros()
    low = np.array([rng.choice([-np.inf, rng.randint(-6, 1)]) for _ in range(height)], dtype=float)
    high = np.array([rng.choice([np.inf, max(one, 0) + rng.randint(0, 5)]) for one in low], dtype=float)
    equal = [row for row in range(height) if rng.random() < 0.2]
    low[equal] = high[equal] = [rng.randint(-2, 3) for _ in equal]
    is_integer = np.ones(width, dtype=bool)
    if not whole:
        is_integer[rng.randrange(width)] = False
    cost = np.array([rng.randint(-9, 9) for _ in range(width)], dtype=float)
    return MatrixModel("random", cost, lower, upper, is_integer, matrix, low, high, offset=float(rng.randint(-50, 50)))


def optimum(model: MatrixModel) -> float | None:
    """Least objective over all integer points; None where there is none."""
    assert bool(model.is_integer.all())
    ranges = [range(int(low), int(high) + 1) for low, high in zip(model.lower, model.upper, strict=True)]
    found = [model.objective(np.array(p, dtype=float)) for p in itertools.product(*ranges) if model.violation(np.array(p)) == 0]
    return min(found, default=None)


def knapsack(size: int, seed: int = 0) -> MatrixModel:
    """Many knapsacks over the same items: no solver finishes one of size 120 in a second."""
    rng = random.Random(seed)
    height = max(1, size // 3)
    dense = np.zeros((height, size))
    for row in range(height):
        for column in rng.sample(range(size), max(1, size // 3)):
            dense[row, column] = rng.randint(1, 99)
    return MatrixModel(
        name="knapsack",
        cost=-np.array([float(rng.randint(10, 99)) for _ in range(size)]),
        lower=np.zeros(size),
        upper=np.ones(size),
        is_integer=np.ones(size, dtype=bool),
        matrix=sparse.csr_matrix(dense),
        row_lower=np.full(height, -np.inf),
        row_upper=np.full(height, 6.0 * size),
    )
