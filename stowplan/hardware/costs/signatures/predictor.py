"""Prediction of cycles for patterns that no compiled module had, with intervals: boosted trees, with NumPy alone."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan import files
from stowplan.errors import InputError
from stowplan.hardware.costs.signatures.features import NAMES, Bits, Known, StepFacts, features


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


Array = NDArray[np.float64]

FORMAT = "stowplan.latency_predictor"
VERSION = 1

#: Learned on XLA's estimates for TPU v4 by ``benchmarks/costs/latency_tables.py --write``.
SHIPPED = Path(__file__).with_name("tpu-v4.npz")

#: No prediction differs from the nearest known pattern by more than this factor, nor is an interval wider.
_LIMIT = 20.0


class Prediction(NamedTuple):
    """Cycles of P patterns of one step, each of shape [P]."""

    cycles: Array
    low: Array
    """The interval holds the compiler's cycles in nine of ten cases (``docs/results/costs.md`` has the measured share)."""
    high: Array


@dataclass(frozen=True)
class Predictor:
    """What was learned of the cycles that patterns take, relative to the nearest known pattern of the same step."""

    middle: Trees
    """Expected logarithm of the cycles over the known ones."""
    spread: Trees
    """Logarithm of its typical error."""
    width: float
    """Half of an interval, in typical errors."""

    def predict(self, facts: StepFacts, known: Known, bits: Bits) -> Prediction:
        """Cycles of patterns of a step, of which at least one pattern is known.

        Parameters
        ----------
        facts, known
            The step, and rows of the latency table for its signature.
        bits
            Shape [P, leaves].
        """
        matrix, anchor = features(facts, known, bits)
        ratio = np.clip(self.middle.predict(matrix), -np.log(_LIMIT), np.log(_LIMIT))
        half = np.minimum(self.width * np.exp(self.spread.predict(matrix)), np.log(_LIMIT))
        middle = anchor + ratio
        return Prediction(np.exp(middle), np.exp(middle - half), np.exp(middle + half))

    def save(self, path: str | Path) -> None:
        """Write it as compressed NumPy arrays, by way of a temporary file."""
        out = io.BytesIO()
        head = {"format": FORMAT, "version": VERSION, "names": NAMES, "width": self.width}
        arrays: dict[str, Any] = {name: np.array(value) for name, value in head.items()}
        np.savez_compressed(out, **arrays, **self.middle.arrays("middle"), **self.spread.arrays("spread"))
        files.write_atomic(path, out.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Predictor:
        """Read a file; raises :class:`~stowplan.errors.InputError` naming file and array."""
        arrays = files.read_arrays(path, f"a {FORMAT} file")
        try:
            return _of_arrays(arrays)
        except InputError as error:
            raise error.within(path) from error


def _of_arrays(arrays: dict[str, NDArray[np.generic]]) -> Predictor:
    for name, expected in (("format", FORMAT), ("version", VERSION)):
        found = arrays[name].item() if name in arrays and arrays[name].ndim == 0 else None
        if found != expected:
            raise InputError(f"found {name} {found!r}, expected {expected!r}", place=name)
    names = tuple(str(name) for name in arrays["names"].ravel()) if "names" in arrays else ()
    if names != NAMES:
        raise InputError(f"found {len(names)} features, expected the {len(NAMES)} of this version", place="names")
    width = arrays["width"].item() if "width" in arrays and arrays["width"].ndim == 0 else None
    if not isinstance(width, float) or not 0 <= width < np.inf:
        raise InputError(f"found {width!r}, expected a number, at least 0", place="width")
    return Predictor(Trees.of_arrays(arrays, "middle", len(NAMES)), Trees.of_arrays(arrays, "spread", len(NAMES)), width)


@cache
def shipped() -> Predictor:
    """The predictor that comes with the package."""
    return Predictor.load(SHIPPED)
