"""The complete model as a candidate."""

from __future__ import annotations

import random

import pytest

from stowplan.models.memory_mapping.plan import Plan
from stowplan.portfolio.memory_mapping.candidates import complete
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import random_problem
from tests.portfolio.memory_mapping.test_lns import Recorder


class Prover(Recorder):
    """A context for a candidate that proves bounds, too."""

    def __init__(self, start: Plan):
        super().__init__(start)
        self.bounds: list[int] = []

    def plan(self, plan: Plan, source: str) -> None:
        assert source == "cpsat"
        self.plans.append(plan)

    def bound(self, bound: int, source: str) -> None:
        self.bounds.append(bound)


def test_it_proves_its_best_plan() -> None:
    problem = random_problem(random.Random(7), steps=6, tensors=4, channels=1)
    context = Prover(Plan(problem=problem.digest, objective=problem.all_slow_ps))
    complete(problem, context)
    assert context.plans[-1].objective == context.bounds[-1] == optimum(problem)


def test_a_problem_beyond_the_model_is_noted_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowplan.models.memory_mapping.cpsat.model.MAX_SIZE", 3)
    problem = random_problem(random.Random(1), steps=10, tensors=6, channels=1)
    context = Prover(Plan(problem=problem.digest, objective=problem.all_slow_ps))
    complete(problem, context)
    assert "more than 3" in context.notes[0]
