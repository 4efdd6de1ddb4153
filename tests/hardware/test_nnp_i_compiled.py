"""Many maps at once, against the plain rectifier and timing, one by one."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

import stowplan
from stowplan.errors import InputError, UsageError
from stowplan.hardware.nnp_i import compiled
from stowplan.hardware.nnp_i.chip import REWARD_SCALE, Chip
from stowplan.hardware.nnp_i.compiler import Rectifier, compiler_plan
from stowplan.hardware.nnp_i.problem import latency_ps
from stowplan.models.tier_placement.problem import Problem, Tier
from tests.models.tier_placement import brute_force
from tests.models.tier_placement.cases import BANDWIDTHS, chain, random_problem
from tests.paths import EXAMPLES

MAPS = 12


def tight_problem(seed: int, *, address_spaces: bool = False) -> Problem:
    """Up to nine layers on one to four tiers, which hold somewhat more than all tensors together, or not even that."""
    chance = random.Random(seed)
    problem = random_problem(seed, layers=9, address_spaces=address_spaces)
    count = 1 + seed % 4
    total = sum(layer.weight_bytes + layer.output_bytes for layer in problem.layers)
    bandwidths = sorted(chance.choice(BANDWIDTHS) for _ in range(count))
    tiers = tuple(
        Tier(
            name=f"t{number}",
            bandwidth=bandwidth,
            capacity=int(total * chance.uniform(0.3, 1.6) / count),
            alignment=chance.choice((1, 2, 4)) if address_spaces else 1,
        )
        for number, bandwidth in enumerate(bandwidths)
    )
    return msgspec.structs.replace(problem, tiers=tiers)


def proposals(problem: Problem, seed: int, count: int = MAPS) -> compiled.Ints:
    """Random maps, weights of 0 bytes anywhere, and the compiler's own."""
    chance = np.random.default_rng(seed)
    maps = chance.integers(len(problem.tiers), size=(count, len(problem.layers), 2))
    # Some with nearly all in one tier: more of them can be executed.
    for number in range(0, count, 3):
        maps[number][chance.random(maps[number].shape) < 0.8] = chance.integers(len(problem.tiers))
    own = compiler_plan(problem)
    assert own is not None
    return np.concatenate([maps, np.stack([own.weight_tiers, own.output_tiers], axis=1)[np.newaxis]])


def has_map(problem: Problem) -> bool:
    return compiler_plan(problem) is not None


@pytest.mark.parametrize("address_spaces", [False, True])
@pytest.mark.parametrize("block", range(4))
def test_many_maps_at_once_are_rectified_as_one_by_one(block: int, address_spaces: bool) -> None:
    compared = executed = fell_back = 0
    tiers = set()
    for seed in range(100 * block, 100 * block + 100):
        problem = tight_problem(seed, address_spaces=address_spaces)
        if not has_map(problem):
            continue
        chip, rectifier = Chip(problem), Rectifier(problem)
        maps = proposals(problem, seed)
        before = maps.copy()
        found, epsilon = chip.compiled(maps)
        assert (maps == before).all()
        latency = compiled.latencies(compiled.arrays_of(problem), found[..., 0], found[..., 1])
        for number, proposal in enumerate(maps):
            plain = rectifier.rectify(proposal[:, 0].tolist(), proposal[:, 1].tolist())
            assert found[number].T.tolist() == [list(plain.map.weight_tiers), list(plain.map.output_tiers)]
            assert epsilon[number] == plain.epsilon
            assert latency[number] == latency_ps(problem, plain.map.weight_tiers, plain.map.output_tiers)
            if not address_spaces:
                assert (epsilon[number] == 0) == brute_force.fits(problem, tuple(map(tuple, proposal.T.tolist())))
            fell_back += plain.map[:2] == chip.compiler[:2] and plain.epsilon > 0
        compared += len(maps)
        executed += int((epsilon == 0).sum())
        tiers.add(len(problem.tiers))
        assert (chip.evaluations, chip.inferences) == (0, 0)
    assert tiers == {1, 2, 3, 4}
    assert compared > 300
    assert executed > 40
    assert fell_back > 5


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.9])
@pytest.mark.parametrize("address_spaces", [False, True])
def test_evaluations_are_those_of_one_by_one(noise: float, address_spaces: bool) -> None:
    executed = 0
    for seed in range(80):
        problem = tight_problem(seed, address_spaces=address_spaces)
        if not has_map(problem):
            continue
        maps = proposals(problem, seed)
        one, many = (Chip(problem, noise=noise, seed=seed) for _ in range(2))
        each = [one.evaluate(proposal[:, 0].tolist(), proposal[:, 1].tolist()) for proposal in maps]
        # In two calls: the noise goes on where it was.
        halves = [many.evaluate_many(part) for part in (maps[:5], maps[5:])]
        for field, values in {
            "epsilon": [found.epsilon for found in each],
            "latency_ps": [found.latency_ps for found in each],
            "rewards": [found.reward for found in each],
            "speedups": [found.speedup for found in each],
            "maps": [np.stack(found.map[:2], axis=1).tolist() for found in each],
        }.items():
            assert np.concatenate([getattr(half, field) for half in halves]).tolist() == values, field
        assert (one.evaluations, one.inferences) == (many.evaluations, many.inferences)
        executed += one.inferences
        for found in each:
            if found.measured_ps is None:
                assert found.reward == -REWARD_SCALE * found.epsilon < 0
            elif noise:
                assert found.measured_ps >= 0.01 * found.latency_ps
            else:
                assert found.measured_ps == found.latency_ps
    assert executed > 80


