"""Copies of a network, one behind the other."""

from __future__ import annotations

import msgspec
import pytest

import stowplan
from benchmarks.lib.tier_placement.stacked import stacked
from stowplan.errors import UsageError
from stowplan.hardware.nnp_i.problem import FEATURES
from stowplan.models.tier_placement.problem import Problem
from tests.models.tier_placement.cases import chain
from tests.paths import EXAMPLES

COLUMN = {name: number for number, name in enumerate(FEATURES)}


def read(name: str, precision: str = "int8") -> Problem:
    problem: Problem = stowplan.read(EXAMPLES / f"{name}.layers.json", "nnp-i", precision=precision)
    return problem


@pytest.mark.parametrize("name", ["resnet50", "bert_base_s128"])
def test_stacked_networks_are_copies_one_behind_the_other(name: str) -> None:
    problem = read(name)
    count = len(problem.layers)
    found = stacked(problem, 2 * count + 3)
    assert len(found.layers) == 2 * count + 3
    assert found.tiers == problem.tiers
    assert found.layers[count].inputs == (count - 1,)
    assert found.layers[count + 5].inputs == tuple(source + count for source in problem.layers[5].inputs)
    assert [layer.compute_ps for layer in found.layers[count : 2 * count]] == [layer.compute_ps for layer in problem.layers]
    assert found.features[0][COLUMN["n_ops_left"]] == 2 * count + 2
    left = [sum(layer.weight_bytes for layer in found.layers[at:]) for at in range(len(found.layers))]
    assert [row[COLUMN["n_w_left"]] for row in found.features] == left
    assert [row[: COLUMN["n_ops_left"]] for row in found.features[count : 2 * count]] == [
        row[: COLUMN["n_ops_left"]] for row in problem.features
    ]
    assert [tier.capacity for tier in stacked(problem, 3 * count, scaled=True).tiers] == [
        problem.tiers[0].capacity,
        *(3 * tier.capacity for tier in problem.tiers[1:]),
    ]


def test_one_copy_is_the_network_itself() -> None:
    problem = read("resnet101")
    found = stacked(problem, len(problem.layers), scaled=True)
    assert found.features == problem.features
    names = tuple(layer.name for layer in problem.layers)
    renamed = tuple(msgspec.structs.replace(layer, name=name) for layer, name in zip(found.layers, names, strict=True))
    assert renamed == problem.layers


def test_networks_without_features_are_stacked_without() -> None:
    assert stacked(chain(4), 10).features == ()


def test_a_network_has_layers() -> None:
    with pytest.raises(UsageError, match="found layers 0"):
        stacked(chain(3), 0)
