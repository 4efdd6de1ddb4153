"""Training: a tiny guide learns what relaxations say, and from shuffled values it learns less."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.lib.memory_mapping.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.guide.guide import Numpy, graph, guided_values, scores, values
from stowplan.learned_guidance.memory_mapping.guide.program import program
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.problem import Problem
from tests.learned_guidance.memory_mapping.guide.test_network import problems
from tests.learned_guidance.memory_mapping.guide.weights import random_weights

torch = pytest.importorskip("torch")

from benchmarks.lib.memory_mapping.guide_network import Torch, merged, scanned  # noqa: E402
from benchmarks.lib.memory_mapping.guide_training import Example, Settings, example, train  # noqa: E402


def relaxed(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    hint, _ = relaxation_hint(problem, Effort(end=math.inf))
    assert hint is not None
    return tuple(np.array(hint.values[name], np.float32) for name in ("fast", "keep"))  # type: ignore[return-value]


def generated(seed: int) -> Problem:
    return synthetic(np.random.default_rng(seed), moves=150)


def taught(seed: int, *, shuffle: bool) -> Example:
    problem = generated(seed)
    fast, keep = relaxed(problem)
    if shuffle:
        order = np.random.default_rng(seed).permutation(len(fast))
        fast, keep = fast[order], keep[order]
    return example(program(problem), fast, keep)


@pytest.mark.slow
def test_a_tiny_guide_learns_more_than_from_shuffled_values() -> None:
    torch.set_num_threads(1)
    examples = [taught(seed, shuffle=shuffle) for shuffle in (False, True) for seed in range(10)]
    shown = np.arange(20)[None] // 10 == np.arange(2)[:, None]
    networks = train(examples, shown, Settings(seconds=math.inf, steps=70, accesses=600, rate=4e-3))
    errors = np.zeros(2)
    for seed in range(100, 106):
        fast, keep = relaxed(generated(seed))
        for number, weights in enumerate(networks):
            found = guided_values(generated(seed), weights)
            errors[number] += np.abs(found[0] - fast).mean() + np.abs(found[1] - keep).mean()
    assert errors[0] < 0.8 * errors[1]


def test_each_network_learns_what_it_is_shown_and_nothing_else() -> None:
    """What another one learns beside it makes no difference, and what it is not shown none either."""
    torch.set_num_threads(1)
    examples = [taught(seed, shuffle=False) for seed in range(3)]
    settings = Settings(seconds=math.inf, steps=3, accesses=100)
    shown = np.array([[True, True, False], [True, False, True]])
    first, second = train(examples, shown, settings)
    (alone,) = train(examples, shown[:1], settings)
    for name in first:
        np.testing.assert_allclose(first[name], alone[name], atol=1e-4)
    assert any(np.abs(first[name] - second[name]).max() > 1e-3 for name in first)


def test_with_torch_the_values_are_the_same_one_by_one_and_together() -> None:
    weights = random_weights(1)
    tensors = {name: torch.as_tensor(each) for name, each in weights.items()}
    graphs = [graph(program(problem)) for problem in problems()]
    plain = [values(weights, each, Numpy()) for each in graphs]
    together = merged(graphs, "cpu")
    found = scanned(*(each.double() for each in scores(tensors, together, Torch())), together)
    for value, expected in zip(found, zip(*plain, strict=True), strict=True):
        expected_ = np.concatenate(expected)
        assert expected_.std() > 0.01
        np.testing.assert_allclose(value.numpy(), expected_, atol=2e-5)