@pytest.mark.parametrize("name", ["resnet50", "bert_base_s128"])
def test_networks_of_the_examples(name: str) -> None:
    problem: Problem = stowplan.read(EXAMPLES / f"{name}.layers.json", "nnp-i")
    chip, rectifier = Chip(problem), Rectifier(problem)
    maps = proposals(problem, 0, 6)
    found = chip.evaluate_many(maps)
    for number, proposal in enumerate(maps):
        plain = rectifier.rectify(proposal[:, 0].tolist(), proposal[:, 1].tolist())
        assert found.maps[number].T.tolist() == [list(plain.map.weight_tiers), list(plain.map.output_tiers)]
        assert found.epsilon[number] == plain.epsilon
    assert found.speedups[-1] == 1.0
    assert found.latency_ps[-1] == chip.compiler_ps


def test_a_tensor_without_room_makes_it_the_compilers_map() -> None:
    # The compiler keeps all weights in the slow tier, and its outputs out of it: with an output in each there is no room for
    # the weights of the last layer.
    tiers = (Tier(name="slow", capacity=124, bandwidth=10**11), Tier(name="fast", capacity=45, bandwidth=10**12))
    problem = msgspec.structs.replace(chain(3), tiers=tiers)
    chip = Chip(problem)
    proposal = np.array([[[0, 0], [0, 1], [0, 0]], [[1, 0], [0, 0], [0, 0]]])
    found, epsilon = chip.compiled(proposal)
    moved = compiled.rectify(compiled.arrays_of(problem), proposal[..., 0].copy(), proposal[..., 1].copy())
    assert moved.tolist() == [-1, 0]
    assert found[0].T.tolist() == [list(chip.compiler.weight_tiers), list(chip.compiler.output_tiers)]
    # Of 150 bytes, two outputs of 10 go where the compiler has them.
    assert epsilon.tolist() == [20 / 150, 0]
    plain = [Rectifier(problem).rectify(each[:, 0].tolist(), each[:, 1].tolist()) for each in proposal]
    assert [each.epsilon for each in plain] == epsilon.tolist()


def test_any_layout_and_type_of_maps() -> None:
    chip = Chip(chain(6))
    maps = np.random.default_rng(0).integers(2, size=(4, 6, 2))
    expected = chip.compiled(maps)
    for other in (maps.astype(np.int8), maps.astype(np.uint8), np.asfortranarray(maps), maps[::-1][::-1], maps.tolist()):
        found = chip.compiled(other)  # type: ignore[arg-type]
        assert (found[0] == expected[0]).all()
        assert (found[1] == expected[1]).all()
    none = chip.evaluate_many(maps[:0])
    assert (none.maps.shape, none.rewards.shape, chip.evaluations) == ((0, 6, 2), (0,), 0)


@pytest.mark.parametrize("address_spaces", [False, True])
@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (
            np.zeros((3, 2), int),
            r"found int64 maps of shape \(3, 2\), expected whole numbers of shape \(any number of maps, 3, 2\)",
        ),
        (np.zeros((1, 4, 2), int), r"found int64 maps of shape \(1, 4, 2\)"),
        (np.zeros((1, 3, 2)), r"found float64 maps of shape \(1, 3, 2\), expected whole numbers"),
        (np.full((1, 3, 2), 2), "found tiers from 2 to 2, expected 0 to 1"),
        (np.full((1, 3, 2), -1), "found tiers from -1 to -1, expected 0 to 1"),
    ],
)
def test_what_are_no_maps_is_refused(maps: compiled.Ints, message: str, address_spaces: bool) -> None:
    chip = Chip(chain(3, address_spaces=address_spaces))
    for call in (chip.compiled, chip.evaluate_many):
        with pytest.raises(UsageError, match=message):
            call(maps)
    assert chip.evaluations == 0


def test_what_fits_nowhere_is_refused_before_any_map() -> None:
    tiers = (Tier(name="slow", capacity=100, bandwidth=10**11), Tier(name="fast", capacity=30, bandwidth=10**12))
    with pytest.raises(InputError, match="no tier has room"):
        Chip(msgspec.structs.replace(chain(5), tiers=tiers))
