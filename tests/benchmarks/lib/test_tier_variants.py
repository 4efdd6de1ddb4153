"""Networks to train on: generated ones are valid, have the right features, and have something to gain."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

import stowplan
from benchmarks.lib.tier_placement.networks import FORMS, Form, random_network
from benchmarks.lib.tier_placement.variants import (
    FAST_MEMORY,
    WEIGHTS,
    generated,
    with_fast_memory,
)
from stowplan.errors import UsageError
from stowplan.hardware.network import Network
from stowplan.hardware.nnp_i.chip import Chip
from stowplan.hardware.nnp_i.problem import FEATURES
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio.tier_placement import arrays, heuristics
from tests.models.tier_placement.cases import chain

COLUMN = {name: number for number, name in enumerate(FEATURES)}


def saved(problem: Problem) -> Problem:
    """The problem, written and read again."""
    return Problem.decode(msgspec.json.encode(problem))


def check_features(problem: Problem) -> None:
    """Node features say what the problem says."""
    width = {"int8": 1, "fp16": 2}[problem.cost_model.rpartition(" ")[2]]
    left = 0
    for after, (row, layer) in enumerate(zip(reversed(problem.features), reversed(problem.layers), strict=True)):
        left += layer.weight_bytes
        assert len(row) == len(FEATURES)
        assert row[COLUMN["n_ops_left"]] == after
        assert row[COLUMN["n_w_left"]] == left
        assert row[COLUMN["weight_size"]] == layer.weight_bytes
        assert row[COLUMN["ofm_size"]] * row[COLUMN["batch"]] * width == layer.output_bytes
        for name in ("ifm", "ofm"):
            assert row[COLUMN[f"{name}_size"]] == math.prod(row[COLUMN[f"{name}_{axis}"]] for axis in "xyz")
        inputs = [problem.features[source] for source in layer.inputs]
        shapes = [other[COLUMN["ofm_x"] : COLUMN["ofm_z"] + 1] for other in inputs]
        assert not inputs or row[COLUMN["ifm_x"] : COLUMN["ifm_z"] + 1] in shapes or layer.external_bytes


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layers", [8, 40, 150])
def test_generated_networks_are_valid(form: Form, layers: int) -> None:
    problems = [generated(np.random.default_rng([seed, layers]), form=form, layers=layers) for seed in range(6)]
    for seed, problem in enumerate(problems):
        check_features(problem)
        assert problem == generated(np.random.default_rng([seed, layers]), form=form, layers=layers)
        assert saved(problem) == problem
        assert problem.name.startswith(form)
        # The whole network is reached: nothing but the last layer is an output.
        assert [number for number, last in enumerate(problem.last_use) if last == number] == [len(problem.layers) - 1]
        chip = Chip(problem)
        assert verify(problem, chip.plan(chip.compiler)).ok
        if layers >= 40:
            assert 0.5 * layers < len(problem.layers) < 1.6 * layers
    assert len({problem.digest for problem in problems}) == len(problems)


def test_generated_networks_are_of_all_sizes_forms_and_chips() -> None:
    chance = np.random.default_rng(0)
    problems = [generated(chance) for _ in range(120)]
    filled = np.array([sum(layer.weights_read for layer in p.layers) / p.tiers[1].capacity for p in problems])
    assert (filled < 1).mean() > 0.15
    assert ((filled > 1) & (filled < 4)).mean() > 0.3
    assert (filled > 4).mean() > 0.1
    assert np.median(filled) == pytest.approx(math.sqrt(WEIGHTS[0] * WEIGHTS[1]), rel=0.5)
    assert {p.name.partition("-")[0] for p in problems} == set(FORMS)
    assert {p.cost_model for p in problems} == {"roofline int8", "roofline fp16"}
    memories = np.array([p.tiers[1].capacity / (24 << 20) for p in problems])
    assert 0.3 < (memories == 1).mean() < 0.7
    assert FAST_MEMORY[0] * 0.99 <= memories.min() < 0.7
    assert 2.5 < memories.max() <= FAST_MEMORY[1]
    assert {p.features[number][0] for p in problems for number in range(len(p.layers))} > set(range(6))
    counts = [len(p.layers) for p in problems]
    assert min(counts) < 30
    assert max(counts) > 250


def test_most_generated_networks_have_something_to_gain() -> None:
    chance = np.random.default_rng(3)
    speedups = []
    for form in FORMS * 4:
        problem = generated(chance, form=form, layers=40)
        chip, data = Chip(problem), arrays.build(problem)
        begin = heuristics.any_map(data)
        assert begin is not None
        search = heuristics.Search(data, begin, 0)
        search.cool(20_000, search.scale(), lambda: False)
        speedups.append(chip.compiler_ps / search.walk.latency)
    assert sum(speedup > 1.02 for speedup in speedups) >= 13


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_generated_networks_are_solved(seed: int) -> None:
    problem = generated(np.random.default_rng(seed), layers=24)
    result = stowplan.solve(problem, time_limit=60, workers=2, seed=0)
    assert result.plan is not None
    assert verify(problem, result.plan).ok
    assert result.gap is not None
    assert result.gap < 0.01


def test_the_demo_of_the_environment_is_one() -> None:
    pytest.importorskip("gymnasium")
    from stowplan.learned_guidance.tier_placement.environment import demo_problem

    assert demo_problem() == generated(np.random.default_rng(4), form="residual", layers=30, precision="int8")


def test_a_network_of_a_form_is_a_network() -> None:
    network = random_network("unet", np.random.default_rng(1), layers=30, width=16)
    assert isinstance(network, Network)
    assert network == random_network("unet", np.random.default_rng(1), layers=30, width=16)


def test_errors() -> None:
    chance = np.random.default_rng(0)
    with pytest.raises(UsageError, match="found form 'tree', expected one of residual, transformer"):
        generated(chance, form="tree")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="found layers 3, expected at least 8"):
        generated(chance, layers=3)
    with pytest.raises(UsageError, match="found factor 0"):
        with_fast_memory(chain(3), 0)
