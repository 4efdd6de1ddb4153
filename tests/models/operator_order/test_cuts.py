"""Bounds by cuts: no order is below them, and they are what is least for each operator."""

from __future__ import annotations

import numpy as np
import pytest

from stowplan.models.operator_order.bounds import Cuts, cut_bound, forced_loads
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.operator_order.structure import build, stable_order
from tests.models.operator_order.cases import orders, random_problem


@pytest.mark.parametrize("seed", range(120))
def test_each_is_the_least_of_all_orders(seed: int) -> None:
    problem = random_problem(seed, 6)
    structure = build(problem)
    least = np.full(structure.ops, 10**9)
    for order in orders(problem):
        profile = np.empty(structure.ops, np.int64)
        profile[order] = structure.profile(order)
        least = np.minimum(least, profile)
    cuts, forced = Cuts(structure), forced_loads(structure)
    assert [cuts.least(op) for op in range(structure.ops)] == least.tolist()
    assert (forced[: structure.ops] <= least).all()


def test_either_side_of_a_fork_is_live() -> None:
    """Whatever has run before the last: what one branch reads is live, or what it writes; neither is in every order."""
    tensors = (Tensor(id="x", size=10), *(Tensor(id=name, size=8) for name in "abc"))
    ops = (
        Op(id="start", writes=(0,)),
        Op(id="a", reads=(0,), writes=(1,)),
        Op(id="b", reads=(0,), writes=(2,)),
        Op(id="c", writes=(3,)),
        Op(id="c end", reads=(3,)),
    )
    problem = Problem(tensors=tensors, ops=ops, outputs=(1, 2), precedences=((0, 3),))
    structure = build(problem)
    order = stable_order(structure)
    ceilings = np.empty(structure.ops, np.int64)
    ceilings[order] = structure.profile(order)
    assert forced_loads(structure)[3] == 8
    assert Cuts(structure).least(3) == 18
    assert cut_bound(structure, ceilings, 0, lambda: False) == 18
