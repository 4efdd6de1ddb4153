"""The verifier against valid plans that were spoilt in one way each."""

from __future__ import annotations

import msgspec
import pytest

from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import Operator, Problem, Tensor, View
from stowplan.models.bank_mapping.verify import verify


def problem(**changes: object) -> Problem:
    """x -> o0 -> y -> o1 -> z, where o1 reads y another way than o0 writes it, and o2 reads x and y again."""
    tensors = (
        Tensor(name="x", bytes=8, shape=(2, 4), is_input=True),
        Tensor(name="y", bytes=16, shape=(4, 4), views=(View("part", 6),)),
        Tensor(name="z", bytes=16, shape=(4, 4), is_output=True),
    )
    operators = (
        Operator(name="o0", op="a", reads=(0,), read_bytes=(8,), writes=(1,), options=((0, 0), (-1, -1))),
        Operator(name="o1", op="b", reads=(1,), read_bytes=(16,), writes=(), options=((1,),)),
        Operator(name="o2", op="c", reads=(0, 1), read_bytes=(4, 6), writes=(2,), options=((1, 2, 1), (1, 0, 1))),
    )
    given = {"banks": 4, "capacity": 100, "tensors": tensors, "operators": operators, "copy_weight": 3, "name": "p"}
    return Problem(**{**given, **changes})  # type: ignore[arg-type]


def plan(**changes: object) -> Plan:
    """All on chip: copies of y (16 and its view of 6) and of x (8); x is loaded, z stored."""
    copies = (BankCopy(1, 1, 1), BankCopy(0, 1, 2), BankCopy(1, 2, 1))
    given = {
        "problem": problem().digest,
        "objective": 3 * (16 + 8 + 6) + 8 + 16,
        "options": (0, 0, 0),
        "layouts": (0, 0, 1),
        "on_chip": (True, True, True),
        "copies": copies,
    }
    return Plan(**{**given, **changes})  # type: ignore[arg-type]


def test_a_valid_plan() -> None:
    found = verify(problem(), plan())
    assert found.ok, found.violations
    assert (found.figures, found.objective) == ({"copied_bytes": 30, "off_chip_bytes": 24}, 114)


def test_nothing_on_chip() -> None:
    outside = plan(on_chip=(False,) * 3, copies=(), objective=8 + 4 + 16 + 16 + 6 + 16)
    found = verify(problem(), outside)
    assert found.ok, found.violations
    assert found.figures["copied_bytes"] == 0


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("wrong_problem", {"problem": "0" * 64}),
        ("wrong_count", {"options": (0, 0)}),
        ("wrong_count", {"layouts": (0, 0)}),
        ("wrong_count", {"on_chip": (True,)}),
        ("unknown_option", {"options": (0, 1, 0)}),
        ("unknown_option", {"options": (-1, 0, 0)}),
        ("unknown_layout", {"layouts": (0, 2, 1)}),
        ("unknown_layout", {"copies": (BankCopy(3, 0, 1),)}),
        ("unknown_layout", {"copies": (BankCopy(1, 3, 1),)}),
        ("wrong_layout", {"layouts": (0, -1, 1)}),
        ("wrong_layout", {"options": (1, 0, 0)}),
        ("missing_copy", {"copies": plan().copies[1:]}),
        ("missing_copy", {"copies": plan().copies[:2]}),
        ("late_copy", {"copies": (BankCopy(1, 1, 2), *plan().copies[1:])}),
        ("early_copy", {"copies": (BankCopy(1, 1, 0), *plan().copies[1:])}),
        ("duplicate_copy", {"copies": (*plan().copies, BankCopy(1, 1, 1))}),
        ("pointless_copy", {"copies": (*plan().copies, BankCopy(2, 0, 2))}),
        ("pointless_copy", {"copies": (*plan().copies, BankCopy(1, 0, 1))}),
        ("copy_off_chip", {"on_chip": (True, False, True)}),
        ("wrong_objective", {"objective": 113}),
        ("wrong_objective", {"objective": 115}),
    ],
)
def test_spoilt_plans(code: str, changes: dict[str, object]) -> None:
    assert code in {each.code for each in verify(problem(), plan(**changes)).violations}


def test_space() -> None:
    # x with its copy takes 16, y with both of its own 38, and z 16, all at the last operator.
    assert verify(problem(capacity=70), plan(problem=problem(capacity=70).digest)).ok
    tight = problem(capacity=69)
    found = verify(tight, plan(problem=tight.digest))
    assert [(each.code, each.concerns) for each in found.violations] == [("over_capacity", {"operators": (2,)})]


def test_plans_are_files() -> None:
    data = msgspec.json.encode(plan())
    assert Plan.decode(data) == plan()
