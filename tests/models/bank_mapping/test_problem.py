"""Problems that make no sense say so, naming the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowplan.errors import InputError
from stowplan.models.bank_mapping.problem import Operator, Problem, Tensor
from tests.models.bank_mapping.cases import random_problem

X = Tensor(name="x", bytes=8, shape=(2,), is_input=True)
Y = Tensor(name="y", bytes=8, shape=(2,))


def step(name: str = "o", **changes: object) -> Operator:
    given = {"name": name, "op": "a", "reads": (0,), "read_bytes": (8,), "writes": (1,), "options": ((0, 0),)}
    return Operator(**{**given, **changes})  # type: ignore[arg-type]


def made(*operators: Operator, tensors: tuple[Tensor, ...] = (X, Y), **changes: int) -> Problem:
    return Problem(**{"banks": 2, "capacity": 10, **changes}, tensors=tensors, operators=operators)


@pytest.mark.parametrize(
    ("message", "operators"),
    [
        ("(o).*found no option", [step(options=())]),
        ("(o).*option for 1 accesses, expected 2", [step(options=((0,),))]),
        ("(o).*layout 1 of 'y', expected -1 to 0", [step(options=((0, 1),))]),
        ("(o).*layout -2 of 'x'", [step(options=((-2, 0),))]),
        ("(o).*tensor number 2", [step(writes=(2,))]),
        ("(o).*written twice", [step(writes=(1, 1), options=((0, 0, 0),))]),
        ("(o).*reads tensor 'y' before it is written", [step(reads=(1,), writes=(), options=((0,),))]),
        ("(o).*writes tensor 'x', which is an input", [step(reads=(), read_bytes=(), writes=(0,), options=((0,),))]),
        (
            "(b).*writes tensor 'y', which is read before",
            [step(), step("a", reads=(1,), writes=(), options=((0,),)), step("b")],
        ),
        ("(b).*contradictory bank rules.*'y' as unspread.*as dimension 0", [step(), step("b", options=((0, -1),))]),
        ("(o).*0 read_bytes, expected 1", [step(read_bytes=())]),
        ("(o).*too many", [step(read_bytes=((1 << 56) - 1,))]),
    ],
)
def test_operators_that_make_no_sense(message: str, operators: list[Operator]) -> None:
    with pytest.raises(InputError, match=message):
        made(*operators)


def test_other_numbers_that_make_no_sense() -> None:
    with pytest.raises(InputError, match=r"banks.*found 0"):
        made(step(), banks=0)
    with pytest.raises(InputError, match=r"capacity.*found -1"):
        made(step(), capacity=-1)
    with pytest.raises(InputError, match=r"x.*twice"):
        made(step(), tensors=(X, X))
    with pytest.raises(InputError, match=r"y.*sizes of at least 1"):
        made(step(), tensors=(X, Tensor(name="y", bytes=8, shape=(0,))))


def test_files(tmp_path: Path) -> None:
    problem = random_problem(3)
    problem.save(tmp_path / "p.json")
    assert Problem.load(tmp_path / "p.json") == problem
    assert Problem.load(tmp_path / "p.json").digest == problem.digest


def test_lives() -> None:
    problem = made(step("a"), step("b", reads=(0, 1), read_bytes=(8, 8), writes=(), options=((0, 0),)))
    assert problem.life(0) == (0, 2)
    assert problem.life(1) == (0, 2)
    assert problem.writers == ((), (0,))
    assert problem.readers == (((0, 0), (1, 0)), ((1, 1),))
