"""Networks as graphs: bounded features of the columns that are named, edges in both directions."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import numpy as np
import pytest

import stowplan
from benchmarks.lib.tier_placement.stacked import stacked
from benchmarks.lib.tier_placement.variants import generated, with_fast_memory
from stowplan.errors import InputError, UsageError
from stowplan.hardware.network import OPS
from stowplan.hardware.nnp_i.problem import FEATURES
from stowplan.learned_guidance.tier_placement.graph import BOUND, FeatureSet, columns, graph_of
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from tests.models.tier_placement.cases import chain
from tests.paths import EXAMPLES, ROOT

NETWORKS = sorted(path.name.partition(".")[0] for path in EXAMPLES.glob("*.layers.json"))

FEATURE_SETS: tuple[FeatureSet, ...] = get_args(FeatureSet)


def read(name: str, precision: str = "int8") -> Problem:
    problem: Problem = stowplan.read(EXAMPLES / f"{name}.layers.json", "nnp-i", precision=precision)
    return problem


def check(problem: Problem, features: FeatureSet) -> None:
    graph = graph_of(problem, features)
    names = columns(features, len(problem.tiers))
    assert len(set(names)) == len(names)
    assert graph.features.shape == (len(problem.layers), len(names))
    assert graph.features.dtype == np.float32
    assert np.isfinite(graph.features).all()
    assert np.abs(graph.features).max() <= BOUND
    assert (np.abs(graph.features) <= 1).mean() > 0.9
    forth = {(source, number) for number, layer in enumerate(problem.layers) for source in layer.inputs}
    assert graph.edges.dtype == np.int64
    pairs = list(map(tuple, graph.edges.T.tolist()))
    assert pairs == sorted(forth | {(number, source) for source, number in forth})
    assert graph.has_weights.tolist() == [layer.weight_bytes > 0 for layer in problem.layers]
    assert graph.tiers == len(problem.tiers)


@pytest.mark.parametrize("features", FEATURE_SETS)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_the_examples(name: str, features: FeatureSet) -> None:
    for precision in ("int8", "fp16"):
        check(read(name, precision), features)


@pytest.mark.parametrize("features", FEATURE_SETS)
@pytest.mark.parametrize("scaled", [False, True])
def test_networks_of_5000_layers(features: FeatureSet, scaled: bool) -> None:
    check(stacked(read("bert_base_s128"), 5_000, scaled=scaled), features)


@pytest.mark.parametrize("features", FEATURE_SETS)
@pytest.mark.parametrize("seed", range(10))
def test_generated_networks(features: FeatureSet, seed: int) -> None:
    check(generated(np.random.default_rng(seed)), features)


def small() -> Problem:
    """A layer with weights that two others read, one of which ends the network."""
    tiers = (Tier(name="slow", capacity=1 << 20, bandwidth=10**11), Tier(name="fast", capacity=255, bandwidth=10**12))
    layers = (
        Layer(name="a", output_bytes=100, weight_bytes=255, weight_read_bytes=51, external_bytes=49, compute_ps=1000),
        Layer(name="b", inputs=(0,), output_bytes=60),
        Layer(name="c", inputs=(0, 1), output_bytes=40, compute_ps=10**6),
    )
    rows = tuple((number,) * len(FEATURES) for number in range(3))
    return Problem(tiers=tiers, layers=layers, features=rows)


def test_columns_of_the_paper_are_logarithms_but_for_the_operation() -> None:
    found = graph_of(small()).features
    for number in range(3):
        assert found[number, 0] == pytest.approx(number / len(OPS))
        assert found[number, 1:] == pytest.approx([math.log2(1 + number) / 32] * 18)


def test_columns_of_the_chip() -> None:
    problem = small()
    found = graph_of(problem, "chip").features
    names = columns("chip", 2)
    assert names[: len(FEATURES)] == FEATURES
    first, _, last = (dict(zip(names, row.tolist(), strict=True)) for row in found)
    expected = {
        "weights_over_tier_1": math.log2(256 / 255) / 16,
        "output_over_tier_1": math.log2(101 / 255) / 16,
        "all_weights_over_tier_1": math.log2(256 / 255) / 16,
        "live_over_tier_1": math.log2(101 / 255) / 16,
        "weights_read": 0.2,
        "readers": math.log2(3) / 4,
        "steps": math.log2(3) / 8,
        "compute_time": 0.5,
        "weights_time": 51 / 200,
        "output_time": 0.5,
        "inputs_time": 0.0,
        "has_weights": 1.0,
    }
    assert {name: first[name] for name in names[len(FEATURES) :]} == pytest.approx(expected)
    assert last["live_over_tier_1"] == pytest.approx(math.log2(201 / 255) / 16)
    assert last["inputs_time"] == pytest.approx(0.8)
    assert (last["compute_time"], last["has_weights"], last["readers"], last["steps"]) == (1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("tiers", [1, 4])
def test_any_number_of_tiers(tiers: int) -> None:
    more = tuple(Tier(name=f"t{number}", capacity=1 << 20, bandwidth=10**11) for number in range(tiers))
    problem = msgspec.structs.replace(small(), tiers=more)
    for features in FEATURE_SETS:
        check(problem, features)
    assert len(columns("chip", tiers)) == len(FEATURES) + 4 * (tiers - 1) + 8


def test_no_memory_and_extreme_sizes_are_bounded() -> None:
    problem = small()
    tiers = (problem.tiers[0], msgspec.structs.replace(problem.tiers[1], capacity=0))
    layers = (msgspec.structs.replace(problem.layers[0], weight_read_bytes=10**9), *problem.layers[1:])
    rows = ((2**62,) * len(FEATURES), *problem.features[1:])
    changed = msgspec.structs.replace(problem, tiers=tiers, layers=layers, features=rows)
    for features in FEATURE_SETS:
        found = graph_of(changed, features).features
        assert np.isfinite(found).all()
        assert np.abs(found).max() <= BOUND


def test_the_paper_sees_no_capacities_and_the_chip_does() -> None:
    problem = read("resnet50")
    more = with_fast_memory(problem, 2)
    assert (graph_of(problem).features == graph_of(more).features).all()
    assert (graph_of(problem, "chip").features != graph_of(more, "chip").features).any()


def test_errors() -> None:
    with pytest.raises(UsageError, match="found features 'all', expected one of paper, chip"):
        graph_of(small(), "all")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="found features 'all'"):
        columns("all", 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="features: found no node features"):
        graph_of(chain(3))
    with pytest.raises(InputError, match=r"features\[0\]: found 2 features a layer, expected 19"):
        graph_of(msgspec.structs.replace(small(), features=((1, 2),) * 3))
    rows = (small().features[0], (1, 1, -4, *(1,) * 16), small().features[2])
    with pytest.raises(InputError, match=r"features\[1\]: found ifm_x -4, expected 0 or more"):
        graph_of(msgspec.structs.replace(small(), features=rows))


def test_the_documentation_names_all_columns() -> None:
    text = (ROOT / "docs" / "reference" / "tier-placement.md").read_text(encoding="utf-8")
    for name in columns("chip", 2):
        assert f"`{name.replace('tier_1', 'tier_T')}`" in text, name
