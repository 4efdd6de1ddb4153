"""Anything can be given as a plan, and anything as a capacity: answers, not tracebacks."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

import stowplan
from stowplan import kinds
from stowplan.errors import UsageError
from stowplan.kernel.kind import check, describe_plan, kind
from stowplan.verification import Verification
from tests.models.bank_mapping import cases as banks
from tests.models.banked_packing import cases as banked
from tests.models.llm_placement import cases as llm
from tests.models.memory_mapping import cases as programs
from tests.models.modulo_scheduling import cases as loops
from tests.models.operator_order import cases as operators
from tests.models.packing import cases as buffers
from tests.models.rematerialization import cases as remat
from tests.models.tier_placement import cases as networks
from tests.paths import EXAMPLES

PROBLEMS: dict[str, Any] = {
    "memory_mapping": programs.random_problem(random.Random(0)),
    "packing": buffers.random_problem(0),
    "banked_packing": banked.random_problem(0),
    "operator_order": operators.random_problem(0),
    "rematerialization": remat.random_problem(0),
    "tier_placement": networks.chain(3),
    "bank_mapping": banks.random_problem(0),
    "modulo_scheduling": loops.graph("a>b"),
    "llm_placement": llm.random_problem(1),
}
PLANS = {name: next(iter(kind(name).initial(problem).values()), None) for name, problem in PROBLEMS.items()}


def test_kinds_know_their_plans() -> None:
    assert {each.name for each in kinds.registered()} == {*PROBLEMS}
    assert {name for name, plan in PLANS.items() if plan is None} == {"modulo_scheduling"}
    for name, plan in PLANS.items():
        if plan is not None:
            assert type(plan) is kind(name).plan
            assert check(kind(name), PROBLEMS[name], plan) == kind(name).verify(PROBLEMS[name], plan)
            assert describe_plan(plan) == f"a plan of {name}"


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_no_plan_of_the_kind(name: str) -> None:
    for other, plan in (*PLANS.items(), ("no plan", 3), ("no plan", "plan.json"), ("no plan", PROBLEMS[name])):
        if other != name and plan is not None:
            found = check(kind(name), PROBLEMS[name], plan)
            assert (found.ok, found.objective) == (False, None)
            assert found.lines == (f"wrong_kind: found {describe_plan(plan)}, expected a plan of {name}",)


@pytest.mark.parametrize("name", [name for name, plan in PLANS.items() if plan is not None])
def test_a_plan_for_another_problem_is_one_line(name: str) -> None:
    """Whatever else its numbers break there."""
    plan = PLANS[name]
    spoilt = msgspec.structs.replace(plan, problem="0" * 64, objective=plan.objective + 1)
    found = kind(name).verify(PROBLEMS[name], spoilt)
    assert (found.ok, len(found.lines)) == (False, 1)
    assert found.lines[0].startswith("wrong_problem: ")
    right = kind(name).verify(PROBLEMS[name], msgspec.structs.replace(spoilt, problem=plan.problem))
    assert right.violations
    assert not any(each.code == "wrong_problem" for each in right.violations)


def test_a_plan_that_the_verifier_stumbles_over() -> None:
    def stumble(*_: object) -> Verification[str]:
        raise ZeroDivisionError("of all things")

    found = check(replace(kind("packing"), verify=stumble), PROBLEMS["packing"], PLANS["packing"])
    assert (found.objective, found.lines) == (None, ("the verifier failed: ZeroDivisionError: of all things",))
    # The real thing: a plan built by hand, of the wrong types all through.
    hollow = msgspec.structs.replace(PLANS["packing"], offsets=(None, "x"))
    assert not check(kind("packing"), PROBLEMS["packing"], hollow).ok


@pytest.mark.parametrize("name", PROBLEMS)
def test_plans_at_hand_of_another_kind(name: str) -> None:
    """Also of a kind that has no plans of its own to compare with."""
    for other in ("packing", "tier_placement"):
        if other != name:
            message = f"found a plan of {other} as the plan 'mine', expected a plan of {name}"
            with pytest.raises(UsageError, match=message):
                stowplan.solve(PROBLEMS[name], plans={"mine": PLANS[other]}, time_limit=5)


@pytest.mark.parametrize("capacity", [1.5, 1e6, float("nan"), True, np.float64(4096), (1,)])
def test_capacities_that_are_no_whole_numbers(capacity: Any) -> None:
    for name, target in (
        ("alexnet_inf_b1.hlo.txt.gz", "teaching"),
        ("resnet50.layers.json", "nnp-i"),
        ("buffers.csv", None),
        ("nothing", None),
    ):
        expected = f"found a capacity of {capacity!r} bytes, expected a whole number"
        with pytest.raises(UsageError, match=re.escape(expected)):
            stowplan.read(EXAMPLES / name, target, capacity=capacity)


def test_whole_numbers_of_any_type() -> None:
    problem = stowplan.read(EXAMPLES / "buffers.csv", capacity=np.int64(1 << 20))
    assert type(problem.capacity) is int
    assert problem == stowplan.read(EXAMPLES / "buffers.csv", capacity=1 << 20)
