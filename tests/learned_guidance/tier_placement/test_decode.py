"""Decoding posteriors: always valid, the same as a plain reference, and in the order that the policy ranks tensors in."""

from __future__ import annotations

import numpy as np
import pytest

import stowplan
from stowplan.errors import InputError, UsageError
from stowplan.hardware.nnp_i.chip import Chip
from stowplan.hardware.nnp_i.compiler import compiler_plan
from stowplan.hardware.nnp_i.problem import latency_ps
from stowplan.learned_guidance.tier_placement.decode import Decoder, Floats, Ints
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from stowplan.models.tier_placement.verify import verify
from tests.models.tier_placement.brute_force import optimum
from tests.models.tier_placement.cases import chain, random_problem
from tests.paths import EXAMPLES


def posterior(problem: Problem, seed: int) -> Floats:
    raw = np.random.default_rng(seed).random((len(problem.layers), 2, len(problem.tiers))) ** 3
    return raw / raw.sum(axis=-1, keepdims=True)


class Reference:
    """The same, plainly: sets of tensors, rooms and latencies worked out anew each time."""

    def __init__(self, problem: Problem, orders: Ints):
        self.problem, self.orders = problem, orders
        self.tier = dict.fromkeys(range(2 * len(problem.layers)), 0)

    def latency(self) -> int:
        weights, outputs = ([tier for tensor, tier in self.tier.items() if tensor % 2 == part] for part in range(2))
        return latency_ps(self.problem, weights, outputs)

    def holds(self, tier: int) -> bool:
        layers = self.problem.layers
        stored = sum(layers[at // 2].weight_bytes for at in self.tier if not at % 2 and self.tier[at] == tier)
        return all(
            stored
            + sum(
                layers[at // 2].output_bytes
                for at in self.tier
                if at % 2 and self.tier[at] == tier and at // 2 <= step <= self.problem.last_use[at // 2]
            )
            <= self.problem.tiers[tier].capacity
            for step in range(len(layers))
        )

    def gain(self, tensor: int, to: int) -> int:
        was, before = self.tier[tensor], self.latency()
        self.tier[tensor] = to
        after = self.latency()
        self.tier[tensor] = was
        return before - after

    def fill(self, rounds: int) -> list[int]:
        for turn in range(rounds):
            if turn:
                for tier in range(1, len(self.problem.tiers)):
                    for tensor in self.orders[tier - 1, ::-1].tolist():
                        if self.tier[tensor] == tier and self.gain(tensor, 0) == 0:
                            self.tier[tensor] = 0
            for tier in range(len(self.problem.tiers) - 1, 0, -1):
                for tensor in self.orders[tier - 1].tolist():
                    was = self.tier[tensor]
                    is_absent = not tensor % 2 and not self.problem.layers[tensor // 2].weight_bytes
                    if was >= tier or is_absent or (turn and self.gain(tensor, tier) == 0):
                        continue
                    self.tier[tensor] = tier
                    if not self.holds(tier):
                        self.tier[tensor] = was
        return [*self.tier.values()]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_filling_is_as_the_reference_does_it(rounds: int) -> None:
    for seed in range(40):
        problem = random_problem(seed, layers=7)
        if len(problem.tiers) == 1:
            continue
        decoder = Decoder(problem)
        orders = decoder._orders(posterior(problem, seed), 4, seed)
        maps = decoder._fill_maps(orders, rounds)
        for order, found in zip(orders, maps, strict=True):
            assert found.ravel().tolist() == Reference(problem, order).fill(rounds), seed


@pytest.mark.parametrize("address_spaces", [False, True])
def test_plans_are_valid_wherever_the_compiler_finds_one(address_spaces: bool) -> None:
    for seed in range(60):
        problem = random_problem(seed, layers=7, address_spaces=address_spaces)
        decoder, probabilities = Decoder(problem), posterior(problem, seed)
        for method in (decoder.likeliest, decoder.filled):
            try:
                plan = method(probabilities)
            except InputError:
                assert compiler_plan(problem) is None
                continue
            found = verify(problem, plan)
            assert found.ok, (seed, method, found.violations)
            assert found.objective == plan.objective


def test_likeliest_is_what_the_chip_makes_of_them() -> None:
    problem: Problem = stowplan.read(EXAMPLES / "resnet50.layers.json", "nnp-i")
    probabilities = posterior(problem, 1)
    plan = Decoder(problem).likeliest(probabilities)
    best = probabilities.argmax(-1)
    assert plan == Chip(problem).plan(Chip(problem).evaluate(best[:, 0].tolist(), best[:, 1].tolist()).map)


def test_the_best_map_as_a_posterior_is_found_again() -> None:
    """One-hot, and with noise: filling loses nothing, where nothing else would gain."""
    for seed in range(30):
        problem = random_problem(seed, layers=3)
        best = optimum(problem)
        if best is None or compiler_plan(problem) is None:
            continue
        assert Decoder(problem).filled(posterior(problem, seed)).objective >= best
    problem = chain(8)
    # As many as there is room for, in the order of the odds.
    odds = np.linspace(0.9, 0.1, 16).reshape(8, 2)
    plan = Decoder(problem).filled(np.stack([1 - odds, odds], axis=-1), orders=1)
    assert plan.weight_tiers == (1, 1, 1, 1, 0, 0, 0, 0)
    assert plan.output_tiers == (1,) * 8


def test_ties_go_by_number_and_more_orders_are_never_worse() -> None:
    problem: Problem = stowplan.read(EXAMPLES / "resnet50.layers.json", "nnp-i")
    decoder = Decoder(problem)
    even = np.full((len(problem.layers), 2, 3), 1 / 3)
    assert decoder._orders(even, 1, 0).tolist() == [[[*range(2 * len(problem.layers))]] * 2]
    found = [decoder.filled(posterior(problem, 2), orders=count).objective for count in (1, 3, 9, 40)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < Chip(problem).compiler_ps
    assert decoder.filled(posterior(problem, 2)) == decoder.filled(posterior(problem, 2))


def test_what_gains_nothing_leaves_room_for_others() -> None:
    """A layer that computes for long wants nothing; the policy's order would have kept its weights."""
    tiers = (Tier(name="slow", capacity=100, bandwidth=10**11), Tier(name="fast", capacity=12, bandwidth=10**12))
    layers = (
        Layer(name="long", output_bytes=1, weight_bytes=10, compute_ps=1000),
        Layer(name="short", inputs=(0,), output_bytes=1, weight_bytes=10),
    )
    problem = Problem(tiers=tiers, layers=layers)
    first = np.array([[0.9, 0.1], [0.6, 0.5]])
    assert Decoder(problem).filled(np.stack([1 - first, first], axis=-1), orders=1).weight_tiers == (0, 1)


def test_one_tier_and_wrong_shapes() -> None:
    tier = Tier(name="only", capacity=100, bandwidth=10**11)
    problem = Problem(tiers=(tier,), layers=(Layer(name="one", output_bytes=5, weight_bytes=5),))
    assert Decoder(problem).filled(np.ones((1, 2, 1))).output_tiers == (0,)
    with pytest.raises(UsageError, match=r"^found probabilities of shape \(1, 2, 3\), expected \(1, 2, 1\)$"):
        Decoder(problem).filled(np.ones((1, 2, 3)))


def test_a_slowest_tier_that_cannot_hold_the_rest() -> None:
    """What gains nothing may have to stand in fast memory all the same."""
    tiers = (Tier(name="slow", capacity=10, bandwidth=10**11), Tier(name="fast", capacity=30, bandwidth=10**12))
    layers = tuple(Layer(name=f"l{at}", output_bytes=0, weight_bytes=10, compute_ps=10**6) for at in range(4))
    problem = Problem(tiers=tiers, layers=layers)
    plan = Decoder(problem).filled(posterior(problem, 0))
    assert verify(problem, plan).ok
    assert sorted(plan.weight_tiers) == [0, 1, 1, 1]
