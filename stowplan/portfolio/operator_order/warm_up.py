"""Compile everything, where it has not been, by ordering three operators."""

from __future__ import annotations

from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.operator_order.structure import build
from stowplan.portfolio.operator_order import beam
from stowplan.portfolio.operator_order.graph import make
from stowplan.portfolio.operator_order.set_search import SetSearch


def warm_up() -> None:
    """Run each compiled function once."""
    problem = Problem(
        tensors=tuple(Tensor(id=name, size=size) for name, size in (("a", 1), ("b", 2), ("c", 3))),
        ops=(Op(id="one", writes=(0,)), Op(id="two", writes=(1,)), Op(id="three", reads=(0, 1), writes=(2,))),
        outputs=(2,),
    )
    for backward in (False, True):
        graph = make(build(problem), backward)
        search = SetSearch(graph, 0, 100)
        search._grow()
        search.run(lambda: False)
        beam.search(graph, 0, 100, 2, None, lambda: False)
