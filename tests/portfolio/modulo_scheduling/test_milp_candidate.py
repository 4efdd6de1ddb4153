"""The candidate ``milp``: there by name, not by family; what it says is proven."""

from __future__ import annotations

import pytest

from stowplan.hardware.se import load_machine
from stowplan.kernel.call import select_candidates
from stowplan.kernel.context import Options
from stowplan.kernel.solve import solve
from stowplan.models.modulo_scheduling.plan import decode_objective
from stowplan.portfolio.modulo_scheduling.kind import KIND
from tests.models.modulo_scheduling.brute_force import best
from tests.models.modulo_scheduling.cases import graph, random_problem

PROBLEMS = [random_problem(seed, most=3) for seed in range(30)]


def test_it_runs_by_name_only() -> None:
    every = KIND.candidates(random_problem(1, most=3), Options())
    for names in (("exact",), ("heuristic", "learned", "exact")):
        assert "milp" not in {candidate.name for candidate in select_candidates(every, Options(candidates=names))}
    assert [candidate.name for candidate in select_candidates(every, Options(candidates=("milp",)))] == ["milp"]


@pytest.mark.parametrize("deterministic", [False, True])
def test_its_plan_is_the_best_and_it_says_so(deterministic: bool) -> None:
    problem = next(each for each in PROBLEMS if not each.rules.pass_through and best(each) is not None)
    result = solve(problem, time_limit=20, candidates="milp", workers=1, deterministic=deterministic)
    assert result.plan is not None
    assert decode_objective(result.plan.objective) == best(problem)
    assert result.bound == result.objective


def test_values_that_pass_through_are_not_for_it() -> None:
    problem = next(each for each in PROBLEMS if each.rules.pass_through)
    result = solve(problem, time_limit=20, candidates="milp", workers=1)
    assert result.candidates[0].outcome != "failed"
    assert "pass through" in result.candidates[0].note


def test_registers_are_not_for_it() -> None:
    problem = graph("a>b", load_machine("satmapit-2x2"))
    result = solve(problem, time_limit=20, candidates="milp", workers=1)
    assert result.candidates[0].outcome != "failed"
    assert "no registers" in result.candidates[0].note
