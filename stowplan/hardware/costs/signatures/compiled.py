"""Evaluation of regression trees, compiled with numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Floats2D, njit

Array = NDArray[np.float64]


@njit
def add_trees(
    total: Array,
    rows: Floats2D,
    roots: NDArray[np.int32],
    feature: NDArray[np.int16],
    threshold: Array,
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    value: NDArray[np.float32],
) -> None:
    """Adds the sum of the values of all trees for each row to the row's entry of ``total``.

    ``rows`` has a row of features for each of R predictions, and ``total`` has an entry for each. The other arrays are the
    fields of :class:`~stowplan.hardware.costs.signatures.predictor.Trees`.
    """
    for root in roots:
        for row in range(len(rows)):
            node = root
            while feature[node] >= 0:
                node = left[node] if rows[row, feature[node]] <= threshold[node] else right[node]
            total[row] += value[node]
