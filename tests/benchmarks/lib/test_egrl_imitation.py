"""Learning from linear relaxations: what they say, that a network learns it, and the same each time."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from benchmarks.lib.tier_placement.imitation import Example, imitate, loss, relaxed
from stowplan.errors import InputError
from stowplan.learned_guidance.tier_placement.decode import Decoder
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.network import Actor, Shape
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from tests.learned_guidance.tier_placement.policies import featured, small_network
from tests.models.tier_placement.brute_force import optimum
from tests.models.tier_placement.cases import random_problem

CONFIG = EgrlConfig.cpu(hidden=8, heads=2, depth=2)


def test_relaxations_are_posteriors_and_their_bounds_hold() -> None:
    for seed in range(25):
        problem = random_problem(seed, layers=3)
        best = optimum(problem)
        if best is None:
            continue
        parts, bound = relaxed(problem)
        assert parts.shape == (len(problem.layers), 2, len(problem.tiers))
        assert np.allclose(parts.sum(-1), 1.0, atol=1e-5)
        assert bound <= best
        assert all(parts[at, 0, 0] == 1 for at, layer in enumerate(problem.layers) if not layer.weight_bytes)


def test_the_relaxation_decoded_is_near_its_bound() -> None:
    problem = small_network(30)
    parts, bound = relaxed(problem)
    assert Decoder(problem).filled(parts).objective <= 1.05 * bound


def test_a_network_that_fits_nowhere() -> None:
    tiers = (Tier(name="slow", capacity=10, bandwidth=10**9), Tier(name="fast", capacity=10, bandwidth=10**10))
    layers = (Layer(name="one", output_bytes=6, weight_bytes=9), Layer(name="two", output_bytes=1, weight_bytes=9))
    with pytest.raises(InputError, match="was not solved"):
        relaxed(Problem(tiers=tiers, layers=layers, name="n"))


def trained(steps: int, should_stop: bool = False) -> tuple[Actor, list[float], int, list[Example]]:
    examples = [Example.of(small_network(count), CONFIG) for count in (6, 9, 12)]
    torch.manual_seed(0)
    actor = Actor(Shape(examples[0].inputs.state.shape[-1], CONFIG.hidden, CONFIG.heads, CONFIG.depth, 2))
    losses: list[float] = []
    done = imitate(
        actor, examples, steps=steps, should_stop=lambda: should_stop, on_progress=lambda _, each: losses.append(each)
    )
    return actor, losses, done, examples


def test_it_learns_and_repeats() -> None:
    actor, losses, done, examples = trained(60)
    assert done == len(losses) == 60
    assert losses[-1] < 0.8 * losses[0]
    assert trained(60)[1] == losses
    # What it learned is what the relaxation says.
    example = examples[-1]
    likeliest = actor(example.inputs.state, example.inputs.structure)[0].argmax(-1)
    agree = (likeliest == example.target.argmax(-1))[example.inputs.placed]
    assert agree.float().mean() > 0.7
    assert float(loss(actor, example).detach()) < 0.7


def test_it_stops() -> None:
    assert trained(60, should_stop=True)[2] == 0


def test_problems_without_features() -> None:
    with pytest.raises(InputError, match="no node features"):
        Example.of(msgspec.structs.replace(featured(small_network()), features=()), CONFIG)
