"""Marginals of chains, against all paths written out."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from stowplan.learned_guidance.memory_mapping.guide.guide import NEVER, Numpy, marginals


def listed(fast: np.ndarray, keep: np.ndarray, glued: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both marginals of one tensor, path by path."""
    count = len(fast)
    total, served, kept = 0.0, np.zeros(count), np.zeros(count)
    for path in product((0, 1), repeat=2 * count):
        is_fast, is_kept = path[:count], path[count:]
        may = [is_fast[j] and is_fast[j + 1] and keep[j] > NEVER for j in range(count - 1)] + [False]
        if any(each and not allowed for each, allowed in zip(is_kept, may, strict=True)):
            continue
        if any(glued[j] and not is_fast[j] == is_fast[j + 1] == is_kept[j] for j in range(count - 1)):
            continue
        weight = math.exp(sum(fast[j] for j in range(count) if is_fast[j]) + sum(keep[j] for j in range(count) if is_kept[j]))
        total += weight
        served += weight * np.array(is_fast)
        kept += weight * np.array(is_kept)
    return served / total, kept / total


@pytest.mark.parametrize("seed", range(20))
def test_marginals_are_those_of_all_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, size=3)
    parts, scores = [], []
    for count in counts:
        fast, keep = rng.normal(scale=3, size=(2, count))
        keep[rng.random(count) < 0.2] = NEVER
        keep[-1] = NEVER
        glued = (rng.random(count) < 0.3) & (keep > NEVER)
        scores.append((fast, keep, glued))
        parts.append(listed(fast, keep, glued))
    place = np.concatenate([np.arange(count) for count in counts])
    positions = [np.flatnonzero(place == p) for p in range(1, max(counts))]
    lib = Numpy()
    columns = (np.concatenate(column) for column in zip(*scores, strict=True))
    found = marginals(*columns, positions, lib.softplus, lib.sigmoid)
    for values, expected in zip(found, zip(*parts, strict=True), strict=True):
        np.testing.assert_allclose(values, np.concatenate(expected), atol=1e-9)
