"""Features: what they do not depend on, and what they say of programs small enough to see it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.lib.memory_mapping.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.guide.features import NAMES, features
from stowplan.learned_guidance.memory_mapping.guide.program import program
from stowplan.models.memory_mapping.problem import Piece, Problem
from tests.learned_guidance.memory_mapping import programs
from tests.models.memory_mapping.cases import random_problem


def generated(seed: int) -> Problem:
    return synthetic(np.random.default_rng(seed), moves=120)


def seen(problem: Problem) -> dict[str, list[float]]:
    return {name: column.tolist() for name, column in zip(NAMES, features(program(problem)).T, strict=True)}


def larger(problem: Problem, factor: int) -> Problem:
    """All sizes so many times as large."""
    tensors = tuple(replace(tensor, size=factor * tensor.size) for tensor in problem.tensors)
    return replace(problem, tensors=tensors, capacity=factor * problem.capacity, alignment=factor * problem.alignment)


def slower(problem: Problem, factor: int) -> Problem:
    """All times so many times as long."""
    steps = []
    for step in problem.steps:
        pieces = [
            Piece(factor * each.base_ps, *(tuple(factor * ps for ps in terms) for terms in (each.slow_ps, each.fast_ps)))
            for each in step.pieces
        ]
        steps.append(replace(step, pieces=tuple(pieces)))
    tensors = tuple(
        replace(tensor, copy_in_ps=factor * tensor.copy_in_ps, copy_out_ps=factor * tensor.copy_out_ps)
        for tensor in problem.tensors
    )
    return replace(problem, steps=tuple(steps), tensors=tensors)


@pytest.mark.parametrize("seed", range(4))
def test_neither_sizes_nor_times_have_a_unit(seed: int) -> None:
    problem = generated(seed)
    rows = features(program(problem))
    assert rows.std() > 0.5
    np.testing.assert_allclose(features(program(larger(problem, 8))), rows, atol=1e-5)
    np.testing.assert_allclose(features(program(slower(problem, 16))), rows, atol=1e-5)


def test_the_order_of_the_tensors_does_not_matter() -> None:
    problem = generated(5)
    order = list(range(len(problem.tensors)))
    random.Random(0).shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    steps = [replace(step, uses=tuple(replace(use, tensor=place[use.tensor]) for use in step.uses)) for step in problem.steps]
    other = replace(problem, tensors=tuple(problem.tensors[old] for old in order), steps=tuple(steps))
    rows, first = features(program(problem)), program(problem).first
    expected = np.concatenate([rows[first[old] : first[old + 1]] for old in order])
    np.testing.assert_allclose(features(program(other)), expected, atol=1e-5)


def test_what_programs_of_all_sorts_look_like_is_finite_and_bounded() -> None:
    for seed in range(60):
        rows = features(program(random_problem(random.Random(seed))))
        assert np.isfinite(rows).all()
        assert np.abs(rows).max(initial=0) <= 10


def test_a_gap_sees_what_is_denser_and_at_the_same_time() -> None:
    """Two tensors wait side by side, and the smaller one saves as much as the larger: only the larger one sees the other."""
    problem = programs.program([">a", ">b", "", "a b", ""], {"a": 30, "b": 60})
    found = seen(problem)
    (small, large) = [i for i, s in enumerate(found["dead"]) if not s and found["last"][i] == 0]
    assert found["size"][small] == pytest.approx(np.log2(0.3))
    alone, both = np.log2(1.3), np.log2(1.9)
    assert found["gap denser most"][small] == pytest.approx(alone)
    assert found["gap denser most"][large] == pytest.approx(both)
    assert found["gap live most"][small] == found["gap live most"][large] == pytest.approx(both)


def test_a_program_without_uses_has_no_rows() -> None:
    problem = programs.program(["", ""], {})
    assert features(program(problem)).shape == (0, len(NAMES))
