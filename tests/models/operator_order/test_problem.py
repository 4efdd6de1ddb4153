"""Graphs that are none are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stowplan.errors import InputError
from stowplan.models.operator_order.problem import Op, Problem, Tensor

SIZES = (4, 4, 8)
TENSORS = tuple(Tensor(id=f"t{number}", size=size) for number, size in enumerate(SIZES))
GOOD: dict[str, Any] = {
    "tensors": TENSORS,
    "ops": (Op(id="a", reads=(0,), writes=(1,), in_place=((0, 1),)), Op(id="b", reads=(1,), writes=(2,))),
    "inputs": (0,),
    "outputs": (2,),
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"ops": (Op(id="a", reads=(2,), writes=(1,)), Op(id="b", reads=(1,), writes=(2,)))},
            "cycle of operators",
        ),
        ({"precedences": ((0, 1), (1, 0))}, "cycle"),
        ({"ops": (Op(id="a", writes=(1,)), Op(id="b", writes=(1, 2)))}, "tensor t1 written twice, first by a"),
        ({"ops": (Op(id="a", reads=(1,), writes=(2,)),)}, "reading tensor t1, which no operator writes and is no input"),
        (
            {"tensors": (*TENSORS[:2], Tensor(id="t2", size=4, alias_of=1)), "ops": (Op(id="a", reads=(0,), writes=(2,)),)},
            "found it writing t2, a view of tensor t1, which no operator writes and is no input",
        ),
        (
            {
                "tensors": (TENSORS[0], Tensor(id="t1", size=4, alias_of=2), TENSORS[2]),
                "ops": (Op(id="a", reads=(1,), writes=(2,), in_place=((1, 2),)),),
            },
            "found the operand t1, a view of the result t2, expected one with other bytes",
        ),
        ({"ops": (Op(id="a", writes=(0, 2)),)}, "the input t0 written"),
        ({"ops": (Op(id="a", reads=(0,), writes=(1,)), Op(id="a", reads=(1,), writes=(2,)))}, "the id 'a' twice"),
        ({"ops": (Op(id="a", reads=(7,), writes=(2,)),)}, "found tensor 7, expected 0 to 2"),
        ({"ops": (Op(id="a", reads=(0, 0), writes=(2,)),)}, "tensor 0 twice"),
        ({"ops": (Op(id="a", reads=(2,), writes=(2,)),)}, "both read and written"),
        ({"ops": (Op(id="a", reads=(0,), writes=(2,), in_place=((0, 2),)),)}, "found 4 and 8 bytes, expected the same"),
        ({"ops": (Op(id="a", reads=(0,), writes=(2,), in_place=((1, 2),)),)}, "a tensor that the operator reads"),
        ({"ops": (Op(id="a", reads=(0,), writes=(1,), in_place=((0, 1), (0, 1))), Op(id="b", writes=(2,)))}, "in two pairs"),
        ({"outputs": (1,), "ops": ()}, "tensor t1, which no operator writes"),
        ({"precedences": ((0, 5),)}, "found operator 5, expected 0 to 1"),
        ({"tensors": (Tensor(id="t0", size=-1), *TENSORS[1:])}, "size -1"),
        ({"tensors": (Tensor(id="t0", size=4, alignment=0), *TENSORS[1:])}, "alignment 0"),
        ({"tensors": (TENSORS[0], Tensor(id="t0", size=4), TENSORS[2])}, "the id 't0' twice"),
        ({"tensors": (*TENSORS[:2], Tensor(id="t2", size=8, alias_of=1))}, "a view of 8 bytes, expected at most the 4 of t1"),
        ({"tensors": (*TENSORS[:2], Tensor(id="t2", size=8, alias_of=2))}, "a view of itself"),
        ({"tensors": (*TENSORS[:2], Tensor(id="t2", size=8, alias_of=9))}, "alias_of 9"),
    ],
)
def test_bad_graphs(changes: dict[str, Any], words: str) -> None:
    Problem(**GOOD)
    with pytest.raises(InputError, match=words) as error:
        Problem(**{**GOOD, **changes})
    assert "\n" not in str(error.value)


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    problem = Problem(**GOOD, name="two")
    problem.save(tmp_path / "two.json")
    again = Problem.load(tmp_path / "two.json")
    assert again == problem
    assert again.digest == problem.digest


def test_digest_is_of_what_matters() -> None:
    problem = Problem(**GOOD)
    assert Problem(**GOOD, name="other").digest == problem.digest
    assert Problem(**GOOD, free_inputs=False).digest != problem.digest
