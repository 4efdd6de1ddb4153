"""Deterministic runs of small problems of every kind: each ends by its work or a proof, and its plan is the same twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan import kinds
from stowplan.kernel.workers.warm import workers
from stowplan.models.operator_order.problem import Op, Tensor
from stowplan.models.operator_order.problem import Problem as OrderProblem
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.problem import Buffer
from stowplan.models.packing.problem import Problem as PackingProblem
from tests.models.bank_mapping import cases as bank_mapping
from tests.models.banked_packing import cases as banked_packing
from tests.models.llm_placement import cases as llm_placement
from tests.models.memory_mapping import cases as memory_mapping
from tests.models.modulo_scheduling import cases as modulo_scheduling
from tests.models.operator_order import cases as operator_order
from tests.models.packing import cases as packing
from tests.models.rematerialization import cases as rematerialization
from tests.models.tier_placement import cases as tier_placement
from tests.patience import no_hang


def aligned_packing(seed: int, *, capacity: bool = False) -> PackingProblem:
    """Buffers of sizes that are no multiples of their alignment, so that the load is mostly out of reach."""
    chance = random.Random(seed)
    buffers = []
    for number in range(chance.randint(3, 9)):
        lower = chance.randint(0, 8)
        upper, size = lower + chance.randint(1, 5), chance.randint(1, 200)
        buffers.append(Buffer(id=f"b{number}", lower=lower, upper=upper, size=size, alignment=16))
    problem = PackingProblem(name=f"aligned {seed}", buffers=tuple(buffers))
    return msgspec.structs.replace(problem, capacity=load_bound(problem)) if capacity else problem


def aligned_chain(seed: int) -> OrderProblem:
    """Operators one after the other: there is one order, and its arena is larger than its peak for the alignment alone."""
    chance = random.Random(seed)
    count = chance.randint(3, 7)
    return OrderProblem(
        name=f"chain {seed}",
        tensors=tuple(Tensor(id=f"t{number}", size=chance.randint(1, 200), alignment=16) for number in range(count + 1)),
        ops=tuple(Op(id=f"o{number}", reads=(number,), writes=(number + 1,)) for number in range(count)),
        inputs=(0,),
        outputs=(count,),
    )


#: Problems of each kind, by a seed; of some kinds those, too, whose bound is out of reach.
MAKERS: dict[str, tuple[Callable[[int], Any], ...]] = {
    "packing": (packing.random_problem, aligned_packing, lambda seed: aligned_packing(seed, capacity=True)),
    "operator_order": (operator_order.random_problem, aligned_chain),
    "rematerialization": (rematerialization.limited,),
    "banked_packing": (banked_packing.random_problem,),
    "llm_placement": (llm_placement.random_problem,),
    "tier_placement": (lambda seed: tier_placement.random_problem(seed, address_spaces=bool(seed % 2)),),
    "modulo_scheduling": (modulo_scheduling.random_problem,),
    "bank_mapping": (bank_mapping.random_problem,),
    "memory_mapping": (lambda seed: memory_mapping.random_problem(random.Random(seed)),),
}


def test_every_kind_is_among_them() -> None:
    assert {*MAKERS} == {each.name for each in kinds.registered()}


def check(problem: Any, time_limit: float) -> None:
    """Twice: with two workers, then with one, where candidates come to their end in another order."""
    with no_hang():
        found = [stowplan.solve(problem, deterministic=True, time_limit=time_limit, workers=count) for count in (2, 1)]
    for result in found:
        # Neither "time_limit", which is the net for those that hang, nor cut short, which is a warning.
        assert result.stop_reason in ("optimal", "fits", "infeasible", "work_limit"), (problem.name, result.stop_reason)
        assert [each for each in result.warnings if "work was done" in each] == []
        assert [each.name for each in result.candidates if each.outcome in ("failed", "rejected")] == []
    first, second = found
    # Proofs have what time is left: of two runs with one plan either may have one.
    assert first.status == second.status or {first.status, second.status} == {"feasible", "optimal"}, problem.name
    assert first.objective == second.objective, problem.name
    assert msgspec.json.encode(first.plan) == msgspec.json.encode(second.plan), problem.name


@pytest.fixture
def net() -> None:
    """No worker of another test takes the place of one of these."""
    workers().close()


@pytest.mark.parametrize("kind", MAKERS)
def test_small_problems_end_by_their_work_or_a_proof(kind: str, net: None) -> None:
    for make in MAKERS[kind]:
        check(make(1), 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_five_hundred_small_problems_end_by_their_work_or_a_proof(kind: str, net: None) -> None:
    makers = MAKERS[kind]
    for number in range(-(-500 // len(MAKERS))):
        check(makers[number % len(makers)](number), 0.5)
