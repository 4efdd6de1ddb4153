"""The verifier and both exact models against brute force over every plan of small random problems."""

from __future__ import annotations

import msgspec
import pytest

from stowplan.models.bank_mapping import cpsat, milp
from stowplan.models.bank_mapping.milp import solve_stage, stages_of
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import assemble, objective_bound
from stowplan.models.bank_mapping.verify import verify
from stowplan.models.mip.matrix import Options
from tests.models.bank_mapping.cases import every_plan, random_problem, solve_milp
from tests.models.bank_mapping.reference import cost

SEEDS = 320
#: Problems with more plans than this are left out: there are enough smaller ones.
MOST_PLANS = 1500


def best_of(problem: Problem) -> int | None:
    """Least cost of all plans, every one of them shown to the verifier; None where no plan is valid, -1 for too many plans."""
    best: int | None = None
    for number, plan in enumerate(every_plan(problem)):
        if number == MOST_PLANS:
            return -1
        found = cost(problem, plan)
        # The verifier takes long: it sees some plans of each problem, and the best ones.
        if number % 17 == 0 or (found is not None and (best is None or found < best)):
            check = verify(problem, msgspec.structs.replace(plan, objective=-1 if found is None else found))
            assert check.ok == (found is not None), (problem.name, check.violations)
            if found is not None:
                assert check.objective == found
            else:
                assert {each.code for each in check.violations} <= {"over_capacity", "wrong_objective"}
        if found is not None and (best is None or found < best):
            best = found
    return best


@pytest.fixture(scope="module")
def solved() -> list[tuple[Problem, int | None]]:
    problems = [random_problem(seed) for seed in range(SEEDS)]
    return [(problem, best) for problem in problems if (best := best_of(problem)) != -1]


@pytest.mark.slow
def test_there_are_problems_of_all_sorts(solved: list[tuple[Problem, int | None]]) -> None:
    assert len(solved) > 150
    assert any(len(writers) > 1 for problem, _ in solved for writers in problem.writers)
    assert sum(problem.capacity < 1000 for problem, _ in solved) > 50


def test_cpsat_is_optimal(solved: list[tuple[Problem, int | None]]) -> None:
    for problem, best in solved:
        outcome = cpsat.solve(problem, time_limit=20)
        if best is None:
            assert outcome.status == "infeasible", problem.name
            continue
        assert outcome.status == "optimal"
        assert outcome.plan is not None
        check = verify(problem, outcome.plan)
        assert check.ok, (problem.name, check.violations)
        assert outcome.plan.objective == outcome.bound == best, problem.name


@pytest.mark.parametrize("solver", ["highs", "gscip"])
def test_milp_is_optimal(solved: list[tuple[Problem, int | None]], solver: str) -> None:
    for problem, best in solved[:: 1 if solver == "gscip" else 2]:
        outcome, plan, bound = solve_milp(problem, solver)
        if best is None:
            assert outcome.status == "infeasible", problem.name
            continue
        assert plan is not None
        assert Plan.decode(msgspec.json.encode(plan)) == plan
        check = verify(problem, plan)
        assert check.ok, (problem.name, check.violations)
        assert plan.objective == best, problem.name
        assert bound is not None
        assert best * (1 - 1e-5) - 1 <= bound <= best, problem.name


def test_stages_bound_ever_better_and_the_last_is_optimal(solved: list[tuple[Problem, int | None]]) -> None:
    several = 0
    for problem, best in solved:
        built = milp.build(problem)
        matrices = stages_of(built)
        several += len(matrices) > 1
        said: list[float] = []
        for matrix in matrices:
            found = solve_stage(matrix, Options(time_limit=20, on_bound=said.append))
            if best is None:
                continue
            assert found.status == "optimal"
            assert found.bound is not None
            assert found.values is not None
            said.append(found.bound)
        if best is None:
            assert found.status == "infeasible", problem.name
            continue
        bounds = [built.bound(bound) for bound in said]
        assert max(bounds) <= best, problem.name
        assert bounds[-1] >= best * (1 - 1e-5) - 1
        plan = built.extract(found.values)
        assert verify(problem, plan).ok, problem.name
        assert plan.objective == best, problem.name
    assert several >= 20


def test_cheap_bound_holds(solved: list[tuple[Problem, int | None]]) -> None:
    for problem, best in solved:
        assert best is None or objective_bound(problem) <= best


def test_hints_are_taken_as_they_are(solved: list[tuple[Problem, int | None]]) -> None:
    for problem, best in solved[::5]:
        if best is None:
            continue
        plan = cpsat.solve(problem, time_limit=20).plan
        assert plan is not None
        built = cpsat.build(problem)
        built.add_hint(plan)
        built.model.add_assumptions([])
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        solver.parameters.num_workers = 1
        assert solver.solve(built.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        assert built.extract(solver.value).objective == plan.objective
        model = milp.build(problem)
        point = model.add_hint(plan)
        assert model.matrix.is_feasible(point)
        assert round(model.matrix.objective(point) * model.unit) == plan.objective


def test_assembled_plans_are_valid(solved: list[tuple[Problem, int | None]]) -> None:
    for problem, best in solved:
        if best is None:
            continue
        outcome = cpsat.solve(problem, time_limit=20)
        assert outcome.plan is not None
        nowhere = assemble(problem, outcome.plan.options, [False] * len(problem.tensors))
        assert verify(problem, nowhere).ok
