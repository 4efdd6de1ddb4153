"""Prediction of cycles, with intervals, for patterns that no compiled module had, by boosted regression trees.

Steps, leaves and patterns are those of :mod:`stowplan.hardware.costs.signatures.table`; a pattern is *known* if the latency
table has cycles for it. A prediction depends on a step, a pattern, and the nearest known pattern of the step. All features are
ratios, logarithms, flags or small numbers, so that trees that were trained on some programs are useful for others. Shapes of
arrays are in brackets: an array ``[P, leaves]`` has a row for each of P patterns, and a column for each leaf of the step.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stowplan import files
from stowplan.checks import expect
from stowplan.errors import naming
from stowplan.hardware.costs.signatures.table import StepSignature
from stowplan.hardware.targets import PredictorName

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]

#: Speeds of a reference machine in bytes, flops and elements per cycle, and its overhead in cycles. They are of the order of
#: those of TPU v4. Since predictions are ratios of cycles, they need not be the speeds of the target.
_SLOW_READ, _SLOW_WRITE, _FAST_READ, _FAST_WRITE = 340.0, 340.0, 1700.0, 340.0
_FLOPS, _ELEMENTS, _OVERHEAD = 150_000.0, 2_000.0, 600.0

#: Weight of the penalty in the ridge regression, which draws effects towards those of the reference machine. The larger it is,
#: the less influence known cycles have.
_RIDGE = 0.2

#: Arrays with at most this fraction of the bytes that a step moves do not influence predictions.
NEGLIGIBLE = 0.01

#: Kinds of fusions, opcodes of steps, and opcodes in fusions that have features of their own.
_KINDS = ("kLoop", "kInput", "kOutput", "kCustom")
_OPCODES = ("fusion", "copy", "convolution", "dot", "custom-call", "reduce", "add", "multiply")
_INNER = (
    "convolution", "dot", "reduce", "reduce-window", "transpose", "copy", "dynamic-slice", "dynamic-update-slice", "gather",
    "scatter", "broadcast", "select", "pad", "concatenate", "slice", "select-and-scatter", "sort", "exponential", "fusion",
)  # fmt: skip

#: Names of the features that depend on the step only, and of those that also depend on the pattern.
#:
#: ``read`` and ``write`` features are those of the largest array that is read or written; ``minor`` and ``second`` are
#: logarithms of the extents of its two dimensions that vary fastest in memory. ``inner`` features count opcodes in fused
#: computations. A feature ``to fast`` (or ``to slow``) is about the arrays that are in this memory in the pattern and in the
#: other memory in the nearest known pattern; ``was`` refers to the nearest known pattern as well.
_OF_STEP = (
    "leaves", "log bytes", "log flops", "log elements", "largest part", "reads part",
    "read bits", "read minor", "read second", "read rank", "read padding",
    "write bits", "write minor", "write second", "write rank", "write padding",
    *(f"kind {name}" for name in _KINDS),
    *(f"opcode {name}" for name in _OPCODES),
    "inner",
    *(f"inner {name}" for name in _INNER),
)  # fmt: skip
_OF_PATTERN = (
    "log known cycles", "known over all slow", "all slow known",
    "reads to fast", "reads to slow", "writes to fast", "writes to slow",
    "slow reads", "slow writes", "fast reads", "fast writes",
    "largest to fast", "largest to slow", "bits that differ", "bits to fast",
    "largest read fast", "largest read was fast", "largest write fast", "largest write was fast",
    "flops a cycle", "elements a cycle",
    "roofline ratio", "roofline over known", "additive ratio", "known patterns", "second nearest ratio", "second distance",
)  # fmt: skip

#: Names of the columns of :func:`features`.
NAMES = (*_OF_PATTERN, *_OF_STEP)


def as_bits(patterns: list[int], leaves: int) -> Bits:
    """Returns an array [P, leaves] that says, for each of P patterns, whether each leaf is in fast memory.

    ``leaves`` is the number of leaves. A pattern must have no other bits; OverflowError may be raised otherwise.
    """
    if not leaves:
        return np.zeros((len(patterns), 0), np.bool_)
    width = (leaves + 7) // 8
    data = b"".join(pattern.to_bytes(width, "little") for pattern in patterns)
    rows = np.frombuffer(data, np.uint8).reshape(len(patterns), width)
    return np.unpackbits(rows, axis=1, bitorder="little")[:, :leaves].astype(np.bool_)


@dataclass(frozen=True)
class Known:
    """The K entries of a latency table for one signature, as arrays."""

    patterns: list[int]
    """The pattern of each entry."""
    bits: Bits
    """[K, leaves] whether each leaf is in fast memory."""
    log_cycles: Array
    """[K] logarithm of the cycles of each entry; zero cycles count as one."""

    @classmethod
    def of(cls, rows: Mapping[int, int], leaves: int) -> Known:
        """The entries for cycles by pattern, in ascending order of the patterns."""
        patterns = sorted(rows)
        cycles = np.array([rows[pattern] for pattern in patterns], np.float64)
        return cls(patterns, as_bits(patterns, leaves), np.log(np.maximum(cycles, 1)))

    def without(self, index: NDArray[np.intp]) -> Known:
        """The entries without those at these positions."""
        keep = np.setdiff1d(np.arange(len(self.patterns)), index)
        return Known([self.patterns[row] for row in keep], self.bits[keep], self.log_cycles[keep])


class StepFacts:
    """Properties of a step as arrays with an entry for each of its leaves, and models of its cycles. Sizes are in bytes."""

    def __init__(self, step: StepSignature):
        self.step = step
        leaves = step.leaves
        self.moved = np.array([leaf.moved for leaf in leaves], np.float64)
        self.is_output = np.array([leaf.is_output for leaf in leaves], np.bool_)
        self.reads = np.where(self.is_output, 0, self.moved)
        self.writes = np.where(self.is_output, self.moved, 0)

    def roofline(self, bits: Bits) -> Array:
        """[P] cycles of P patterns on the reference machine, by the roofline model."""
        slow = ~bits
        traffic = (
            slow @ (self.reads / _SLOW_READ + self.writes / _SLOW_WRITE)
            + bits @ (self.reads / _FAST_READ + self.writes / _FAST_WRITE)
        )  # fmt: skip
        compute = self.step.flops / _FLOPS + self.step.elementwise / _ELEMENTS
        cycles: Array = _OVERHEAD + np.maximum(compute, traffic)
        return cycles

    def additive(self, known: Known, bits: Bits) -> Array:
        """[P] logarithms of the cycles of P patterns, by a model that adds the effects of leaves on the logarithm.

        The effects are fitted to the known entries by ridge regression, which draws them towards those of the reference
        machine.
        """
        single = np.eye(len(self.moved), dtype=np.bool_)
        none = self.roofline(np.zeros((1, len(self.moved)), np.bool_))[0]
        prior = np.log(self.roofline(single) / none) if len(self.moved) else np.zeros(0)
        # The constant has a tiny penalty, because the cycles with all leaves in slow memory should follow from known cycles.
        rows = np.hstack([np.ones((len(known.bits), 1)), known.bits])
        ridge = np.diag([1e-6, *[_RIDGE] * len(self.moved)])
        rest = known.log_cycles - known.bits @ prior
        effect = np.linalg.solve(rows.T @ rows + ridge, rows.T @ rest)
        log_cycles: Array = effect[0] + bits @ (prior + effect[1:])
        return log_cycles

    @cached_property
    def columns(self) -> Array:
        """The features that depend on the step only, in the order of ``_OF_STEP``."""
        step, moved = self.step, self.moved
        total = max(moved.sum(), 1.0)
        kinds = [float(step.kind == name) for name in _KINDS]
        opcodes = [float(step.opcode == name) for name in _OPCODES]
        inner = dict(step.inner)
        return np.array([
            len(moved),
            math.log1p(total),
            math.log1p(step.flops),
            math.log1p(step.elementwise),
            moved.max(initial=0) / total,
            self.reads.sum() / total,
            *self._largest(self.reads),
            *self._largest(self.writes),
            *kinds,
            *opcodes,
            math.log1p(sum(inner.values())),
            *(math.log1p(inner.get(name, 0)) for name in _INNER),
        ])  # fmt: skip

    def _largest(self, moved: Array) -> list[float]:
        """Bits of an element, logarithms of two extents, rank and padding factor of the leaf with the most moved bytes.

        They are 0 if no leaf moves any bytes.
        """
        if not moved.any():
            return [0.0] * 5
        leaf = self.step.leaves[int(moved.argmax())]
        elements = math.prod(leaf.dims) * leaf.element_bits / 8
        minor, second = (math.log2(extent or 1) for extent in (*leaf.dims, 1, 1)[:2])
        return [leaf.element_bits, minor, second, len(leaf.dims), leaf.size / max(elements, 1)]


def features(facts: StepFacts, known: Known, bits: Bits) -> tuple[Array, Array]:
    """Computes the features of patterns of a step.

    Parameters
    ----------
    facts
        The step, with L leaves.
    known
        Its entries in the latency table, at least one.
    bits
        [P, L] the patterns for which cycles are predicted.

    Returns
    -------
    matrix
        [P, len(NAMES)] the features.
    anchor
        [P] logarithm of the cycles of the nearest known pattern. The trees predict the difference from it.
    """
    moved, reads, writes = facts.moved, facts.reads, facts.writes
    count = len(bits)
    # The nearest pattern is that from which the fewest bytes change memory; negligible arrays only break ties.
    counts = moved > NEGLIGIBLE * moved.sum()
    weight = np.where(counts, moved, 1e-6 * (moved + 1))
    differs = (bits[:, None, :] != known.bits[None, :, :]) @ weight
    order = np.argsort(differs, axis=1, kind="stable")
    nearest = order[:, 0]
    second = order[:, min(1, order.shape[1] - 1)]
    anchor = known.log_cycles[nearest]
    at = known.bits[nearest]
    bits = np.where(counts, bits, at)
    to_fast, to_slow = bits & ~at, at & ~bits
    cycles = np.exp(anchor)
    slow_rows = [number for number, pattern in enumerate(known.patterns) if not pattern]
    all_slow = known.log_cycles[slow_rows[0]] if slow_rows else math.nan
    roofline, roofline_at = facts.roofline(bits), facts.roofline(at)
    largest_read = int(reads.argmax()) if reads.any() else -1
    largest_write = int(writes.argmax()) if writes.any() else -1
    additive = facts.additive(known, bits) - facts.additive(known, at)
    per_pattern = np.stack(
        [
            anchor,
            anchor - all_slow if slow_rows else np.zeros(count),
            np.full(count, float(bool(slow_rows))),
            to_fast @ reads / cycles,
            to_slow @ reads / cycles,
            to_fast @ writes / cycles,
            to_slow @ writes / cycles,
            ~bits @ reads / cycles,
            ~bits @ writes / cycles,
            bits @ reads / cycles,
            bits @ writes / cycles,
            (to_fast * moved).max(axis=1, initial=0) / cycles,
            (to_slow * moved).max(axis=1, initial=0) / cycles,
            (to_fast | to_slow).sum(axis=1),
            to_fast.sum(axis=1),
            *(_column(matrix, leaf) for leaf in (largest_read, largest_write) for matrix in (bits, at)),
            facts.step.flops / cycles / 1e3,
            facts.step.elementwise / cycles,
            np.log(roofline / roofline_at),
            np.log(roofline_at) - anchor,
            additive,
            np.full(count, len(known.patterns)),
            known.log_cycles[second] - anchor,
            differs[np.arange(count), second] / max(weight.sum(), 1),
        ],
        axis=1,
    ).astype(np.float64)
    return np.hstack([per_pattern, np.broadcast_to(facts.columns, (count, len(_OF_STEP)))]), anchor


def _column(matrix: Bits, leaf: int) -> Array:
    """The column of a matrix for a leaf, as numbers; zeros if the leaf is -1, which means that there is none."""
    return matrix[:, leaf].astype(np.float64) if leaf >= 0 else np.zeros(len(matrix))


@dataclass(frozen=True)
class Trees:
    """A sum of T regression trees, with all their N nodes in one list. Features must not be NaN."""

    start: float
    """Constant summand."""
    roots: NDArray[np.int32]
    """[T] root node of each tree."""
    feature: NDArray[np.int16]
    """[N] feature (column) that a node compares; -1 in leaves of the tree."""
    threshold: NDArray[np.float64]
    """[N] the left child is next if the feature is at most this, otherwise the right child."""
    left: NDArray[np.int32]
    """[N] left child of each node; 0 in leaves of the tree."""
    right: NDArray[np.int32]
    """[N] right child of each node; 0 in leaves of the tree."""
    value: NDArray[np.float32]
    """[N] value that a leaf of the tree adds to the sum."""

    FIELDS = ("start", "roots", "feature", "threshold", "left", "right", "value")

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """[R] the sum of all trees for each row of features; ``rows`` has shape [R, columns]."""
        # This is imported here, because importing numba takes a third of a second, and few programs need predictions.
        from stowplan.hardware.costs.signatures.compiled import add_trees

        total = np.full(len(rows), self.start)
        add_trees(total, rows, self.roots, self.feature, self.threshold, self.left, self.right, self.value)
        return total

    def arrays(self, prefix: str) -> dict[str, Any]:
        """The fields as arrays for :func:`numpy.savez`, by their names, each after the prefix and a dot."""
        return {f"{prefix}.{name}": np.asarray(getattr(self, name)) for name in self.FIELDS}

    @classmethod
    def of_arrays(cls, arrays: dict[str, NDArray[np.generic]], prefix: str, columns: int) -> Trees:
        """The trees from the result of :meth:`arrays`; raises InputError if they are no trees over ``columns`` features."""
        kinds = {"start": np.float64, "feature": np.int16, "threshold": np.float64, "value": np.float32}
        values = {}
        for name in cls.FIELDS:
            expect(f"{prefix}.{name}" in arrays, f"{prefix}.{name}", "no such array", "one")
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
            # Children come after their parents, so that the evaluation always ends.
            and all((values[side][inner] > numbers[inner]).all() for side in ("left", "right"))
            and all((values[side] < size).all() for side in ("left", "right"))
            and np.isfinite(values["value"]).all()
        )
        expect(fits, prefix, "arrays that do not fit each other", "trees")
        return cls(float(values.pop("start")), **values)


FORMAT = "stowplan.latency_predictor"
VERSION = 1

#: Files of the predictors in the package. ``benchmarks/costs/latency_tables.py --write`` trains them on XLA's estimates.
SHIPPED = {name: Path(__file__).with_name(f"{name}.npz") for name in get_args(PredictorName)}

#: Predictions are clipped to differ by at most this factor from the nearest known pattern, and ends of intervals by at most
#: this factor from the prediction, so that a wild extrapolation of the trees stays finite.
_LIMIT = 20.0


class Prediction(NamedTuple):
    """Predicted cycles of P patterns of one step, with intervals; all arrays have shape [P]."""

    cycles: Array
    """Predicted cycles of one run."""
    low: Array
    """Lower end of the interval. It contains the compiler's cycles in nine of ten cases; ``docs/results/costs.md`` has the
    measured frequencies."""
    high: Array
    """Upper end of the interval."""


@dataclass(frozen=True)
class Predictor:
    """Trained trees that predict the cycles of a pattern relative to those of the nearest known pattern of the same step."""

    middle: Trees
    """Trees that predict the logarithm of the ratio of the cycles to those of the nearest known pattern."""
    spread: Trees
    """Trees that predict the logarithm of the typical error of ``middle``."""
    width: float
    """Half of the interval's width, as a multiple of the typical error."""

    def predict(self, facts: StepFacts, known: Known, bits: Bits) -> Prediction:
        """Predicts the cycles of patterns of a step.

        Parameters
        ----------
        facts
            The step.
        known
            Entries of the latency table for its signature, at least one.
        bits
            [P, leaves] the patterns.
        """
        matrix, anchor = features(facts, known, bits)
        ratio = np.clip(self.middle.predict(matrix), -np.log(_LIMIT), np.log(_LIMIT))
        half = np.minimum(self.width * np.exp(self.spread.predict(matrix)), np.log(_LIMIT))
        middle = anchor + ratio
        return Prediction(np.exp(middle), np.exp(middle - half), np.exp(middle + half))

    def save(self, path: str | Path) -> None:
        """Writes the predictor to a file of compressed NumPy arrays, atomically. Raises InputError if the file cannot be
        written."""
        out = io.BytesIO()
        head = {"format": FORMAT, "version": VERSION, "names": NAMES, "width": self.width}
        arrays: dict[str, Any] = {name: np.array(value) for name, value in head.items()}
        np.savez_compressed(out, **arrays, **self.middle.arrays("middle"), **self.spread.arrays("spread"))
        files.write_atomic(path, out.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Predictor:
        """Reads a predictor from a file; raises :class:`~stowplan.errors.InputError`, which names the file and the array, if it
        is none."""
        arrays = files.read_arrays(path, f"a {FORMAT} file")
        with naming(path):
            return _of_arrays(arrays)


def _of_arrays(arrays: dict[str, NDArray[np.generic]]) -> Predictor:
    """The predictor from the arrays of its file; raises InputError if they are no predictor of this version."""
    for name, expected in (("format", FORMAT), ("version", VERSION)):
        stored = arrays[name].item() if name in arrays and arrays[name].ndim == 0 else None
        expect(stored == expected, name, f"{name} {stored!r}", f"{expected!r}")
    names = tuple(str(name) for name in arrays["names"].ravel()) if "names" in arrays else ()
    expect(names == NAMES, "names", f"{len(names)} features", f"the {len(NAMES)} of this version")
    width: Any = arrays["width"].item() if "width" in arrays and arrays["width"].ndim == 0 else None
    expect(isinstance(width, float) and 0 <= width < np.inf, "width", f"{width!r}", "a number, at least 0")
    return Predictor(Trees.of_arrays(arrays, "middle", len(NAMES)), Trees.of_arrays(arrays, "spread", len(NAMES)), width)


@cache
def shipped(name: PredictorName = "tpu-v4") -> Predictor:
    """The predictor of this package with this name, the name of a chip; raises KeyError if there is none."""
    return Predictor.load(SHIPPED[name])
