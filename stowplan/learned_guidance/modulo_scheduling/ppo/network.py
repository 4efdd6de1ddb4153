"""The neural network of the PPO mapper, after figure 4 of arXiv:2205.13675.

A *node* is an instruction of the loop body. A step of an episode gives the *current* node a *place*: a tile, which is a
processing element of the CGRA, and a slot, which is a clock modulo the initiation interval (II). A graph network computes an
embedding of each node, the current node attends to all nodes, and an MLP embeds the state of the mapping.

No layer's size depends on the number of tiles or slots. The network computes the score of a tile from its features, from the
embedding of the state, and from two sums over attended nodes (weights and weighted values): the nodes that are placed on the
tile, and the nodes on all tiles to which it can send a value over at most one link. The score of a slot is computed from the
tile and from features such as the number of clocks that the node would wait for the slot (:data:`SLOT_FEATURES`). The
probability of a place is the probability of its tile times the probability of its slot given the tile.

Observations are those of :func:`stowplan.learned_guidance.modulo_scheduling.observation.observe`, in batches. In shapes, B is
the number of observations of a batch, and G is the number of graphs. N is the number of nodes of a graph, E of its edges, T of
tiles, and S of slots. H is the width of hidden layers, and F the number of features. Arrays are padded where graphs or machines
differ in size.
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

#: Number of features of a slot. They are computed from three numbers of clocks: the *delay* from the first legal slot of the
#: tile to this slot; the *wait* from the arrival of the node's operands on the tile to this slot; and the *slack*, by which the
#: node could be issued later without a value on a recurrence being late (negative if one is late already). The features are, in
#: this order: the delay divided by the II; the delay clipped to at most 8, divided by 8; whether the delay is 0; the wait
#: divided by the II; the slack clipped to between -8 and 8, divided by 8; and whether the slack is negative.
SLOT_FEATURES = 6

#: Score of padding. A real tile or slot that is not legal gets half of it.
_NEVER = -1e9


class MessageLayer(nn.Module):
    """Passes messages along and against edges, sums those that arrive at a node, and adds a residual connection."""

    def __init__(self, hidden: int):
        super().__init__()
        self.along = nn.Linear(hidden, hidden)
        self.against = nn.Linear(hidden, hidden)
        self.edge = nn.Linear(EDGE_FEATURES, 2 * hidden)
        self.update = nn.Sequential(Dense(3 * hidden, hidden), nn.Linear(hidden, hidden))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor, features: Tensor) -> Tensor:
        """Return the new embeddings [nodes, H].

        Arguments are the old embeddings [nodes, H] of nodes, and the producer [edges] (``source``), the consumer [edges]
        (``target``) and the features [edges, F] of each edge. Nodes and edges are those of all graphs, without padding.
        """
        along, against = self.edge(features).chunk(2, dim=1)
        received = _sum(torch.relu(self.along(nodes)[source] + along), target, len(nodes))
        returned = _sum(torch.relu(self.against(nodes)[target] + against), source, len(nodes))
        updated: Tensor = self.norm(nodes + self.update(torch.cat([nodes, received, returned], dim=1)))
        return updated


def _sum(values: Tensor, place: Tensor, count: int) -> Tensor:
    """Return [count, H]: row i is the sum of those rows of ``values`` whose entry in ``place`` is i."""
    return values.new_zeros(count, values.shape[1]).index_add_(0, place, values)


class GraphNetwork(nn.Module):
    """Computes embeddings of the nodes of loop bodies."""

    def __init__(self, config: PpoConfig):
        super().__init__()
        self.first = Dense(NODE_FEATURES, config.hidden)
        self.layers = nn.ModuleList(MessageLayer(config.hidden) for _ in range(config.layers))

    def forward(self, nodes: Tensor, edges: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
        """Return the embeddings [G, N, H] of nodes, 0 for padding.

        ``nodes`` [G, N, F] are the features of nodes, and ``features`` [G, E, F] those of edges. ``edges`` [G, E, 2] has the
        producer and the consumer of each edge. ``sizes`` [G, 4] begins with the numbers of nodes and edges of each graph.
        """
        graphs, count = nodes.shape[:2]
        is_node = torch.arange(count, device=nodes.device) < sizes[:, :1]
        hidden = self.first(nodes[is_node])
        if len(self.layers):
            is_edge = torch.arange(edges.shape[1], device=edges.device) < sizes[:, 1:2]
            offsets = (sizes[:, 0].long().cumsum(0) - sizes[:, 0])[:, None, None]
            ends = (edges.long() + offsets)[is_edge]
            source, target, columns = ends[:, 0], ends[:, 1], features[is_edge]
            for layer in self.layers:
                hidden = layer(hidden, source, target, columns)
        embeddings: Tensor = hidden.new_zeros(graphs, count, hidden.shape[1])
        embeddings[is_node] = hidden
        return embeddings


class Network(nn.Module):
    """Actor and critic, which share all layers except the last ones. The configuration sets the sizes."""

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
        # Small weights: an untrained network gives all legal places of a tile, and all tiles, nearly the same probability.
        for layer in (self.tile_score, self.slot_score):
            nn.init.normal_(layer.weight, std=1e-2)
            nn.init.zeros_(layer.bias)

    def embed(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the embeddings [B, N, H] of the nodes. Observations of the same graph share one computation."""
        # Two numbers below 2 ** 22 identify a graph.
        keys = observation["graph"].long()
        _, inverse = torch.unique(keys[:, 0] << 22 | keys[:, 1], return_inverse=True)
        first = torch.full((int(inverse.max()) + 1,), len(keys), device=keys.device)
        first.scatter_reduce_(0, inverse, torch.arange(len(keys), device=keys.device), "amin")
        names = ("nodes", "edges", "edge_features", "sizes")
        embedded: Tensor = self.graph(*(observation[name][first] for name in names))
        return embedded[inverse]

    def forward(self, observation: dict[str, Tensor], embedded: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of places and the values of a batch of observations.

        Parameters
        ----------
        observation
            Arrays from :func:`~stowplan.learned_guidance.modulo_scheduling.observation.observe`, with B as first dimension.
        embedded
            The result of :meth:`embed`; None to compute it here.

        Returns
        -------
        tuple
            Logarithms [B, T, S] of the probabilities of places, and values [B]. Places that are not legal have a
            probability of nearly 0, if any place is legal. To exclude them entirely, apply the observation's mask.
        """
        nodes = self.embed(observation) if embedded is None else embedded
        batch, count, hidden = nodes.shape
        tiles = observation["tiles"]
        width, sizes, overall = tiles.shape[1], observation["sizes"].long(), observation["globals"]
        ii = sizes[:, 3]
        is_node = torch.arange(count, device=nodes.device) < sizes[:, :1]
        is_tile = torch.arange(width, device=nodes.device) < sizes[:, 2:3]
        current = nodes[torch.arange(batch, device=nodes.device), observation["current"].long()[:, 0]]

        # The current node attends to all nodes.
        informed = torch.cat([nodes, observation["states"]], dim=2)
        heads = self.config.heads
        values = self.value(informed)
        query = self.query(torch.cat([current, overall], dim=1)).view(batch, heads, -1)
        keys = self.key(informed).view(batch, count, heads, -1)
        weights = torch.einsum("bhd,bnhd->bnh", query, keys) * (hidden // heads) ** -0.5
        weights = torch.softmax(weights.masked_fill(~is_node[:, :, None], _NEVER), dim=1)
        weighted = (weights[..., None] * values.view(batch, count, heads, -1)).flatten(2)
        context = weighted.sum(dim=1)

        # The embedding of the state: current node, attended nodes, features of the mapping, mean and maximum over tiles.
        masked = tiles * is_tile[..., None]
        pooled = torch.cat([masked.sum(dim=1) / sizes[:, 2:3].clamp(min=1), masked.amax(dim=1)], dim=1)
        state = self.state(torch.cat([current, context, self.dynamic(torch.cat([overall, pooled], dim=1))], dim=1))

        # For each tile, ``on_tile`` is the sum of the attended nodes that are placed on it. ``in_reach`` is the sum of the
        # attended nodes on all tiles to which it can send a value over at most one link.
        place = observation["placed"].long()
        attended = torch.cat([weights, weighted], dim=2) * (place >= 0)[..., None]
        on_tile = attended.new_zeros(batch, width, attended.shape[2])
        on_tile = on_tile.scatter_add(1, place.clamp(min=0)[..., None].expand_as(attended), attended)
        in_reach = torch.bmm((observation["hops"] >= 0).to(on_tile.dtype), on_tile)
        scored = self.tile(torch.cat([tiles, on_tile, in_reach], dim=2)) + self.tile_state(state)[:, None]
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
        """Return the logarithms [B, T, S] of the probabilities of slots given their tile.

        Slots that are not legal have a probability of nearly 0, if any slot of the tile is legal.
        """
        ready = ready.long()
        interval = ii[:, None, None]
        number = torch.arange(legal.shape[2], device=legal.device)
        wait = torch.remainder(number - ready[..., None], interval)
        first = wait.masked_fill(~legal, 1 << 30).amin(dim=2, keepdim=True)
        # Features are computed for legal places only, because most places are not legal.
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
    """Return the arrays of a batch as tensors. Each shares its memory with the array that it was made from."""
    return {name: torch.from_numpy(array) for name, array in observation.items()}
