"""Liu's order is best for in-trees."""

from __future__ import annotations

import random

import pytest

from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.operator_order.structure import build
from stowplan.portfolio.operator_order.orders import best_order, is_in_tree
from tests.models.operator_order.cases import least_peak, random_problem


def tree(seed: int, most: int = 8) -> Problem:
    """A random in-tree, or several; results may take the place of an operand."""
    chance = random.Random(seed)
    count = chance.randint(1, most)
    sizes = [chance.randint(1, 5) for _ in range(count)]
    parent = [chance.randint(number + 1, count - 1) if number < count - 1 else None for number in range(count)]
    if seed % 3 == 0:
        parent = [None if chance.random() < 0.2 else each for each in parent]
    tensors = [Tensor(id=f"t{number}", size=size) for number, size in enumerate(sizes)]
    ops = []
    for number in range(count):
        reads = tuple(child for child in range(number) if parent[child] == number)
        same = [child for child in reads if sizes[child] == sizes[number]] if seed % 2 else []
        writes = [number]
        if seed % 4 == 3:
            tensors.append(Tensor(id=f"temporary{number}", size=chance.randint(0, 3)))
            writes.append(len(tensors) - 1)
        ops.append(Op(id=f"o{number}", reads=reads, writes=tuple(writes), in_place=tuple((x, number) for x in same[:1])))
    outputs = tuple(number for number in range(count) if parent[number] is None and (seed % 5 or number == count - 1))
    return Problem(tensors=tuple(tensors), ops=tuple(ops), outputs=outputs)


@pytest.mark.parametrize("part", range(4))
def test_least_peaks_of_trees(part: int) -> None:
    for seed in range(40 * part, 40 * part + 40):
        problem = tree(seed, 7)
        structure = build(problem)
        assert is_in_tree(structure)
        order = best_order(structure)
        assert sorted(order) == list(range(len(problem.ops)))
        assert structure.peak(order) == least_peak(problem), seed


def test_other_graphs_are_known_as_such() -> None:
    assert not is_in_tree(build(random_problem(8)))
    found = 0
    for seed in range(300):
        problem = random_problem(seed, 6)
        structure = build(problem)
        if is_in_tree(structure):
            found += 1
            assert structure.peak(best_order(structure)) == least_peak(problem), seed
    assert found > 10
