"""Layers of EGRL's networks beside PyTorch Geometric's: attention, norm, pooling, and the Graph U-Net made of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import torch
from torch.nn import functional
from torch_geometric.nn import GATConv, GraphNorm, TopKPooling
from torch_geometric.utils import subgraph

from stowplan.learned_guidance.tier_placement.egrl.network import Actor, Shape, Structure

NODES, HIDDEN, HEADS = 13, 12, 3
SHAPE = Shape(features=5, hidden=HIDDEN, heads=HEADS, depth=3, tiers=3)

#: Of double precision.
CLOSE = {"rtol": 1e-6, "atol": 1e-8}


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """In single precision a tie between nodes may be broken in two ways."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def random_edges(seed: int) -> np.ndarray:
    """[2, E] In both directions, each once; some nodes may have none."""
    chance = np.random.default_rng(seed)
    pairs = {(int(a), int(b)) for a, b in chance.integers(NODES, size=(16, 2)) if a != b}
    return np.array(sorted(pairs | {(b, a) for a, b in pairs})).T


def any_actor(seed: int) -> Actor:
    """One with no parameter at 0 or 1, and pooling vectors so long that the 1e-5 added to their lengths says nothing."""
    torch.manual_seed(seed)
    actor = Actor(SHAPE)
    with torch.no_grad():
        actor.row.add_(0.2 * torch.randn_like(actor.row))
        for level in range(SHAPE.depth - 1):
            actor._unpacked(None)[f"pool{level}"].mul_(1e6)
    return actor


def attention(parts: dict[str, torch.Tensor], number: int) -> tuple[GATConv, GraphNorm]:
    """PyG's layers with the weights of one of ours."""
    conv, norm = GATConv(HIDDEN, HIDDEN // HEADS, HEADS, add_self_loops=False), GraphNorm(HIDDEN)
    ours = {
        conv.lin.weight: parts[f"conv{number}.weight"][0].T,
        conv.att_src: parts[f"conv{number}.from"],
        conv.att_dst: parts[f"conv{number}.to"],
        conv.bias: parts[f"conv{number}.bias"][0, 0],
        norm.weight: parts[f"norm{number}.scale"][0, 0],
        norm.bias: parts[f"norm{number}.shift"][0, 0],
        norm.mean_scale: parts[f"norm{number}.centre"][0, 0],
    }
    with torch.no_grad():
        for parameter, value in ours.items():
            parameter.copy_(value)
    return conv, norm


def pooling(parts: dict[str, torch.Tensor], number: int) -> TopKPooling:
    """PyG's pooling with our vector."""
    found = TopKPooling(HIDDEN, ratio=0.5)
    with torch.no_grad():
        found.select.weight.copy_(parts[f"pool{number}"][0].T)
    return found


def pyg_unet(parts: dict[str, torch.Tensor], x: torch.Tensor, edges: np.ndarray) -> torch.Tensor:
    """``[N, hidden]`` Of one graph: the same network of PyG's layers; powers of the graph by its dense matrix."""
    near = np.eye(NODES, dtype=int)
    near[edges[0], edges[1]] = 1
    whole = [torch.from_numpy(np.stack(np.nonzero(np.linalg.matrix_power(near, 2**level)))) for level in range(SHAPE.depth)]

    def convolved(number: int, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        conv, norm = attention(parts, number)
        return x + functional.elu(norm(conv(x, edges)))

    x = functional.elu(x @ parts["first.weight"][0] + parts["first.bias"][0])
    x = convolved(0, x, whole[0])
    kept, above = torch.arange(NODES), []
    for level in range(1, SHAPE.depth):
        above.append((x, kept))
        last = subgraph(kept, whole[level - 1], relabel_nodes=True, num_nodes=NODES)[0]
        pooled, _, _, _, chosen, _ = pooling(parts, level - 1)(x, last)
        order = chosen.argsort()
        kept, x = kept[chosen[order]], pooled[order]
        x = convolved(level, x, subgraph(kept, whole[level], relabel_nodes=True, num_nodes=NODES)[0])
    for number in range(SHAPE.depth, 2 * SHAPE.depth - 1):
        skip, before = above.pop()
        level = len(above)
        x = skip.index_add(0, torch.searchsorted(before, kept), x)
        kept = before
        x = convolved(number, x, subgraph(kept, whole[level], relabel_nodes=True, num_nodes=NODES)[0])
    return x


@pytest.mark.parametrize("seed", range(8))
def test_attention_and_norm_are_pygs(seed: int) -> None:
    actor, structure = any_actor(seed), Structure(NODES, random_edges(seed), SHAPE.depth)
    x = torch.randn(3, NODES, HIDDEN)
    parts = actor._unpacked(None)
    for number in range(2 * SHAPE.depth - 1):
        found = actor._convolve(parts, number, x, structure.edges(0, None, len(x)))
        conv, norm = attention(parts, number)
        expected = torch.stack([functional.elu(norm(conv(each, structure.powers[0]))) for each in x])
        assert torch.allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("seed", range(8))
def test_the_graph_unet_is_one_of_pygs_layers(seed: int) -> None:
    actor, edges = any_actor(seed), random_edges(seed)
    states = torch.randn(3, NODES, SHAPE.features)
    parts = actor._unpacked(None)
    found = actor._nodes(parts, states, Structure(NODES, edges, SHAPE.depth))
    expected = torch.stack([pyg_unet(parts, each, edges) for each in states])
    assert torch.allclose(found, expected, **CLOSE)


def test_rows_of_a_population_are_networks_of_their_own() -> None:
    actors, edges = [any_actor(seed) for seed in range(3)], random_edges(0)
    states = torch.randn(1, NODES, SHAPE.features)
    structure = Structure(NODES, edges, SHAPE.depth)
    rows = torch.stack([actor.row for actor in actors])
    together = actors[0](states.expand(3, -1, -1), structure, rows)
    alone = torch.cat([actor(states, structure) for actor in actors])
    assert torch.allclose(together, alone, **CLOSE)


def test_an_edge_stays_however_many_paths_stand_for_it() -> None:
    # Between two nodes of these graphs there are 256 paths of two edges or loops, which is 0 in eight bits.
    nodes = 256
    complete = np.array([(a, b) for a in range(nodes) for b in range(nodes) if a != b]).T
    star = complete[:, (complete == 0).any(axis=0)]
    for edges in (star, complete):
        structure = Structure(nodes, edges, SHAPE.depth)
        assert [power.shape[1] for power in structure.powers] == [nodes + edges.shape[1], nodes**2, nodes**2]
    assert bool(any_actor(0)(torch.randn(1, nodes, SHAPE.features), structure).isfinite().all())
