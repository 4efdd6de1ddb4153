"""Operator orders that are kept close to a plan of an earlier version of the problem."""

from __future__ import annotations

import msgspec

import stowplan
from stowplan.kernel.plan_changes import KeepClose
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.portfolio.operator_order.keep_close import Changes


def _problem(*, is_new: bool) -> Problem:
    """Three operators; the new version has one more, which has the lowest number and may run first."""
    sizes = {"x": 8, "a": 64, "b": 32, "c": 16, **({"new": 4} if is_new else {})}
    operators = [
        Op(id="op_a", reads=(0,), writes=(1,)),
        Op(id="op_b", reads=(1,), writes=(2,)),
        Op(id="op_c", reads=(1,), writes=(3,)),
    ]
    if is_new:
        operators.insert(0, Op(id="op_new", reads=(0,), writes=(4,)))
    return Problem(
        tensors=tuple(Tensor(id=name, size=size) for name, size in sizes.items()),
        ops=tuple(operators),
        inputs=(0,),
        outputs=(2, 3, 4) if is_new else (2, 3),
    )


def test_a_new_operator_is_none_that_moved() -> None:
    old, new = _problem(is_new=False), _problem(is_new=True)
    earlier = stowplan.solve(old, time_limit=20).plan
    assert earlier is not None
    given = KeepClose(plan=earlier, problem=old)
    changes = Changes(new, given)
    same = [number + 1 for number in earlier.order]
    for position in range(4):
        plan = msgspec.structs.replace(changes.start, order=(*same[:position], 0, *same[position:]))
        assert changes.counts(plan)["operator"] == (0, 3)
    swapped = msgspec.structs.replace(changes.start, order=(0, same[0], same[2], same[1]))
    assert changes.counts(swapped)["operator"] == (1, 3)
    assert stowplan.solve(new, time_limit=20, keep_close=given).plan is not None
