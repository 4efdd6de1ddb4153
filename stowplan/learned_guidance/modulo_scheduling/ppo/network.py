"""The model of the paper's figure 4: a graph network over the loop body, attention from the node to place, an MLP over states.

The head does not depend on the numbers of tiles and slots. It scores each tile by its features, by the attention on the nodes
there and within one link, and by the embedding of the state; and each slot of a tile by the time that the node would wait. The
probability of a place is the probability of its tile times the probability of its slot given the tile.

Observations are those of :func:`stowplan.learned_guidance.modulo_scheduling.observation.observe`, in batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stowplan.learned_guidance.modulo_scheduling.observation import GLOBAL_FEATURES, STATE_FEATURES, TILE_FEATURES
from stowplan.learned_guidance.modulo_scheduling.view import EDGE_FEATURES, NODE_FEATURES
from stowplan.learned_guidance.nn import Dense

if TYPE_CHECKING:
    from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig

#: Columns of a slot: wait after the tile's first legal slot, in intervals and in clocks, whether it is that slot, its total
#: wait, the slack that recurrences leave after it, and whether this is negative.
SLOT_FEATURES = 6

#: Score of padding, which is no tile or slot.
_NEVER = -1e9


class MessageLayer(nn.Module):
    """Passes messages along and against edges, aggregated by sum and maximum, with a shortcut."""

    def __init__(self, hidden: int):
        super().__init__()
        self.along = nn.Linear(hidden, hidden)
        self.against = nn.Linear(hidden, hidden)
        self.edge = nn.Linear(EDGE_FEATURES, 2 * hidden)
        self.update = nn.Sequential(Dense(3 * hidden, hidden), nn.Linear(hidden, hidden))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor, features: Tensor) -> Tensor:
        """Map nodes [M, H], ends of edges [E] and columns of edges [E, F] to nodes [M, H]."""
        along, against = self.edge(features).chunk(2, dim=1)
        received = _sum(torch.relu(self.along(nodes)[source] + along), target, len(nodes))
        returned = _sum(torch.relu(self.against(nodes)[target] + against), source, len(nodes))
        updated: Tensor = self.norm(nodes + self.update(torch.cat([nodes, received, returned], dim=1)))
        return updated


def _sum(values: Tensor, place: Tensor, count: int) -> Tensor:
    return values.new_zeros(count, values.shape[1]).index_add_(0, place, values)


class GraphNetwork(nn.Module):
    """Computes embeddings of the nodes of loop bodies."""

    def __init__(self, config: PpoConfig):
        super().__init__()
        self.first = Dense(NODE_FEATURES, config.hidden)
        self.layers = nn.ModuleList(MessageLayer(config.hidden) for _ in range(config.layers))

    def forward(self, nodes: Tensor, edges: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
        """Map [G, N, F], [G, E, 2], [G, E, F] and [G, 4] to embeddings [G, N, H], zero for padded nodes."""
        graphs, count = nodes.shape[:2]
        real = torch.arange(count, device=nodes.device) < sizes[:, :1]
        hidden = self.first(nodes[real])
        if len(self.layers):
            there = torch.arange(edges.shape[1], device=edges.device) < sizes[:, 1:2]
            offsets = (sizes[:, 0].long().cumsum(0) - sizes[:, 0])[:, None, None]
            ends = (edges.long() + offsets)[there]
            source, target, columns = ends[:, 0], ends[:, 1], features[there]
            for layer in self.layers:
                hidden = layer(hidden, source, target, columns)
        embeddings: Tensor = hidden.new_zeros(graphs, count, hidden.shape[1])
        embeddings[real] = hidden
        return embeddings


class Network(nn.Module):
    """Actor and critic, which share all layers except their heads. The configuration sets the sizes."""

    def __init__(self, config: PpoConfig):
        super().__init__()
        self.config = config
        hidden, heads = config.hidden, config.heads
        self.graph = GraphNetwork(config)
        self.query = nn.Linear(hidden + GLOBAL_FEATURES, hidden)
        self.key = nn.Linear(hidden + STATE_FEATURES, hidden)
        self.value = nn.Linear(hidden + STATE_FEATURES, hidden)
        self.dynamic = Dense(GLOBAL_FEATURES + 2 * TILE_FEATURES, hidden)
        self.state = Dense(3 * hidden, hidden)
        self.tile = nn.Linear(TILE_FEATURES + 2 * heads + 2 * hidden, 2 * hidden)
        self.tile_state = nn.Linear(hidden, 2 * hidden)
        self.tile_second = Dense(2 * hidden, hidden)
        self.tile_score = nn.Linear(hidden, 1)
        self.slot = nn.Linear(SLOT_FEATURES, 16)
        self.slot_tile = nn.Linear(hidden, 16)
        self.slot_score = nn.Linear(16, 1)
        self.critic = nn.Sequential(Dense(3 * hidden, hidden), nn.Linear(hidden, 1))
        # An untrained network has no preferences.
        for layer in (self.tile_score, self.slot_score):
            nn.init.normal_(layer.weight, std=1e-2)
            nn.init.zeros_(layer.bias)

    def embed(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the embeddings [B, N, H] of the nodes, computed once for each graph of the batch."""
        keys = observation["graph"].long()
        _, inverse = torch.unique(keys[:, 0] << 22 | keys[:, 1], return_inverse=True)
        first = torch.full((int(inverse.max()) + 1,), len(keys), device=keys.device)
        first.scatter_reduce_(0, inverse, torch.arange(len(keys), device=keys.device), "amin")
        names = ("nodes", "edges", "edge_features", "sizes")
        embedded: Tensor = self.graph(*(observation[name][first] for name in names))
        return embedded[inverse]

    def forward(self, observation: dict[str, Tensor], embedded: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute scores and values of a batch.

        Parameters
        ----------
        observation
            Arrays from :func:`~stowplan.learned_guidance.modulo_scheduling.observation.observe`, with B as first dimension.
        embedded
            [B, N, H] from :meth:`embed`, if they have been computed.

        Returns
        -------
        tuple
            Logarithms [B, T, S] of the probabilities of places before masking, and values [B].
        """
        nodes = self.embed(observation) if embedded is None else embedded
        batch, count, hidden = nodes.shape
        tiles = observation["tiles"]
        width, sizes, whole = tiles.shape[1], observation["sizes"].long(), observation["globals"]
        ii = sizes[:, 3]
        is_node = torch.arange(count, device=nodes.device) < sizes[:, :1]
        is_tile = torch.arange(width, device=nodes.device) < sizes[:, 2:3]
        current = nodes[torch.arange(batch, device=nodes.device), observation["current"].long()[:, 0]]

        # Attention from the node to place over all nodes.
        informed = torch.cat([nodes, observation["states"]], dim=2)
        heads = self.config.heads
        values = self.value(informed)
        query = self.query(torch.cat([current, whole], dim=1)).view(batch, heads, -1)
        keys = self.key(informed).view(batch, count, heads, -1)
        weights = torch.einsum("bhd,bnhd->bnh", query, keys) * (hidden // heads) ** -0.5
        weights = torch.softmax(weights.masked_fill(~is_node[:, :, None], _NEVER), dim=1)
        weighted = (weights[..., None] * values.view(batch, count, heads, -1)).flatten(2)
        context = weighted.sum(dim=1)

        # The state of the machine.
        masked = tiles * is_tile[..., None]
        pooled = torch.cat([masked.sum(dim=1) / sizes[:, 2:3].clamp(min=1), masked.amax(dim=1)], dim=1)
        state = self.state(torch.cat([current, context, self.dynamic(torch.cat([whole, pooled], dim=1))], dim=1))

        # Attention on the nodes on a tile, and on those within one link.
        place = observation["placed"].long()
        there = torch.cat([weights, weighted], dim=2) * (place >= 0)[..., None]
        stands = there.new_zeros(batch, width, there.shape[2])
        stands = stands.scatter_add(1, place.clamp(min=0)[..., None].expand_as(there), there)
        near = torch.bmm((observation["hops"] >= 0).to(stands.dtype), stands)
        scored = self.tile(torch.cat([tiles, stands, near], dim=2)) + self.tile_state(state)[:, None]
        scored = self.tile_second(torch.relu(scored))
        tile_scores = self.tile_score(scored)[..., 0].masked_fill(~is_tile, _NEVER)
        legal = observation["mask"][..., : int(ii.max())] > 0
        tile_scores = tile_scores.masked_fill(~legal.any(dim=2) & is_tile, 0.5 * _NEVER)
        slots = self._slots(scored, observation["ready"], observation["slack"], legal, ii)
        scores = torch.log_softmax(tile_scores, dim=1)[..., None] + slots
        scores = functional.pad(scores, (0, observation["mask"].shape[2] - legal.shape[2]), value=_NEVER)
        tile_mean = (scored * is_tile[..., None]).sum(dim=1) / sizes[:, 2:3].clamp(min=1)
        tile_most = scored.masked_fill(~is_tile[..., None], 0.0).amax(dim=1)
        return scores, self.critic(torch.cat([state, tile_mean, tile_most], dim=1))[:, 0]

    def _slots(self, scored: Tensor, ready: Tensor, slack: Tensor, legal: Tensor, ii: Tensor) -> Tensor:
        """Return the logarithms [B, T, S] of the probabilities of slots given their tile; near 0 probability if not legal."""
        ready = ready.long()
        interval = ii[:, None, None]
        number = torch.arange(legal.shape[2], device=legal.device)
        wait = torch.remainder(number - ready[..., None], interval)
        first = wait.masked_fill(~legal, 1 << 30).amin(dim=2, keepdim=True)
        # Only for legal places: most are not legal.
        batch, tile, slot = legal.nonzero(as_tuple=True)
        waits, intervals = wait[batch, tile, slot].float(), ii[batch]
        behind = waits - first[batch, tile, 0]
        left = slack[batch, tile] - behind
        columns = torch.stack(
            [
                behind / intervals,
                behind.clamp(max=8) / 8,
                (behind == 0).float(),
                waits / intervals,
                left.clamp(-8, 8) / 8,
                (left < 0).float(),
            ],
            dim=-1,
        )
        inner = torch.relu(self.slot(columns) + self.slot_tile(scored)[batch, tile])
        scores = torch.where(number < interval, 0.5 * _NEVER, _NEVER).expand(legal.shape).clone()
        scores[batch, tile, slot] = self.slot_score(inner)[:, 0]
        return functional.log_softmax(scores, dim=2)


def as_tensors(observation: dict[str, Any]) -> dict[str, Tensor]:
    """Return the arrays of a batch as tensors that share their memory."""
    return {name: torch.from_numpy(array) for name, array in observation.items()}
