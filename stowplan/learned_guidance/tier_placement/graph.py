"""A network of layers as the graph that policies see: node features, normalised, and edges. Khadka et al., ICLR 2021, appendix A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from stowplan.errors import InputError, UsageError
from stowplan.hardware.network import OPS
from stowplan.hardware.nnp_i.features import FEATURES
from stowplan.models.tier_placement.problem import Problem

if TYPE_CHECKING:
    from torch_geometric.data import Data

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

FeatureSet = Literal["paper", "chip"]
"""``paper``: the 19 of table 1. ``chip``: besides them what the problem says of sizes against tiers, and of times."""

#: Features that are counts or sizes of any magnitude, of which a policy sees the logarithm.
_LOGARITHMIC = frozenset(FEATURES) - {"op_id"}

#: Logarithms (of base 2) are divided by this: sizes of gigabytes come to about 1.
_MAGNITUDE = 32.0


#: Columns that ``chip`` adds, for T tiers: see :func:`_chip_features`.
def chip_columns(tiers: int) -> tuple[str, ...]:
    """Names of the columns that ``chip`` adds."""
    faster = range(1, tiers)
    return (
        *(f"weights_over_tier_{tier}" for tier in faster),
        *(f"output_over_tier_{tier}" for tier in faster),
        *(f"all_weights_over_tier_{tier}" for tier in faster),
        *(f"live_over_tier_{tier}" for tier in faster),
        "weights_read_part",
        "output_readers",
        "output_steps",
        "compute_over_slow",
        "weights_over_slow",
        "output_over_slow",
        "inputs_over_slow",
        "has_weights",
    )


@dataclass(frozen=True, eq=False)
class Graph:
    """A problem's graph: N layers."""

    features: Floats
    """[N, F] Normalised, nearly all from -1 to 1."""
    edges: Ints
    """[2, E] Activations handed from layer to layer, each in both directions, ascending."""
    has_weights: npt.NDArray[np.bool_]
    """[N] Layers whose weights are to be placed."""
    tiers: int

    def data(self) -> Data:
        """As PyTorch Geometric takes it: ``x`` [N, F], ``edge_index`` [2, E]."""
        import torch
        from torch_geometric.data import Data

        return Data(x=torch.from_numpy(self.features), edge_index=torch.from_numpy(self.edges))


def graph_of(problem: Problem, features: FeatureSet = "paper") -> Graph:
    """The graph of a problem.

    Raises
    ------
    InputError
        The problem has no node features, or others than the 19 of the paper's table 1.
    """
    if features not in get_args(FeatureSet):
        raise UsageError(f"found features {features!r}, expected one of {', '.join(get_args(FeatureSet))}")
    if not problem.features:
        raise InputError("found no node features, expected those that reading a network gives", place="features")
    raw = np.array(problem.features, np.float64)
    if raw.shape[1] != len(FEATURES):
        raise InputError(f"found {raw.shape[1]} features a layer, expected {len(FEATURES)}", place="features[0]")
    columns = [_normalised(name, raw[:, column]) for column, name in enumerate(FEATURES)]
    if features == "chip":
        columns += _chip_features(problem)
    # Both directions, and nothing twice.
    pairs = {(source, number) for number, layer in enumerate(problem.layers) for source in layer.inputs}
    pairs |= {(number, source) for source, number in pairs}
    return Graph(
        features=np.stack(columns, axis=1).astype(np.float32),
        edges=np.array(sorted(pairs), np.int64).reshape(-1, 2).T.copy(),
        has_weights=np.array([layer.weight_bytes > 0 for layer in problem.layers]),
        tiers=len(problem.tiers),
    )


def _normalised(name: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.log2(1.0 + values) / _MAGNITUDE if name in _LOGARITHMIC else values / len(OPS)


def _chip_features(problem: Problem) -> list[npt.NDArray[np.float64]]:
    """What decides where a tensor is worth most: sizes against tiers, times against each other; all but the first from 0 to 1."""
    layers, slow = problem.layers, problem.tiers[0]
    weights = np.array([layer.weight_bytes for layer in layers], float)
    outputs = np.array([layer.output_bytes for layer in layers], float)
    last = np.array(problem.last_use)
    live = np.zeros(len(layers) + 1)
    np.add.at(live, np.arange(len(layers)), outputs)
    np.subtract.at(live, last + 1, outputs)
    live = np.cumsum(live)[:-1]
    capacities = [float(max(1, tier.capacity)) for tier in problem.tiers[1:]]

    def against(sizes: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
        # From -1 to 1, 0 where the tier is just full.
        return [np.clip(np.log2((sizes + 1) / capacity) / 16.0, -1.5, 1.5) for capacity in capacities]

    readers = np.zeros(len(layers))
    for layer in layers:
        for source in layer.inputs:
            readers[source] += 1
    read = np.array([slow.move_ps(layer.weights_read) for layer in layers], float)
    wrote = np.array([slow.move_ps(layer.output_bytes) for layer in layers], float)
    came = np.array([sum(slow.move_ps(layers[source].output_bytes) for source in layer.inputs) for layer in layers], float)
    external = np.array([slow.move_ps(layer.external_bytes) for layer in layers], float)
    compute = np.array([layer.compute_ps for layer in layers], float)
    whole = np.maximum(1.0, read + wrote + came + external)
    return [
        *against(weights),
        *against(outputs),
        *against(np.full(len(layers), weights.sum())),
        *against(live),
        np.array([layer.weights_read for layer in layers]) / np.maximum(1.0, weights),
        np.log2(1.0 + readers) / 4.0,
        np.log2(1.0 + last - np.arange(len(layers))) / 8.0,
        np.minimum(1.0, compute / whole),
        read / whole,
        wrote / whole,
        came / whole,
        (weights > 0).astype(float),
    ]
