"""CP-SAT, the bound and the verifier against trying everything, on hundreds of random problems."""

from __future__ import annotations

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.models import cpsat_runner
from stowplan.models.llm_placement import cpsat
from stowplan.models.llm_placement.plan import Plan, case_of, cases, request_ps
from stowplan.models.llm_placement.problem import Problem, floor
from stowplan.models.llm_placement.relaxation import Relaxation
from stowplan.models.llm_placement.verify import verify
from tests.models.llm_placement.cases import every_plan, least_time, random_problem
from tests.patience import HANG


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_the_exact_model_finds_the_optimum(first: int) -> None:
    infeasible = 0
    for seed in range(first, first + 50):
        problem = random_problem(seed)
        best = least_time(problem)
        found = cpsat.solve(problem, time_limit=HANG)
        if best is None:
            infeasible += 1
            assert found.status == "infeasible", seed
            continue
        assert found.status == "optimal", seed
        assert found.plan is not None
        assert found.plan.objective == found.bound == best, seed
        assert verify(problem, found.plan).ok, seed
        assert floor(problem) <= best, seed
        assert min(Relaxation(problem, case).bound() or 0 for case in cases(problem)) <= best, seed
    assert infeasible < 25


def test_a_hint_is_complete_and_is_improved() -> None:
    lines: list[str] = []
    improved = 0
    for seed in range(60):
        problem = random_problem(seed)
        plans = [plan for plan in every_plan(problem) if verify(problem, plan).ok]
        if not plans:
            continue
        worst = max(plans, key=lambda plan: plan.objective)
        model = cpsat.Model(problem, case_of(problem, worst))
        model.add_hint(worst)
        cpsat_runner.run(model.model, time_limit=HANG, log=lines.append)
        assert any("complete_hint" in line or "hint is complete and is feasible" in line for line in lines), seed
        lines.clear()
        found = cpsat.solve(problem, time_limit=HANG, hint=worst)
        assert found.plan is not None
        assert found.plan.objective == least_time(problem), seed
        improved += found.plan.objective < worst.objective
    assert improved > 20


def test_costs_of_problems_are_those_of_the_verifier() -> None:
    for seed in range(150):
        problem = random_problem(seed, most=3)
        for plan in every_plan(problem):
            if {violation.code for violation in verify(problem, plan).violations} <= {"over_capacity"}:
                assert request_ps(problem, plan.memories, plan.spilled, plan.micro_batch) == plan.objective, seed


def test_every_mutation_is_found() -> None:
    problem, plan = _solved()
    codes = set()
    count = len(problem.layers)
    mutants: dict[str, Plan] = {
        "wrong_problem": msgspec.structs.replace(plan, problem="0" * 64),
        "wrong_count": msgspec.structs.replace(plan, memories=plan.memories[1:]),
        "wrong_objective": msgspec.structs.replace(plan, objective=plan.objective + 1000),
        "no_such_memory": msgspec.structs.replace(plan, memories=(7, *plan.memories[1:])),
        "no_such_micro_batch": msgspec.structs.replace(plan, micro_batch=9),
        "wrong_spill": msgspec.structs.replace(plan, spilled=(5, *plan.spilled[1:])),
        "host_behind_device": msgspec.structs.replace(plan, memories=(1, *[0] * (count - 1)), spilled=(0,) * count),
        "not_contiguous": msgspec.structs.replace(plan, memories=(1, 2, *[1] * (count - 2)), spilled=(0,) * count),
    }
    for code, mutant in mutants.items():
        found = {violation.code for violation in verify(problem, mutant).violations}
        assert code in found, code
        codes |= found
    small = msgspec.structs.replace(problem, host=msgspec.structs.replace(problem.host, capacity=1))
    full = msgspec.structs.replace(plan, problem=small.digest, memories=(0,) * count, spilled=(0,) * count)
    assert "over_capacity" in {violation.code for violation in verify(small, full).violations}


def _solved() -> tuple[Problem, Plan]:
    for seed in range(300):
        problem = random_problem(seed)
        found = cpsat.solve(problem, time_limit=HANG)
        if found.plan is not None and len(problem.devices) == 2 and len(problem.layers) > 3:
            return problem, found.plan
    raise AssertionError("no problem with a plan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ()}, "found no layer"),
        ({"micro_batches": ()}, "found no micro-batch"),
        ({"steps": -1}, "found steps -1"),
        ({"slots": 0}, "found slots 0"),
    ],
)
def test_bad_problems_are_refused(change: dict[str, object], message: str) -> None:
    problem = random_problem(3)
    with pytest.raises(InputError, match=message):
        msgspec.structs.replace(problem, **change)
