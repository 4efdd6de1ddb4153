"""Layers that repeat are found, and what a plan of few of them runs again is carried over to all."""

from __future__ import annotations

import msgspec
import pytest

from stowplan.models.rematerialization.problem import Op, Problem, Tensor
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify
from stowplan.portfolio.rematerialization.greedy import simulate
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.rematerialization.layers import LEFT, WORTH, fewer, layers_of
from tests.models.rematerialization.cases import training
from tests.portfolio.recorder import Recorder


def deep(layers: int, head: int = 3) -> Problem:
    """Layers of four operators and one that adds what came in; backwards each reads what its forward operator read."""
    tensors = [Tensor(id="x", size=4)]
    ops: list[Op] = []
    outputs: list[int] = []

    def add(kind: str, reads: list[int], size: int, cost: int) -> int:
        tensors.append(Tensor(id=f"{kind} {len(tensors)}", size=size))
        ops.append(Op(id=f"{kind} {len(ops)}", kind=kind, reads=tuple(reads), writes=(len(tensors) - 1,), cost=cost))
        return len(tensors) - 1

    value, read = 0, []
    for _ in range(head):
        value = add("head", [value], 4, 2)
    for _ in range(layers):
        inner = [value]
        for at in range(4):
            inner.append(add(f"forward {at}", [inner[-1]], 8 + at, 3 + at))
        read.append(inner)
        value = add("sum", [value, inner[-1]], 4, 1)
    gradient = add("loss", [value], 4, 1)
    for inner in reversed(read):
        back = gradient
        for at in reversed(range(4)):
            outputs.append(add(f"weight {at}", [back, inner[at]], 1, 3))
            back = add(f"backward {at}", [back, inner[at + 1]], 4, 3)
        gradient = add("sum back", [gradient, back], 4, 1)
    return Problem(tensors=tuple(tensors), ops=tuple(ops), inputs=(0,), outputs=(*outputs, gradient), free_inputs=False)


@pytest.mark.parametrize("count", [8, 13])
def test_few_layers_stand_for_all(count: int) -> None:
    structure = build(deep(count))
    assert len({layer for layer, _ in layers_of(structure).values()}) == count
    few = fewer(structure)
    assert few is not None
    small = few.structure
    assert small.ops == build(deep(LEFT)).ops
    assert small.made(small.order).peak == build(deep(LEFT)).made(small.order).peak
    assert few.carried_over(small.order) == structure.order
    limit = structure.ordering.peak(structure.order) * 6 // 10
    found = simulate(small, small.order, few.limit(limit))
    assert found is not None
    again = len(found) - small.ops
    carried = structure.made(few.carried_over(found))
    assert verify(structure.problem, carried).ok
    assert (count - LEFT) * again // LEFT <= len(carried.sequence) - structure.ops - again <= count * again
    repaired = Insertion(structure).repaired(carried.sequence, limit)
    assert repaired is not None
    assert (
        verify(msgspec.structs.replace(structure.problem, limit=limit), structure.made(repaired)).figures.get("peak")
        is not None
    )


def test_where_nothing_repeats_there_are_no_layers() -> None:
    for seed in range(20):
        assert fewer(build(training(seed))) is None
    assert fewer(build(deep(WORTH * LEFT - 1))) is None


def test_the_search_tells_what_is_carried_over() -> None:
    from stowplan.portfolio.rematerialization import candidates

    problem = deep(12)
    peak = build(problem).ordering.peak(build(problem).order)
    context = Recorder(deterministic=True, time_limit=0.1)
    candidates.search(msgspec.structs.replace(problem, limit=peak * 6 // 10), context)
    assert "layers" in {source for _, source in context.plans}
