"""Equal problems have equal digests, however they came about: a plan is for a problem, not for its spelling."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan import files, kinds
from stowplan.kernel.kind import Kind, check, kind
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem
from tests.models.bank_mapping import cases as banks
from tests.models.banked_packing import cases as banked
from tests.models.llm_placement import cases as llm
from tests.models.memory_mapping import cases as programs
from tests.models.modulo_scheduling import cases as loops
from tests.models.operator_order import cases as operators
from tests.models.packing import cases as buffers
from tests.models.rematerialization import cases as remat
from tests.models.tier_placement import cases as networks


def _loop(seed: int) -> Problem:
    """A loop body with numbers in it: zeros of both signs, and others."""
    chance = random.Random(seed)
    numbers = [0.0, -0.0, 1.0, 2.5]

    def with_numbers(instruction: Instruction) -> Instruction:
        operands = [
            msgspec.structs.replace(each, initial=chance.choice(numbers)) if each.instruction else each
            for each in instruction.operands
        ]
        return msgspec.structs.replace(instruction, operands=(*operands, Operand(constant=chance.choice(numbers))))

    problem = loops.random_problem(seed)
    return msgspec.structs.replace(problem, instructions=tuple(map(with_numbers, problem.instructions)))


MAKERS: dict[str, Callable[[int], Any]] = {
    "memory_mapping": lambda seed: programs.random_problem(random.Random(seed)),
    "packing": buffers.random_problem,
    "banked_packing": banked.random_problem,
    "operator_order": operators.random_problem,
    "rematerialization": remat.training,
    "tier_placement": networks.random_problem,
    "bank_mapping": banks.random_problem,
    "modulo_scheduling": _loop,
    "llm_placement": llm.random_problem,
}


def spelt_out(value: Any) -> Any:
    """A value for JSON with every field in it that can be, the defaults as well."""
    if isinstance(value, msgspec.Struct):
        values = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: spelt_out(each) for name, each in values.items() if each is not msgspec.UNSET}
    return [spelt_out(each) for each in value] if isinstance(value, tuple) else value


def same_problems(of: Kind[Any, Any], problem: Any) -> dict[str, Any]:
    """The same problem, made in other ways."""
    return {
        "decoded": of.problem.decode(files.encode(problem)),
        "pickled": pickle.loads(pickle.dumps(problem)),
        "spelt out": of.problem.decode(msgspec.json.encode(spelt_out(problem))),
        "spelt out and pickled": pickle.loads(pickle.dumps(of.problem.decode(msgspec.json.encode(spelt_out(problem))))),
        "replaced": msgspec.structs.replace(problem),
    }


def plans_of(of: Kind[Any, Any], problem: Any) -> list[Any]:
    if of.name == "modulo_scheduling":
        found = cpsat.solve(problem, time_limit=20).plan
        return [] if found is None else [found]
    return list(of.initial(problem).values())


def test_every_kind_is_here() -> None:
    assert {each.name for each in kinds.registered()} == {*MAKERS}


@pytest.mark.parametrize("name", MAKERS)
@given(seed=st.integers(0, 10_000))
def test_equal_problems_have_equal_digests(name: str, seed: int) -> None:
    of, problem = kind(name), MAKERS[name](seed)
    for how, other in same_problems(of, problem).items():
        assert other == problem, how
        assert other.digest == problem.digest, how
        assert files.encode(other) == files.encode(problem), how


@pytest.mark.parametrize("name", MAKERS)
def test_plans_hold_for_equal_problems(name: str) -> None:
    of, tried = kind(name), 0
    for seed in range(4):
        problem = MAKERS[name](seed)
        for plan in plans_of(of, problem):
            for how, other in same_problems(of, problem).items():
                assert check(of, other, plan) == check(of, problem, plan), how
                assert check(of, other, plan).ok, how
                tried += 1
    assert tried


def test_numbers_that_are_equal() -> None:
    """Also those that are written otherwise: zero with a sign, a whole number without a point."""

    def body(initial: float, constant: float) -> Problem:
        operands = (Operand(instruction="a", distance=1, initial=initial), Operand(constant=constant))
        return Problem(instructions=(Instruction(id="a", op="add", operands=operands),), machine=loops.line())

    for one, other in ((0.0, -0.0), (0.0, float("0")), (0, 0.0), (3, 3.0), (-0.0, 0)):
        assert body(one, other) == body(other, one)
        assert body(one, other).digest == body(other, one).digest
    assert body(-0.0, -0.0).instructions[0].operands[0].initial.hex() == "-0x0.0p+0"
    digests = {body(initial, constant).digest for initial in (0.0, 1.0) for constant in (0.0, 1.0)}
    assert len(digests) == 4


#: As they were when plans were first written to files; a plan that somebody has kept stays valid.
DIGESTS = {
    "memory_mapping": "69b9937dd353f656430e53151fab1c5a2d6bfaa4111e29ffab40ff147f8a1389",
    "packing": "490f32de9e3f2748d4db8cf44bcd1e50593a45a7acb7d92bb00ee4e34b05a8b9",
    "tier_placement": "eac58db0954a76455495e205b797f70491d59c718e7f8f9da36076cc2c078b8a",
    "bank_mapping": "629d40cbf060e16620c17aa534b58f7b29ab24ded5099de935b9de785c4f6457",
    "modulo_scheduling": "8508239758f92bd378525f8e4998aeb753f8972a95bd8ff60be427c5d319b480",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_digests_stay(name: str) -> None:
    problem = loops.random_problem(7) if name == "modulo_scheduling" else MAKERS[name](7)
    assert problem.digest == DIGESTS[name]
