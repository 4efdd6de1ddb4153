"""CP-SAT, MILP and verifier against trying everything, on hundreds of random problems."""

from __future__ import annotations

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.models.banked_packing import cpsat, milp
from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Bank, Buffer, Problem, find_overload, floor_bound
from stowplan.models.banked_packing.verify import verify
from tests.models.banked_packing.cases import is_valid, least_cost, random_problem
from tests.patience import HANG


@pytest.mark.parametrize("first", range(0, 300, 60))
def test_exact_models_find_the_optimum(first: int) -> None:
    for seed in range(first, first + 60):
        problem = random_problem(seed)
        best = least_cost(problem)
        found = cpsat.solve(problem, time_limit=HANG)
        relaxed = cpsat.solve(problem, offsets=False, time_limit=HANG)
        if best is None:
            assert found.status == "infeasible", seed
            continue
        assert find_overload(problem) is None, seed
        assert found.status == "optimal", seed
        assert found.plan is not None
        assert found.plan.objective == found.bound == best, seed
        assert verify(problem, found.plan).ok, seed
        assert is_valid(problem, found.plan), seed
        assert floor_bound(problem) <= (relaxed.bound or 0) <= best, seed


def test_the_milp_is_the_relaxation_by_loads() -> None:
    for seed in range(120):
        problem = random_problem(seed, most=8)
        ours, theirs = (
            cpsat.solve(problem, offsets=False, time_limit=HANG),
            milp.solve(problem, solver="gscip", time_limit=HANG),
        )
        assert ours.status == theirs.status, seed
        if ours.plan is not None and theirs.plan is not None:
            assert ours.plan.objective == theirs.plan.objective == theirs.bound, seed


def test_cuts_hold_in_both_models() -> None:
    buffers = tuple(Buffer(id=str(at), lower=0, upper=2, size=2, uses=1 + at) for at in range(3))
    banks = (Bank(name="fast", capacity=6, cost=1), Bank(name="slow", capacity=6, cost=10))
    problem = Problem(buffers=buffers, banks=banks)
    cuts = [(0, (0, 1, 2)), (0, (0, 2))]
    for found in (
        cpsat.solve(problem, offsets=False, cuts=cuts, time_limit=HANG),
        milp.solve(problem, cuts=cuts, solver="gscip", time_limit=HANG),
        milp.solve(problem, cuts=cuts, time_limit=HANG),
    ):
        assert found.plan is not None
        assert found.plan.banks == (1, 0, 0)


def test_an_overload_is_one() -> None:
    shown = 0
    for seed in range(400):
        problem = random_problem(seed)
        found = find_overload(problem)
        if found is not None:
            shown += 1
            assert least_cost(problem) is None, seed
    assert shown > 20


def test_an_overload_names_no_buffer_without_bytes() -> None:
    buffers = tuple(Buffer(id=name, lower=0, upper=3, size=size) for name, size in (("a", 60), ("empty", 0), ("b", 60)))
    found = find_overload(Problem(buffers=buffers, banks=(Bank(name="m", capacity=100, cost=1),)))
    assert found is not None
    assert found.buffers == (0, 2)
    assert found.reason == "2 buffers (a, b) live at once and take 120 bytes, and m have 100"


def test_every_mutation_is_found() -> None:
    for seed in range(150):
        problem = random_problem(seed)
        plan = cpsat.solve(problem, time_limit=HANG).plan
        if plan is None:
            continue
        for number in range(len(problem.buffers)):
            for bank in range(len(problem.banks)):
                for offset in range(-1, problem.banks[bank].capacity + 1):
                    banks, offsets = list(plan.banks), list(plan.offsets)
                    banks[number], offsets[number] = bank, offset
                    mutant = msgspec.structs.replace(plan, banks=tuple(banks), offsets=tuple(offsets))
                    cost = sum(
                        buffer.size * buffer.uses * problem.banks[at].cost
                        for buffer, at in zip(problem.buffers, banks, strict=True)
                    )
                    mutant = msgspec.structs.replace(mutant, objective=cost)
                    found = verify(problem, mutant)
                    assert found.ok == is_valid(problem, mutant), (seed, number, bank, offset, found)
                    assert found.objective == cost
                    assert not verify(problem, msgspec.structs.replace(mutant, objective=cost + 1)).ok


def test_malformed_plans() -> None:
    problem = random_problem(5)
    n = len(problem.buffers)
    plan = Plan(problem=problem.digest, objective=0, banks=(0,) * n, offsets=(0,) * (n + 1))
    assert [each.code for each in verify(problem, plan).violations] == ["wrong_count"]
    plan = Plan(problem="other", objective=0, banks=(9,) * n, offsets=(0,) * n)
    assert [each.code for each in verify(problem, plan).violations] == ["wrong_problem", "no_such_bank"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"banks": ()}, "at least one"),
        ({"banks": (Bank(name="a", capacity=1, cost=1), Bank(name="a", capacity=1, cost=1))}, "its own name"),
        ({"banks": (Bank(name="a", capacity=-1, cost=1),)}, "capacity -1"),
        ({"buffers": (Buffer(id="x", lower=1, upper=1, size=1),)}, "upper 1"),
        ({"buffers": (Buffer(id="x", lower=0, upper=1, size=-1),)}, "size -1"),
        ({"buffers": (Buffer(id="x", lower=0, upper=1, size=1, banks=("b",)),)}, "bank 'b'"),
        ({"buffers": (Buffer(id="x", lower=0, upper=1, size=1 << 50, uses=1 << 20),)}, "add up"),
        ({"buffers": (Buffer(id="x", lower=0, upper=1, size=1),) * 2}, "twice"),
    ],
)
def test_bad_problems(change: dict[str, object], words: str) -> None:
    problem = Problem(buffers=(Buffer(id="x", lower=0, upper=1, size=1),), banks=(Bank(name="a", capacity=1, cost=1),))
    with pytest.raises(InputError, match=words) as told:
        msgspec.structs.replace(problem, **change)
    assert "\n" not in str(told.value)


def test_files_come_back() -> None:
    problem = random_problem(7)
    assert Problem.decode(msgspec.json.encode(problem)).digest == problem.digest
    assert msgspec.structs.replace(problem, name="other").digest == problem.digest
