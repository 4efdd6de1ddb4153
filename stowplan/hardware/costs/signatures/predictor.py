"""Prediction of cycles for patterns that no compiled module had, with intervals: NumPy alone, from a file of arrays."""

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
from stowplan.hardware.costs.signatures.trees import Trees

Array = NDArray[np.float64]

FORMAT = "stowplan.latency_predictor"
VERSION = 1

#: Learned on XLA's estimates for TPU v4 by ``benchmarks/latency_tables.py --write``.
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
        data = files.read_bytes(path)
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                arrays = dict(stored)
        except Exception as error:
            # For damaged bytes zip, zlib, NumPy and the tokenizer that it reads headers with each raise something else.
            raise InputError(f"not a {FORMAT} file: {error}", source=path) from error
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
