"""Messages of the mapper's graph network beside those of PyTorch Geometric's GINEConv (Hu et al., 2020)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import torch
from torch import nn
from torch_geometric.nn import GINEConv

from stowplan.learned_guidance.modulo_scheduling.ppo.network import MessageLayer
from stowplan.learned_guidance.modulo_scheduling.view import EDGE_FEATURES

NODES, EDGES, HIDDEN = 9, 20, 8


@pytest.mark.parametrize("seed", range(8))
def test_a_round_of_messages_is_two_of_pygs(seed: int) -> None:
    torch.manual_seed(seed)
    layer = MessageLayer(HIDDEN)
    nodes, features = torch.randn(NODES, HIDDEN), torch.randn(EDGES, EDGE_FEATURES)
    # Edges may be parallel, and loops.
    source, target = torch.randint(NODES, (2, EDGES))
    # With -1 for its epsilon, a node's own embedding is left out: what is left are the messages.
    messages = GINEConv(nn.Identity(), eps=-1.0)
    along, against = layer.edge(features).chunk(2, dim=1)
    received = messages(layer.along(nodes), torch.stack([source, target]), along)
    returned = messages(layer.against(nodes), torch.stack([target, source]), against)
    expected = layer.norm(nodes + layer.update(torch.cat([nodes, received, returned], dim=1)))
    assert torch.allclose(layer(nodes, source, target, features), expected, rtol=1e-4, atol=1e-5)
