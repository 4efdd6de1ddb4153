"""A network of layers as a graph for policies, with normalised node features and edges.

Khadka et al., ICLR 2021, appendix A; ``docs/reference/tier-placement.md``, section *Node features*, has a table of all columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from stowplan.errors import InputError, UsageError
from stowplan.hardware.network import OPS
from stowplan.hardware.nnp_i.problem import FEATURES
from stowplan.models.tier_placement.problem import Problem

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

FeatureSet = Literal["paper", "chip"]
"""``paper``: the 19 features of table 1. ``chip``: in addition, sizes relative to the tiers, and times."""
#: Largest absolute value of a normalised feature; nearly all are from -1 to 1.
BOUND = 2.0

#: Base-2 logarithms of counts and sizes are divided by this, which maps gigabytes to about 1.
_MAGNITUDE = 32.0


def columns(features: FeatureSet, tiers: int) -> tuple[str, ...]:
    """Return the names of the columns of a feature set for a number of tiers; raise UsageError if there is no such set."""
    _check(features)
    if features == "paper":
        return FEATURES
    faster = range(1, tiers)
    return (
        *FEATURES,
        *(f"{what}_over_tier_{tier}" for what in ("weights", "output", "all_weights", "live") for tier in faster),
        "weights_read",
        "readers",
        "steps",
        "compute_time",
        "weights_time",
        "output_time",
        "inputs_time",
        "has_weights",
    )


@dataclass(frozen=True, eq=False)
class Graph:
    """The graph of a problem with N layers."""

    features: Floats
    """[N, F] normalised features in [-BOUND, BOUND], with the columns of :func:`columns`."""
    edges: Ints
    """[2, E] activations passed between layers, in both directions, in ascending order."""
    has_weights: npt.NDArray[np.bool_]
    """[N] whether the layer has weights to place."""
    tiers: int
    """Number of tiers of the chip."""


def graph_of(problem: Problem, features: FeatureSet = "paper") -> Graph:
    """Return the graph of a problem.

    Raises
    ------
    InputError
        If the problem has no node features, another number than the 19 of the paper's table 1 for each layer, or negative ones.
    UsageError
        If there is no such feature set.
    """
    _check(features)
    if not problem.features:
        raise InputError("found no node features, expected those that reading a network gives", place="features")
    if len(problem.features[0]) != len(FEATURES):
        raise InputError(f"found {len(problem.features[0])} features a layer, expected {len(FEATURES)}", place="features[0]")
    raw = np.array(problem.features, np.float64)
    if raw.min() < 0:
        layer, column = np.argwhere(raw < 0)[0].tolist()
        raise InputError(f"found {FEATURES[column]} {int(raw[layer, column])}, expected 0 or more", place=f"features[{layer}]")
    values = np.log2(1.0 + raw) / _MAGNITUDE
    kind = FEATURES.index("op_id")
    values[:, kind] = raw[:, kind] / len(OPS)
    if features == "chip":
        values = np.concatenate([values, _chip_features(problem)], axis=1)
    # Both directions, without duplicates.
    pairs = {(source, number) for number, layer in enumerate(problem.layers) for source in layer.inputs}
    pairs |= {(number, source) for source, number in pairs}
    return Graph(
        features=np.clip(values, -BOUND, BOUND).astype(np.float32),
        edges=np.array(sorted(pairs), np.int64).reshape(-1, 2).T.copy(),
        has_weights=np.array([layer.weight_bytes > 0 for layer in problem.layers]),
        tiers=len(problem.tiers),
    )


def _check(features: FeatureSet) -> None:
    """Raise UsageError if there is no such feature set."""
    if features not in get_args(FeatureSet):
        raise UsageError(f"found features {features!r}, expected one of {', '.join(get_args(FeatureSet))}")


def _chip_features(problem: Problem) -> npt.NDArray[np.float64]:
    """Return the additional features [N, columns of ``chip``]: sizes relative to the tiers, and relative times."""
    layers, slow = problem.layers, problem.tiers[0]
    count, last = len(layers), np.array(problem.last_use)
    weights = np.array([layer.weight_bytes for layer in layers], float)
    outputs = np.array([layer.output_bytes for layer in layers], float)
    live = np.zeros(count + 1)
    np.add.at(live, np.arange(count), outputs)
    np.subtract.at(live, last + 1, outputs)
    live = np.cumsum(live)[:-1]

    def against(sizes: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
        # 0 if the tensor has the size of the tier; a size of 0 gives about the least value.
        return [np.clip(np.log2((sizes + 1) / max(1, tier.capacity)) / 16.0, -1.5, 1.5) for tier in problem.tiers[1:]]

    read = np.array([layer.weights_read for layer in layers], float)
    readers = np.bincount([source for layer in layers for source in layer.inputs], minlength=count)
    # Times if all tensors are in the slowest tier.
    weights_ps = np.array([slow.move_ps(layer.weights_read) for layer in layers], float)
    output_ps = np.array([slow.move_ps(layer.output_bytes) for layer in layers], float)
    inputs_ps = np.array([sum(slow.move_ps(layers[source].output_bytes) for source in layer.inputs) for layer in layers], float)
    external_ps = np.array([slow.move_ps(layer.external_bytes) for layer in layers], float)
    memory_ps = np.maximum(1.0, weights_ps + output_ps + inputs_ps + external_ps)
    compute_ps = np.array([layer.compute_ps for layer in layers], float)
    features = [
        *against(weights),
        *against(outputs),
        *against(np.full(count, weights.sum())),
        *against(live),
        np.minimum(1.0, read / np.maximum(1.0, weights)),
        np.log2(1.0 + readers) / 4.0,
        np.log2(1.0 + last - np.arange(count)) / 8.0,
        np.minimum(1.0, compute_ps / memory_ps),
        weights_ps / memory_ps,
        output_ps / memory_ps,
        inputs_ps / memory_ps,
        weights > 0,
    ]
    return np.stack(features, axis=1).astype(np.float64)
