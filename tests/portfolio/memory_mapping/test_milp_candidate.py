"""The candidate ``milp``: there by name, not by family; its bound holds."""

from __future__ import annotations

import random

from stowplan.kernel.call import select_candidates
from stowplan.kernel.context import Options
from stowplan.kernel.solve import solve
from stowplan.portfolio.memory_mapping.kind import KIND
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import random_problem


def test_it_runs_by_name_only() -> None:
    problem = random_problem(random.Random(1))
    every = KIND.candidates(problem, Options())
    assert "milp" in {candidate.name for candidate in every}
    for names in (("exact",), ("heuristic", "learned", "exact")):
        assert "milp" not in {candidate.name for candidate in select_candidates(every, Options(candidates=names))}
    assert [candidate.name for candidate in select_candidates(every, Options(candidates=("milp",)))] == ["milp"]


def test_its_bound_holds() -> None:
    problem = random_problem(random.Random(4), steps=6, tensors=3)
    result = solve(problem, time_limit=20, candidates="milp", workers=1)
    assert result.bound is not None
    assert result.bound <= optimum(problem)
    assert [report.outcome for report in result.candidates] == ["finished"]
