"""Graph U-Nets (Gao and Ji, 2019) as EGRL's actor and critic: graph attention, top-k pooling, summed skips.

The parameters of a network are one row of numbers, which the evolution changes. In a forward pass, either all graphs of a batch
share one row, or each graph has a row of its own, so that one pass can evaluate a whole population. The graphs of a batch are
copies of one graph: they have the same nodes and edges, but each may have other features.

Gao and Ji square the adjacency matrix of the remaining nodes before each pooling, so that nodes without remaining neighbours
stay connected. Here, two remaining nodes of level ``l`` are connected if at most ``2 ** l`` edges of the original graph lead
from one to the other (its graph power ``2 ** l``). These powers are computed once for each graph, before any pooling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

#: Fraction of the nodes that each pooling keeps.
POOLING_RATIO = 0.5

#: Slope of the leaky ReLU before the softmax of attention (Velickovic et al., 2018), and the limit to which its input is
#: clipped.
_SLOPE, _STEEPEST = 0.2, 30.0

_EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """Sizes of a network."""

    features: int
    """Columns of a node: its features, and the tiers that the previous proposal gave to its weights and its output."""
    hidden: int
    """Width of the hidden layers."""
    heads: int
    """Number of attention heads."""
    depth: int
    """Number of levels; the first has no pooling."""
    tiers: int
    """Number of tiers."""


class Structure:
    """Edges of a graph of N nodes on the levels of a Graph U-Net.

    Parameters
    ----------
    edges
        [2, E] edges in both directions.
    """

    def __init__(self, nodes: int, edges: npt.NDArray[np.int64], depth: int):
        self.nodes = nodes
        # Boolean, as a product of integers counts paths, and a count that overflows to 0 would lose its edge.
        near = sparse.csr_array(
            (np.ones(edges.shape[1], np.bool_), (edges[0], edges[1])), shape=(nodes, nodes)
        ) + sparse.eye_array(nodes, dtype=np.bool_, format="csr")
        self.powers: list[Tensor] = []
        """[2, E] edges of each level, from and to, including a loop at each node."""
        for level in range(depth):
            if level:
                near = near @ near
            adjacency = near.tocoo()
            self.powers.append(torch.from_numpy(np.stack([adjacency.row, adjacency.col]).astype(np.int64)))
        self._copies: dict[int, Tensor] = {}

    def edges(self, level: int, kept: Tensor | None, copies: int) -> Tensor:
        """Return the edges [2, E] of a whole batch. The nodes of its graphs are numbered consecutively, one graph after the
        other.

        Parameters
        ----------
        kept
            [B, k] remaining nodes of each graph; None for all.
        copies
            Number of graphs in the batch.
        """
        source, target = self.powers[level]
        if kept is None:
            if copies not in self._copies:
                shift = self.nodes * torch.arange(copies).repeat_interleave(len(source))
                self._copies[copies] = torch.stack([source.repeat(copies), target.repeat(copies)]) + shift
            return self._copies[copies]
        place = torch.full((copies, self.nodes), -1)
        place.scatter_(1, kept, torch.arange(kept.shape[1]).expand_as(kept))
        ends = place[:, source], place[:, target]
        copy, edge = ((ends[0] >= 0) & (ends[1] >= 0)).nonzero(as_tuple=True)
        shift = copy * kept.shape[1]
        return torch.stack([ends[0][copy, edge] + shift, ends[1][copy, edge] + shift])


class RowNetwork(nn.Module):
    """A network whose parameters are one row, in the order of :meth:`_sizes`."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        place = 0
        for name, size in self._sizes():
            self._places[name] = (place, size)
            place += math.prod(size)
        self.row = nn.Parameter(torch.empty(place))
        """[P] all parameters, one after the other."""
        with torch.no_grad():
            for name, (place, size) in self._places.items():
                _begin(name, self.row[place : place + math.prod(size)].view(size))

    def _sizes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of each parameter."""
        raise NotImplementedError

    def first_ranges(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the least and largest initial value ``[P]`` of each parameter, which is drawn uniformly between them."""
        ranges = [(_first_range(name, size), math.prod(size)) for name, size in self._sizes()]
        low, high = (np.concatenate([np.full(count, limits[end], np.float32) for limits, count in ranges]) for end in range(2))
        return low, high

    def _unpacked(self, rows: Tensor | None) -> dict[str, Tensor]:
        """Return the parameters by name, each ``[M, ...]``; M is 1 if all graphs share them."""
        rows = self.row[None] if rows is None else rows
        return {
            name: rows[:, place : place + math.prod(size)].view(len(rows), *size)
            for name, (place, size) in self._places.items()
        }

    def _node_sizes(self, columns: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of each parameter of the U-Net, for nodes with this number of columns."""
        hidden, heads = self.shape.hidden, self.shape.heads
        yield from _dense("first", columns, hidden)
        for number in range(2 * self.shape.depth - 1):
            yield from _dense(f"conv{number}", hidden, hidden)
            yield f"conv{number}.from", (heads, hidden // heads)
            yield f"conv{number}.to", (heads, hidden // heads)
            for part in ("scale", "shift", "centre"):
                yield f"norm{number}.{part}", (1, hidden)
        for number in range(self.shape.depth - 1):
            yield f"pool{number}", (hidden, 1)

    def _nodes(self, parts: dict[str, Tensor], x: Tensor, structure: Structure) -> Tensor:
        """Apply the U-Net: map nodes ``[B, N, columns]`` to ``[B, N, hidden]``."""
        copies = len(x)
        depth = self.shape.depth
        x = functional.elu(_linear(parts, "first", x))
        above: list[tuple[Tensor, Tensor, Tensor]] = []
        kept: Tensor | None = None
        edges = structure.edges(0, None, copies)
        for level in range(depth):
            if level:
                vector = parts[f"pool{level - 1}"]
                score = torch.tanh((x @ vector)[..., 0] / (vector.norm(dim=1) + _EPSILON))
                count = math.ceil(POOLING_RATIO * x.shape[1])
                # Sorted by index, not by score: graphs that keep the same nodes then have them in the same order, so that sums
                # over nodes are rounded in the same way.
                chosen = score.detach().sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values
                above.append((x, edges, chosen))
                x = x.gather(1, _wide(chosen, x)) * score.gather(1, chosen)[..., None]
                kept = chosen if kept is None else kept.gather(1, chosen)
                edges = structure.edges(level, kept, copies)
            x = x + self._convolve(parts, level, x, edges)
        for number in range(depth, 2 * depth - 1):
            below = x
            x, edges, chosen = above.pop()
            x = x.scatter_add(1, _wide(chosen, below), below)
            x = x + self._convolve(parts, number, x, edges)
        return x

    def _convolve(self, parts: dict[str, Tensor], number: int, x: Tensor, edges: Tensor) -> Tensor:
        """Apply graph attention, a norm over the nodes of each graph, and ELU."""
        copies, nodes, hidden = x.shape
        heads = self.shape.heads
        name = f"conv{number}"
        values = (x @ parts[f"{name}.weight"]).view(copies, nodes, heads, -1)
        scores = [(values * parts[f"{name}.{end}"][:, None]).sum(-1).flatten(0, 1) for end in ("from", "to")]
        source, target = edges
        attention = functional.leaky_relu(scores[0].index_select(0, source) + scores[1].index_select(0, target), _SLOPE)
        raised = attention.clamp(-_STEEPEST, _STEEPEST).exp()
        total = torch.zeros_like(scores[0]).index_add(0, target, raised)
        flat = values.flatten(0, 1)
        mixed = torch.zeros_like(flat).index_add(0, target, raised[..., None] * flat.index_select(0, source))
        x = (mixed / total[..., None]).view(copies, nodes, hidden) + parts[f"{name}.bias"]
        norm = f"norm{number}"
        x = x - x.mean(1, keepdim=True) * parts[f"{norm}.centre"]
        scale = parts[f"{norm}.scale"] * torch.rsqrt((x * x).mean(1, keepdim=True) + _EPSILON)
        return functional.elu(x * scale + parts[f"{norm}.shift"])


class Actor(RowNetwork):
    """A policy, which computes logits of tiers for the weights and for the output of each layer."""

    def _sizes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden = self.shape.hidden
        yield from self._node_sizes(self.shape.features)
        yield from _dense("layer0", hidden, hidden)
        yield from _dense("layer1", hidden, hidden)
        yield from _dense("tiers", hidden, 2 * self.shape.tiers)

    def forward(self, states: Tensor, structure: Structure, rows: Tensor | None = None) -> Tensor:
        """Map ``[B, N, features]`` to logits ``[B, N, 2, tiers]``, for weights and outputs. ``rows`` [B, P] are parameters for
        each graph; by default all graphs use those of the network."""
        parts = self._unpacked(rows)
        x = self._nodes(parts, states, structure)
        for name in ("layer0", "layer1"):
            x = torch.tanh(_linear(parts, name, x))
        logits = _linear(parts, "tiers", x)
        return logits.view(*logits.shape[:2], 2, self.shape.tiers)


class Critic(RowNetwork):
    """Two estimates of the reward of a map.

    Parameters
    ----------
    pooling
        How the nodes of a graph are combined: ``max`` or ``mean``.
    """

    def __init__(self, shape: Shape, pooling: str):
        self._pooling = pooling
        super().__init__(shape)

    def _sizes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden = self.shape.hidden
        yield from self._node_sizes(self.shape.features + 2 * self.shape.tiers)
        for head in range(2):
            yield from _dense(f"head{head}", hidden, hidden)
            yield from _dense(f"value{head}", hidden, 1)

    def forward(self, states: Tensor, actions: Tensor, structure: Structure) -> Tensor:
        """Map ``[B, N, features]`` and one-hot actions ``[B, N, 2, tiers]``, possibly noisy, to ``[B, 2]``."""
        parts = self._unpacked(None)
        x = self._nodes(parts, torch.cat([states, actions.flatten(2)], 2), structure)
        pooled = x.amax(1, keepdim=True) if self._pooling == "max" else x.mean(1, keepdim=True)
        values = [
            _linear(parts, f"value{head}", torch.tanh(_linear(parts, f"head{head}", pooled)))[:, 0, 0] for head in range(2)
        ]
        return torch.stack(values, 1)


def _dense(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of the parameters of a linear layer."""
    yield f"{name}.weight", (inputs, outputs)
    yield f"{name}.bias", (1, outputs)


def _linear(parts: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Apply a linear layer."""
    return x @ parts[f"{name}.weight"] + parts[f"{name}.bias"]


def _wide(chosen: Tensor, x: Tensor) -> Tensor:
    """Return indices ``[B, k]`` of nodes repeated for each column of ``x``, as gather and scatter require them."""
    return chosen[..., None].expand(-1, -1, x.shape[-1])


def _begin(name: str, part: Tensor) -> None:
    """Set initial values: Glorot and Bengio's for weights, 1 for scales, 0 for biases."""
    low, high = _first_range(name, tuple(part.shape))
    if low < high:
        part.uniform_(low, high)
    else:
        part.fill_(low)


def _first_range(name: str, size: tuple[int, ...]) -> tuple[float, float]:
    """Return the range from which initial values are drawn uniformly."""
    if name.endswith((".bias", ".shift")):
        return 0.0, 0.0
    if name.endswith((".scale", ".centre")):
        return 1.0, 1.0
    bound = math.sqrt(6.0 / sum(size))
    return -bound, bound
