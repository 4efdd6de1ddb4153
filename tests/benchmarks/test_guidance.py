"""``benchmarks/guidance.py``: the control, and what is read off a history."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from stowplan.models.hint import check
from stowplan.models.memory_mapping.hint import of_plan
from tests.models.memory_mapping.cases import random_plan, random_problem
from tests.paths import ROOT


@pytest.fixture
def guidance(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("guidance")
    sys.modules.pop("guidance", None)


def test_the_control_has_the_same_pairs_of_values_elsewhere(guidance: ModuleType) -> None:
    rng = random.Random(3)
    problem = random_problem(rng, steps=10, tensors=6)
    hint = of_plan(problem, random_plan(problem, rng))
    control = guidance.shuffled(hint, 1)
    check(problem, control)
    pairs, others = (sorted(zip(*each.values.values(), strict=True)) for each in (hint, control))
    assert pairs == others
    assert guidance.shuffled(hint, 1) == control != guidance.shuffled(hint, 2)


def test_the_objective_at_a_moment_is_the_best_until_then(guidance: ModuleType) -> None:
    history = [(1.0, 50), (2.0, 40), (3.0, 30)]
    assert [guidance.objective_at(history, moment, 99) for moment in (0.5, 1.0, 2.5, 9.0)] == [99, 50, 40, 30]


def test_a_row_has_means_over_the_seeds(guidance: ModuleType) -> None:
    row = {"uses": 1000, "relaxation_seconds": 0.5, "gaps": {"none": {"0": [3.0, 2.0, 1.0], "1": [5.0, 4.0, 3.0]}}}
    assert guidance.line("m", row, ["none"]) == ["m", "1,000", "0.50", "4.00 / 3.00 / 2.00"]
