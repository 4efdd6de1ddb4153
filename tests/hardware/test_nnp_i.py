"""NNP-I: the target, costs, node features, timing, the compiler, the rectifier and the chip."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from stowplan.errors import InputError, UsageError
from stowplan.hardware.network import OPS, Layer, Network
from stowplan.hardware.nnp_i.chip import REWARD_SCALE, Chip
from stowplan.hardware.nnp_i.compiler import Rectifier, compiler_map, compiler_plan, spill_order
from stowplan.hardware.nnp_i.problem import FEATURES, build_problem, latency_ps, node_features
from stowplan.hardware.nnp_i.target import decode_target, load_target, target_names
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem, Tier
from stowplan.models.tier_placement.verify import verify
from tests.models.tier_placement import brute_force
from tests.models.tier_placement.cases import chain, random_problem


def network() -> Network:
    """An embedding, a convolution and a sum."""
    return Network(
        name="three",
        layers=(
            Layer(
                name="table",
                op="embedding",
                inputs=(),
                input_shape=(1, 1, 4),
                output_shape=(4, 1, 8),
                input_elements=4,
                output_elements=32,
                weight_elements=8000,
                weight_read_elements=32,
            ),
            Layer(
                name="conv",
                op="conv",
                inputs=(0,),
                input_shape=(4, 1, 8),
                output_shape=(4, 1, 16),
                input_elements=32,
                output_elements=64,
                weight_elements=1000,
                macs=46_000_000,
                groups=1,
                kernel_x=3,
                kernel_y=2,
                stride=1,
                pad=1,
                dilation=2,
            ),
            Layer(
                name="sum",
                op="add",
                inputs=(0, 1),
                input_shape=(4, 1, 8),
                output_shape=(4, 1, 16),
                input_elements=96,
                output_elements=64,
            ),
        ),
    )


def test_the_chip_has_the_tiers_of_the_paper() -> None:
    assert "nnp-i" in target_names()
    tiers = load_target("nnp-i").tiers
    assert [(tier.name, tier.capacity) for tier in tiers] == [("DRAM", 32 << 30), ("LLC", 24 << 20), ("SRAM", 4 << 20)]
    assert [tier.bandwidth // tiers[0].bandwidth for tier in tiers] == [1, 10, 100]


def test_costs() -> None:
    problem = build_problem(network(), load_target("nnp-i"), "fp16")
    table, conv, total = problem.layers
    assert (table.weight_bytes, table.weight_read_bytes, table.output_bytes, table.external_bytes) == (16000, 64, 64, 8)
    assert (conv.weight_bytes, conv.weights_read, conv.output_bytes, conv.external_bytes) == (2000, 2000, 128, 0)
    assert total.inputs == (0, 1)
    # 92e6 operations at 23 Tflop/s; 96 elements at 384 Gelem/s; looking up takes no more than its bytes.
    assert [layer.compute_ps for layer in problem.layers] == [0, 4_000_000, 250]
    assert {layer.overhead_ps for layer in problem.layers} == {200_000}
    assert build_problem(network(), load_target("nnp-i")).layers[1].compute_ps == 1_000_000
    assert all(type(tier.capacity) is int for tier in problem.tiers)


def test_features_are_those_of_table_1() -> None:
    problem = build_problem(network(), load_target("nnp-i"), "fp16")
    assert problem.features == node_features(network(), "fp16")
    assert len(FEATURES) == 19
    row = dict(zip(FEATURES, problem.features[1], strict=True))
    assert row == {
        "op_id": OPS.index("conv"),
        "weight_size": 2000,
        "ifm_x": 4,
        "ifm_y": 1,
        "ifm_z": 8,
        "ofm_x": 4,
        "ofm_y": 1,
        "ofm_z": 16,
        "ifm_size": 32,
        "ofm_size": 64,
        "n_ops_left": 1,
        "n_w_left": 2000,
        "groups": 1,
        "kernel_x": 3,
        "kernel_y": 2,
        "stride": 1,
        "pad": 1,
        "dilation": 2,
        "batch": 1,
    }
    assert [row[FEATURES.index("n_w_left")] for row in problem.features] == [18000, 2000, 0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"stowplan.tier_target"', '"stowplan.target"', "mine: format: found"),
        ('"24 MiB"', '"24 MB/s"', r"mine: tiers\[1\]\.capacity"),
        ('"92 Tflop/s"', '"fast"', "mine: compute"),
        ("[overhead]", "[extra]", "mine: .*extra"),
        ("[compute.int8]", "[compute.int4]", "mine: "),
        ("version = 1", "version = 9", "mine: version: found 9"),
    ],
)
def test_bad_targets(old: str, new: str, message: str) -> None:
    from importlib import resources

    text = (resources.files("stowplan.hardware.nnp_i") / "nnp-i.toml").read_text()
    assert old in text
    with pytest.raises(InputError, match=message):
        decode_target(text.replace(old, new, 1).encode(), source="mine")


def test_targets_without_tiers_or_precisions_are_refused_with_the_file(tmp_path: Path) -> None:
    from importlib import resources

    text = (resources.files("stowplan.hardware.nnp_i") / "nnp-i.toml").read_text()
    begin, first, rest = text.partition("[[tiers]]")
    path = tmp_path / "mine.toml"
    path.write_text(f"{begin}tiers = []\n{(first + rest)[(first + rest).index('[compute') :]}")
    with pytest.raises(InputError, match=r"mine\.toml: tiers: found no tiers, expected at least one$"):
        load_target(path)
    path.write_text(f"compute = {{}}\n{text[: text.index('[compute')]}{text[text.index('[overhead]') :]}")
    with pytest.raises(InputError, match=r"mine\.toml: compute: found no precisions, expected at least one$"):
        load_target(path)


def test_unknown_target_and_precision(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found target 'nnp', expected one of"):
        load_target("nnp")
    with pytest.raises(InputError, match=r"nothing\.toml"):
        load_target(tmp_path / "nothing.toml")
    target = load_target("nnp-i")
    small = msgspec.structs.replace(target, compute={"int8": target.compute["int8"]})
    with pytest.raises(InputError, match="found precision 'fp16', expected one of int8"):
        build_problem(network(), small, "fp16")


@pytest.mark.parametrize("seed", range(30))
def test_timing_agrees_with_the_verifier(seed: int) -> None:
    problem = random_problem(seed, layers=6)
    chance = random.Random(seed)
    for _ in range(10):
        weights, outputs = ([chance.randrange(len(problem.tiers)) for _ in problem.layers] for _ in range(2))
        latency = latency_ps(problem, weights, outputs)
        plan = Plan(problem=problem.digest, objective=latency, weight_tiers=tuple(weights), output_tiers=tuple(outputs))
        assert verify(problem, plan).objective == latency == brute_force.latency(problem, (tuple(weights), tuple(outputs)))


def test_spill_order() -> None:
    assert spill_order(2, 4) == [2, 1, 0, 3]
    assert spill_order(0, 3) == [0, 1, 2]


def test_the_compiler_spills_in_layer_order() -> None:
    tiers = (Tier(name="slow", capacity=10_000, bandwidth=10**11), Tier(name="fast", capacity=400, bandwidth=10**12))
    problem = msgspec.structs.replace(chain(12), tiers=tiers)
    found = compiler_map(problem)
    # 40 bytes are within an eighth of 400; seven times 40 are within three quarters, eight are not.
    assert found.weight_tiers == (1,) * 7 + (0,) * 5
    assert found.output_tiers == (1,) * 12


def test_the_compiler_says_what_fits_nowhere() -> None:
    tiers = (Tier(name="slow", capacity=100, bandwidth=10**11), Tier(name="fast", capacity=30, bandwidth=10**12))
    problem = msgspec.structs.replace(chain(5), tiers=tiers)
    with pytest.raises(
        InputError, match="layer l2: no tier has room for the 40 bytes of its weights: free are 0 in slow, 30 in fast"
    ):
        compiler_map(problem)
    assert compiler_plan(problem) is None
    with pytest.raises(InputError, match="no tier has room"):
        Chip(problem)


@pytest.mark.parametrize("address_spaces", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_rectified_maps_can_be_executed(seed: int, address_spaces: bool) -> None:
    problem = random_problem(seed, layers=4, address_spaces=address_spaces)
    if compiler_plan(problem) is None:
        return
    chip, rectifier = Chip(problem), Rectifier(problem)
    total = sum(layer.weight_bytes + layer.output_bytes for layer in problem.layers)
    for number, tiers in enumerate(brute_force.maps(problem)):
        if number % 7:
            continue
        found, epsilon = rectifier.rectify(*tiers)
        assert verify(problem, chip.plan(found)).ok
        moved = sum(
            layer.weight_bytes * (tiers[0][at] != found.weight_tiers[at])
            + layer.output_bytes * (tiers[1][at] != found.output_tiers[at])
            for at, layer in enumerate(problem.layers)
        )
        assert epsilon == pytest.approx(moved / max(1, total))
        if not address_spaces:
            assert (epsilon == 0) == brute_force.fits(problem, tiers)


def test_rewards_are_those_of_algorithm_1() -> None:
    tiers = (Tier(name="slow", capacity=10_000, bandwidth=10**11), Tier(name="fast", capacity=400, bandwidth=10**12))
    problem = msgspec.structs.replace(chain(12), tiers=tiers)
    chip = Chip(problem)
    own = chip.evaluate(chip.compiler.weight_tiers, chip.compiler.output_tiers)
    assert (own.epsilon, own.reward, own.speedup) == (0.0, REWARD_SCALE, 1.0)
    slow = chip.evaluate([0] * 12, [0] * 12)
    assert slow.measured_ps == slow.latency_ps > chip.compiler_ps
    assert slow.reward == pytest.approx(REWARD_SCALE * chip.compiler_ps / slow.latency_ps)
    greedy = chip.evaluate([1] * 12, [1] * 12)
    # Nine times 40 bytes and two outputs fill 400 bytes; the last three layers' weights of 12 * 50 bytes move.
    assert greedy.epsilon == pytest.approx(3 * 40 / 600)
    assert greedy.reward == -REWARD_SCALE * greedy.epsilon
    assert greedy.measured_ps is None
    assert greedy.speedup == 0.0
    assert (chip.evaluations, chip.inferences) == (3, 2)


def test_noise_is_seeded_and_off_by_default() -> None:
    problem = chain(6)
    maps = [0] * 6, [0] * 6
    quiet = Chip(problem)
    assert quiet.evaluate(*maps) == quiet.evaluate(*maps)

    def measured(seed: int) -> list[float | None]:
        chip = Chip(problem, noise=0.05, seed=seed)
        return [chip.evaluate(*maps).measured_ps for _ in range(200)]

    assert measured(1) == measured(1) != measured(2)
    values = np.array(measured(1), dtype=float) / latency_ps(problem, *maps)
    assert abs(values.mean() - 1) < 0.02
    assert 0.03 < values.std() < 0.07


@pytest.mark.parametrize("proposal", [([0], [0]), ([0, 0, 2], [0, 0, 0]), ([0, 0, 0], [0, -1, 0])])
def test_what_is_no_map_is_refused(proposal: tuple[list[int], list[int]]) -> None:
    with pytest.raises(UsageError, match="expected 3 numbers from 0 to 1"):
        Chip(chain(3)).evaluate(*proposal)
    with pytest.raises(UsageError, match="noise"):
        Chip(chain(3), noise=-1)


@pytest.mark.parametrize("name", ["resnet50_b1", "bert_base_s384"])
def test_networks_of_the_corpus(corpus: Path, name: str) -> None:
    from stowplan.frontends.network import read_layers

    problem: Problem = build_problem(read_layers(corpus / "layers" / f"{name}.json"), load_target("nnp-i"))
    plan = compiler_plan(problem)
    assert plan is not None
    assert verify(problem, plan).ok
    spaced = msgspec.structs.replace(problem, address_spaces=True)
    plan = compiler_plan(spaced)
    assert plan is not None
    assert verify(spaced, plan).ok
