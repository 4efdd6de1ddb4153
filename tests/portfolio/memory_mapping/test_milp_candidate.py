"""The candidates ``milp`` and ``milp_hint``: there by name, not by family; bounds hold, and hints are for the others."""

from __future__ import annotations

import random

from stowplan.models.hint import check
from stowplan.models.memory_mapping.plan import Plan
from stowplan.portfolio.context import Options
from stowplan.portfolio.memory_mapping.kind import KIND
from stowplan.portfolio.memory_mapping.milp_candidate import milp_hint
from stowplan.portfolio.solve import solve
from stowplan.portfolio.solve_arguments import chosen_candidates
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import random_problem
from tests.portfolio.memory_mapping.states import wide_problem
from tests.portfolio.recorder import Recorder


def test_it_runs_by_name_only() -> None:
    problem = random_problem(random.Random(1))
    every = KIND.candidates(problem, Options())
    assert {"milp", "milp_hint"} <= {candidate.name for candidate in every}
    for names in (("exact",), ("heuristic", "learned", "exact")):
        assert not {"milp", "milp_hint"} & {candidate.name for candidate in chosen_candidates(every, Options(candidates=names))}
    for name in ("milp", "milp_hint"):
        assert [candidate.name for candidate in chosen_candidates(every, Options(candidates=(name,)))] == [name]


def test_its_bound_holds() -> None:
    problem = random_problem(random.Random(4), steps=6, tensors=3)
    result = solve(problem, time_limit=20, candidates="milp", workers=1)
    assert result.bound is not None
    assert result.bound <= optimum(problem)
    assert [report.outcome for report in result.candidates] == ["finished"]


def test_what_it_would_change_is_a_hint_for_the_others() -> None:
    problem = wide_problem(1)
    nothing = Plan(problem=problem.digest, objective_ps=problem.all_slow_ps)
    context = Recorder(start_plan=nothing, time_limit=60.0)
    milp_hint(problem, context)
    (hint,) = context.given
    check(problem, hint)
    assert sum(hint.values["fast"]) > 0
    assert not context.plans
    assert max(context.bounds) < problem.all_slow_ps
    without = Recorder(time_limit=60.0)
    milp_hint(problem, without)
    assert (without.given, without.notes) == ([], ["found no plan to begin with"])
