"""Boosted regression trees as plain arrays: evaluation with NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError


@dataclass(frozen=True)
class Trees:
    """A sum of regression trees, all nodes in one list; N nodes, T trees. Features must not be NaN."""

    start: float
    """What the sum begins with."""
    roots: NDArray[np.int32]
    """Shape [T]: node that each tree begins at."""
    feature: NDArray[np.int16]
    """Shape [N]: column that a node looks at; -1 in leaves."""
    threshold: NDArray[np.float64]
    """Shape [N]: a row goes left where its column is at most this."""
    left: NDArray[np.int32]
    """Shape [N]: the right node stands behind it. In leaves 0."""
    right: NDArray[np.int32]
    value: NDArray[np.float32]
    """Shape [N]: what a leaf adds."""

    FIELDS = ("start", "roots", "feature", "threshold", "left", "right", "value")

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the trees for each row, shape [R]."""
        total = np.full(len(rows), self.start)
        numbers = np.arange(len(rows))
        for root in self.roots:
            node = np.full(len(rows), root, np.int64)
            inside = numbers
            while len(inside):
                column = self.feature[node[inside]]
                inside = inside[column >= 0]
                at = node[inside]
                goes_left = rows[inside, self.feature[at]] <= self.threshold[at]
                node[inside] = np.where(goes_left, self.left[at], self.right[at])
            total += self.value[node]
        return total

    def arrays(self, prefix: str) -> dict[str, Any]:
        """Its fields as arrays, names with a prefix: what :func:`numpy.savez` takes."""
        return {f"{prefix}.{name}": np.asarray(getattr(self, name)) for name in self.FIELDS}

    @classmethod
    def of_arrays(cls, arrays: dict[str, NDArray[np.generic]], prefix: str, columns: int) -> Trees:
        """From :meth:`arrays`; raises InputError where they are no trees over that many columns."""
        kinds = {"start": np.float64, "feature": np.int16, "threshold": np.float64, "value": np.float32}
        values = {}
        for name in cls.FIELDS:
            if f"{prefix}.{name}" not in arrays:
                raise InputError("found no such array, expected one", place=f"{prefix}.{name}")
            values[name] = np.asarray(arrays[f"{prefix}.{name}"]).astype(kinds.get(name, np.int32))
        size = len(values["feature"]) if values["feature"].ndim == 1 else -1
        inner = values["feature"] >= 0
        numbers = np.arange(size)
        fits = (
            values["start"].ndim == 0
            and all(values[name].shape == (size,) for name in cls.FIELDS[2:])
            and values["feature"].max(initial=-1) < columns
            and values["roots"].ndim == 1
            and values["roots"].min(initial=0) >= 0
            and values["roots"].max(initial=-1) < size
            # Children stand behind their parents, so that no walk runs for ever.
            and all((values[side][inner] > numbers[inner]).all() for side in ("left", "right"))
            and all((values[side] < size).all() for side in ("left", "right"))
            and np.isfinite(values["value"]).all()
        )
        if not fits:
            raise InputError("found arrays that do not fit each other, expected trees", place=prefix)
        return cls(float(values.pop("start")), **values)
