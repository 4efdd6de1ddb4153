"""The MILP restricted to what lies around a plan: a guess, or nothing."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from stowplan.models.hint import check
from stowplan.models.memory_mapping.milp.around import _fixed, _near, guess_around
from stowplan.models.memory_mapping.milp.hint import add_hint
from stowplan.models.memory_mapping.milp.matrix import Formulation, formulate
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.mip.matrix import FloatArray
from tests.models.memory_mapping.cases import random_plan, random_problem
from tests.portfolio.memory_mapping.states import wide_problem


def relaxed(problem: Problem) -> tuple[Formulation, FloatArray]:
    model = RelaxationModel(problem)
    search = RelaxationSearch(model, Effort(math.inf))
    search.linear()
    assert search.solution is not None
    return formulate(model, [*search.windows.found], names=False), search.solution


def test_from_nothing_it_finds_what_to_bring_in() -> None:
    problem = wide_problem(1)
    formulation, values = relaxed(problem)
    nothing = Plan(problem=problem.digest, objective_ps=problem.all_slow_ps)
    hint = guess_around(formulation, nothing, radius=1000, time_limit=30.0)
    assert hint is not None
    assert hint.source == "milp"
    check(problem, hint)
    # Decisions, not shares.
    assert {round(value, 6) for value in hint.values["fast"]} == {0.0, 1.0}
    assert guess_around(formulation, nothing, radius=0, time_limit=30.0) is None
    near = guess_around(formulation, nothing, relaxed=values, time_limit=30.0)
    assert near is None or sum(near.values["fast"]) > 0


@pytest.mark.parametrize("seed", range(10))
def test_the_plan_lies_in_what_is_left(seed: int) -> None:
    """However it is restricted, the plan's point satisfies every row and box; what is far away does not."""
    rng = random.Random(seed)
    problem = random_problem(rng, steps=10, tensors=6, channels=1)
    model = RelaxationModel(problem)
    if not model.cost:
        return
    formulation = formulate(model, names=False)
    start = add_hint(formulation, random_plan(problem, rng, attempts=20))
    anything = np.array([rng.random() for _ in start])
    fixed, near = _fixed(formulation.matrix, start, anything), _near(formulation.matrix, start, 0)
    assert fixed.violation(start) <= 1e-6
    assert near.violation(start) <= 1e-6
    decisions = formulation.matrix.is_integer & (formulation.matrix.upper == 1)
    moved = np.where(decisions, 1.0 - start, start)
    if decisions.any():
        assert near.violation(moved) > 0.5
        assert _near(formulation.matrix, start, int(decisions.sum())).row_upper[-1] >= near.row_upper[-1] + decisions.sum()
