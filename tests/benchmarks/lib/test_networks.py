"""Generated loop bodies compute what their names say."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.lib.modulo_scheduling import networks
from stowplan.frontends.dfg import Dfg, lower
from stowplan.hardware.se import load_machine
from stowplan.hardware.se.reference import compute
from stowplan.models.modulo_scheduling.problem import Rules


def results(graph: Dfg, inputs: Sequence[float]) -> list[float]:
    """The values that no instruction reads, in the order of their instructions."""
    streams = dict(zip((variable.id for variable in graph.variables), inputs, strict=True))
    values: dict[str, float] = {}
    read = set()
    for each in graph.instructions:
        operands = []
        for operand in each.operands:
            if operand.instruction is not None:
                read.add(operand.instruction)
                operands.append(values[operand.instruction])
            elif operand.variable is not None:
                operands.append(streams[operand.variable])
            else:
                assert operand.constant is not None
                operands.append(operand.constant)
        values[each.id] = float(compute(each.op, [np.array([operand]) for operand in operands], 1)[0].real)
    return [value for name, value in values.items() if name not in read]


def numbers(count: int) -> list[float]:
    chance = random.Random(count)
    return [float(chance.randrange(-50, 50)) for _ in range(count)]


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_sorting_networks_sort(count: int) -> None:
    inputs = numbers(count)
    assert results(networks.bitonic_sort(count), inputs) == sorted(inputs)


def test_matrix_products() -> None:
    inputs = numbers(3 * 2 + 2 * 4)
    left, right = np.reshape(inputs[:6], (3, 2)), np.reshape(inputs[6:], (2, 4))
    assert results(networks.matrix_product(3, 4, 2), inputs) == (left @ right).ravel().tolist()


def test_stencils() -> None:
    inputs = numbers(9)
    expected = [sum(place * inputs[at + place] for place in range(5)) for at in range(5)]
    assert results(networks.stencil(5, 2), inputs) == expected


def test_distances() -> None:
    inputs = numbers(5)
    expected = [(inputs[one] - inputs[two]) ** 2 for one in range(5) for two in range(one)]
    assert results(networks.squared_distances(5), inputs) == expected


def test_wavelets_of_a_constant_signal_have_no_details() -> None:
    found = results(networks.lifting(16, 2), [3.0] * 16)
    assert sorted(found) == [0.0] * (found.count(0.0)) + [3.0] * 4


def test_all_can_be_mapped() -> None:
    """The machine has every operation that the graphs use."""
    machine = load_machine("se")
    for members in networks.families().values():
        sizes = [len(lower(graph, machine, rules=Rules(), inputs="instructions").instructions) for graph in members]
        assert sizes == sorted(sizes)
