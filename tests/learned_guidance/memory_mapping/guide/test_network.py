"""The network without torch: its values agree with each other, and with torch's."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.lib.memory_mapping.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.guide.guide import Numpy, graph, guided_values, values
from stowplan.learned_guidance.memory_mapping.guide.program import program
from stowplan.models.memory_mapping.accesses import access_sequences
from stowplan.models.memory_mapping.problem import Problem
from tests.learned_guidance.memory_mapping.guide.weights import random_weights
from tests.models.memory_mapping.cases import random_problem


def problems() -> list[Problem]:
    small = [random_problem(random.Random(seed), steps=9, tensors=5) for seed in range(12)]
    return small + [synthetic(np.random.default_rng(seed), moves=150) for seed in range(3)]


def test_the_two_values_of_accesses_agree_with_each_other() -> None:
    for problem in problems():
        fast, keep = guided_values(problem, random_weights())
        assert ((fast >= 0) & (fast <= 1) & (keep >= 0)).all()
        number = 0
        for sequence in access_sequences(problem):
            for j in range(len(sequence)):
                last = j + 1 == len(sequence)
                assert keep[number] <= (0 if last else min(fast[number], fast[number + 1]) + 1e-6)
                if not last and sequence.is_glued(j + 1):
                    assert fast[number] == pytest.approx(fast[number + 1], abs=1e-6)
                if sequence.size > problem.capacity:
                    assert fast[number] < 1e-9
                number += 1


def test_accesses_hear_of_other_tensors() -> None:
    """Not features alone: with another opinion of one access the others' values change too."""
    weights = random_weights(2)
    given = graph(program(synthetic(np.random.default_rng(1), moves=100)))
    before, _ = values(weights, given, Numpy())
    given.features[0] += 3
    after, _ = values(weights, given, Numpy())
    of_others = given.place.cumsum() > 0
    assert (np.abs(after - before)[of_others] > 1e-6).mean() > 0.1


def test_nothing_to_decide() -> None:
    empty = Problem(name="", target="", cost_model="", capacity=1, steps=(), tensors=())
    fast, keep = guided_values(empty, random_weights())
    assert len(fast) == len(keep) == 0
