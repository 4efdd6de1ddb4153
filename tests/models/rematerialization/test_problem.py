"""Problems that are none are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.errors import InputError
from stowplan.models.rematerialization.problem import LIMIT, Op, Problem, Reservation, Tensor, of_graph
from tests.models.operator_order import cases as operator_order

TENSORS = tuple(Tensor(id=f"t{number}", size=size) for number, size in enumerate((4, 4, 8)))
GOOD: dict[str, Any] = {
    "tensors": TENSORS,
    "ops": (Op(id="a", reads=(0,), writes=(1,), in_place=((0, 1),), cost=3), Op(id="b", reads=(1,), writes=(2,), once=True)),
    "inputs": (0,),
    "outputs": (2,),
    "limit": 12,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ops": (Op(id="a", reads=(2,), writes=(1,)), Op(id="b", reads=(1,), writes=(2,)))}, "cycle of operators"),
        ({"ops": (Op(id="a", writes=(1,)), Op(id="b", writes=(1, 2)))}, "tensor t1 written twice"),
        ({"ops": (Op(id="a", reads=(1,), writes=(2,)),)}, "reading tensor t1, which no operator writes"),
        ({"ops": (Op(id="a", writes=(1, 2), cost=-1),)}, r"ops\[0\] \(a\): found cost -1"),
        ({"ops": (Op(id="a", writes=(1,), cost=LIMIT - 1), Op(id="b", writes=(2,), cost=1))}, "costs that add up"),
        ({"ops": (Op(id="a", reads=(0,), writes=(2,), in_place=((0, 2),)),)}, "found 4 and 8 bytes, expected the same"),
        ({"limit": -1}, "limit: found -1, expected 0 to"),
        ({"limit": LIMIT}, "limit: found"),
        ({"reserved": (Reservation(size=1, since=5),)}, r"reserved\[0\].since: found 5, expected an operator, 0 to 1"),
        ({"reserved": (Reservation(size=1, until=0),)}, "found operator a, expected one that may run once only"),
        ({"reserved": (Reservation(size=-1),)}, r"reserved\[0\].size: found -1, expected 0 to"),
        (
            {"reserved": (Reservation(size=0), Reservation(size=0, times=2))},
            r"reserved\[1\].of: found None, expected an operator",
        ),
        ({"reserved": (Reservation(size=0, of=1),)}, "expected an operator where times is above 0, else null"),
        ({"reserved": (Reservation(size=0, times=-1, of=1),)}, "times: found -1"),
        ({"precedences": ((0, 5),)}, "found operator 5, expected 0 to 1"),
        ({"tensors": (*TENSORS[:2], Tensor(id="t2", size=8, alias_of=1))}, "a view of 8 bytes, expected at most the 4 of t1"),
    ],
)
def test_bad_problems(changes: dict[str, Any], words: str) -> None:
    Problem(**GOOD)
    with pytest.raises(InputError, match=words) as error:
        Problem(**{**GOOD, **changes})
    assert "\n" not in str(error.value)


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    problem = Problem(**GOOD, name="two")
    problem.save(tmp_path / "two.json")
    again = stowplan.read(tmp_path / "two.json")
    assert again == problem
    assert again.digest == problem.digest
    assert stowplan.read(tmp_path / "two.json", capacity=7).limit == 7


def test_files_with_and_without_reservations(tmp_path: Path) -> None:
    """What has none is as it was before there were any, digest and file."""
    plain, empty = Problem(**GOOD), Problem(**GOOD, reserved=())
    plain.save(tmp_path / "plain.json")
    assert "reserved" not in (tmp_path / "plain.json").read_text()
    assert empty.digest == plain.digest
    reserved = Problem(**GOOD, reserved=(Reservation(size=3, since=1, times=2, of=1),))
    assert reserved.digest != plain.digest
    reserved.save(tmp_path / "reserved.json")
    assert stowplan.read(tmp_path / "reserved.json") == reserved


def test_digest_is_of_what_matters() -> None:
    problem = Problem(**GOOD)
    assert Problem(**GOOD, name="other").digest == problem.digest
    assert Problem(**{**GOOD, "limit": None}).digest != problem.digest
    assert Problem(**{**GOOD, "ops": (GOOD["ops"][0], Op(id="b", reads=(1,), writes=(2,)))}).digest != problem.digest


def test_graphs_of_operator_order_become_problems() -> None:
    for seed in range(20):
        graph = operator_order.random_problem(seed)
        problem = of_graph(graph, {graph.ops[0].id: 7}, limit=5)
        assert [(op.id, op.reads, op.writes, op.in_place) for op in problem.ops] == [
            (op.id, op.reads, op.writes, op.in_place) for op in graph.ops
        ]
        assert (problem.ops[0].cost, problem.limit) == (7, 5)
        assert all(op.cost == 1 for op in problem.ops[1:])
