"""The network: padding, graphs of a batch, machines of other sizes, and parts left out."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from stowplan.hardware.se.machines import load_machine
from stowplan.learned_guidance.modulo_scheduling.observation import Observation, observe
from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, as_tensors
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.learned_guidance.modulo_scheduling.view import Limits
from tests.learned_guidance.modulo_scheduling.graphs import butterflies, chain, distance

torch.set_num_threads(1)

SMALL = PpoConfig(hidden=8, layers=2, heads=2)


def begun() -> list[Mapping]:
    """Mappings of different graphs, some steps in."""
    found = [Mapping(butterflies(), 3), Mapping(distance(), 1), Mapping(chain(5, machine=load_machine("mesh-3x3")), 2)]
    for mapping in found:
        for _ in range(2):
            tile, slot = np.argwhere(mapping.mask())[3]
            mapping.place(int(tile), int(slot))
    return found


def judged(network: Network, mappings: list[Mapping], limits: Limits) -> tuple[np.ndarray, np.ndarray]:
    seen: list[Observation] = [observe(each, limits) for each in mappings]
    with torch.no_grad():
        scores, values = network(as_tensors({name: np.stack([each[name] for each in seen]) for name in seen[0]}))
    return scores.numpy(), values.numpy()


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    found = Network(SMALL)
    with torch.no_grad():
        for weight in found.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return found


def test_padding_and_company_change_nothing(network: Network) -> None:
    mappings = begun()
    large = Limits(nodes=40, edges=60, tiles=20, slots=9)
    scores, values = judged(network, mappings, large)
    for at, mapping in enumerate(mappings):
        own = Limits.of([mapping.problem], mapping.ii)
        alone, value = judged(network, [mapping], own)
        legal = mapping.mask()
        together = scores[at, : legal.shape[0], : legal.shape[1]]
        assert np.allclose(alone[0][legal], together[legal], atol=1e-5)
        assert np.allclose(value[0], values[at], atol=1e-5)


def test_probabilities_of_legal_places_add_up_to_one(network: Network) -> None:
    mappings = begun()
    scores, _ = judged(network, mappings, Limits(nodes=40, edges=60, tiles=20, slots=9))
    for at, mapping in enumerate(mappings):
        legal = np.zeros(scores.shape[1:], bool)
        legal[: mapping.mask().shape[0], : mapping.ii] = mapping.mask()
        assert np.exp(scores[at][legal]).sum() == pytest.approx(1.0, abs=1e-4)
        assert np.exp(scores[at][~legal]).sum() == pytest.approx(0.0, abs=1e-4)


def test_without_rounds_of_messages_edges_have_no_say() -> None:
    torch.manual_seed(0)
    network = Network(SMALL.changed(layers=0))
    mapping = begun()[0]
    limits = Limits.of([mapping.problem], 4)
    seen = observe(mapping, limits)
    changed = {name: array.copy() for name, array in seen.items()}
    changed["edges"] = changed["edges"][:, ::-1].copy()
    one, two = (network(as_tensors({name: array[None] for name, array in each.items()}))[0] for each in (seen, changed))
    assert torch.equal(one, two)
    gradients = [name for name, weight in network.named_parameters() if weight.grad is not None]
    one.flatten(1)[:, np.flatnonzero(seen["mask"])[:3]].sum().backward()
    gradients = {name for name, weight in network.named_parameters() if weight.grad is not None and weight.grad.abs().sum() > 0}
    assert "query.weight" in gradients
