"""Graph U-Nets (Gao and Ji, 2019) as EGRL's actor and critic: attention, top-k pooling over the squared adjacency, summed skips.

Nodes of several graphs stand one behind the other, as PyTorch Geometric batches them: ``batch`` [N] says whose each node is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GraphNorm, TopKPooling, global_max_pool, global_mean_pool

#: Part of the nodes that each pooling keeps.
POOLING_RATIO = 0.5


@dataclass(frozen=True)
class Shape:
    """Sizes of a network."""

    features: int
    """Columns of a node, the previous actions included."""
    hidden: int
    heads: int
    depth: int
    tiers: int


class Nodes(nn.Module):
    """What a Graph U-Net makes of each node: ``[N, columns]`` to ``[N, hidden]``."""

    def __init__(self, columns: int, hidden: int, heads: int, depth: int):
        super().__init__()
        self.first = nn.Linear(columns, hidden)
        make = lambda: GATConv(hidden, hidden // heads, heads)  # noqa: E731
        self.down = nn.ModuleList(make() for _ in range(depth))
        self.up = nn.ModuleList(make() for _ in range(depth - 1))
        self.norms = nn.ModuleList(GraphNorm(hidden) for _ in range(2 * depth - 1))
        self.pools = nn.ModuleList(TopKPooling(hidden, POOLING_RATIO) for _ in range(depth - 1))

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        graphs = int(batch[-1]) + 1
        x = functional.elu(self.first(x))
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        places: list[Tensor] = []
        for level, conv in enumerate(self.down):
            if level:
                kept.append((x, edges, batch))
                edges = two_steps(edges, x.shape[0])
                x, edges, _, batch, place, _ = self.pools[level - 1](x, edges, None, batch)
                places.append(place)
            x = x + functional.elu(self.norms[level](conv(x, edges), batch, graphs))
        for level, conv in enumerate(self.up):
            below, (x, edges, batch), place = x, kept.pop(), places.pop()
            x = x.index_add(0, place, below)
            x = x + functional.elu(self.norms[len(self.down) + level](conv(x, edges), batch, graphs))
        return x


def two_steps(edges: Tensor, nodes: int) -> Tensor:
    """Edges between nodes that are at most two steps apart, without loops."""
    source, target = edges.numpy()
    ones = np.ones(len(source), np.bool_)
    near = sparse.csr_array((ones, (source, target)), shape=(nodes, nodes)) + sparse.eye_array(nodes, dtype=np.bool_, format="csr")
    found = (near @ near).tocoo()
    apart = found.row != found.col
    return torch.from_numpy(np.stack([found.row[apart], found.col[apart]]).astype(np.int64))


class Actor(nn.Module):
    """A policy: logits of tiers for the weights and for the output of each layer."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.tiers = shape.tiers
        self.nodes = Nodes(shape.features, shape.hidden, shape.heads, shape.depth)
        self.layers = nn.Sequential(
            nn.Linear(shape.hidden, shape.hidden), nn.Tanh(), nn.Linear(shape.hidden, shape.hidden), nn.Tanh()
        )
        self.heads = nn.Linear(shape.hidden, 2 * shape.tiers)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        """``[N, features]`` to ``[N, 2, tiers]``: weights, then outputs."""
        logits: Tensor = self.heads(self.layers(self.nodes(x, edges, batch)))
        return logits.view(-1, 2, self.tiers)


class Critic(nn.Module):
    """Two estimates of the reward of a map."""

    def __init__(self, shape: Shape, pooling: str):
        super().__init__()
        self.pool = global_max_pool if pooling == "max" else global_mean_pool
        self.nodes = Nodes(shape.features + 2 * shape.tiers, shape.hidden, shape.heads, shape.depth)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(shape.hidden, shape.hidden), nn.Tanh(), nn.Linear(shape.hidden, 1)) for _ in range(2)
        )

    def forward(self, x: Tensor, actions: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        """``[N, features]`` and one-hot actions ``[N, 2, tiers]``, maybe noisy, to ``[graphs, 2]``."""
        pooled = self.pool(self.nodes(torch.cat([x, actions.flatten(1)], 1), edges, batch), batch)
        return torch.cat([head(pooled) for head in self.heads], 1)
