"""``benchmarks/guidance/guides.py``: the control, and what is read off a history."""

from __future__ import annotations

import importlib
import math
import random
from pathlib import Path
from types import ModuleType

import pytest

import benchmarks.guidance.tables
from stowplan.learned_guidance.memory_mapping.guide import guide
from stowplan.models.hint import check_hint
from stowplan.models.memory_mapping.hint import VALUES, of_plan
from tests.learned_guidance.memory_mapping import programs
from tests.models.memory_mapping.cases import random_plan, random_problem


@pytest.fixture
def guidance() -> ModuleType:
    """The command as a module."""
    return importlib.import_module("benchmarks.guidance.guides")


@pytest.fixture
def tables() -> ModuleType:
    """What makes tables of its results."""
    found: ModuleType = benchmarks.guidance.tables
    return found


def test_the_control_has_the_same_pairs_of_values_elsewhere(guidance: ModuleType) -> None:
    rng = random.Random(3)
    problem = random_problem(rng, steps=10, tensors=6)
    hint = of_plan(problem, random_plan(problem, rng))
    control = guidance.shuffled(hint, 1)
    check_hint(problem, control, VALUES)
    pairs, others = (sorted(zip(*each.values.values(), strict=True)) for each in (hint, control))
    assert pairs == others
    assert guidance.shuffled(hint, 1) == control != guidance.shuffled(hint, 2)


ROW = {"bound": 90, "all_slow": 200, "seconds": 10.0, "uses": 1000, "histories": {}}

HISTORY = [(2.0, 120), (4.0, 100), (9.0, 99)]


def test_what_is_read_off_a_history(tables: ModuleType) -> None:
    assert [tables.objective_at(HISTORY, moment, 200) for moment in (0.5, 2.0, 4.5, 9.0)] == [200, 120, 100, 99]
    assert tables.gap(ROW, HISTORY, 0.1) == pytest.approx(55.0)
    assert tables.gap(ROW, HISTORY, 0.4) == pytest.approx(10.0)
    assert tables.time_to(ROW, HISTORY, 0.01, 99) == 9.0
    assert tables.time_to(ROW, HISTORY, 0.02, 99) == 4.0
    assert tables.time_to(ROW, HISTORY, 0.001, 90) == math.inf
    # All slow for 2 s, then 25 %, 10 % and 9.1 %.
    expected = (2 * 55 + 2 * 25 + 5 * 10 + 1 * 100 * 9 / 99) / 10
    assert tables.integral(ROW, HISTORY) == pytest.approx(expected)


def test_tables_have_a_row_for_each_guide_and_its_part_of_the_gain(tables: ModuleType) -> None:
    def histories(*ends: int) -> dict[str, object]:
        return {str(seed): [[1.0, end]] for seed, end in enumerate(ends)}

    row = ROW | {"histories": {"none": histories(110, 110), "relaxation": histories(100, 100), "learned": histories(102, 103)}}
    shown = tables.summary({"m": row}, ["none", "learned", "missing"])
    assert len(shown.splitlines()) == 4
    assert "| m | learned | 2 | 12." in shown
    share = tables.worth({"m": row}, ["none", "relaxation", "learned"]).splitlines()[2:]
    assert len(share) == 3
    # (90/102.5 in the mean of both; 90/110; 90/100): some three quarters of the gain.
    assert share[-1].startswith("| learned | 1.0 | 7")


def test_without_learning_memory_is_filled_as_far_as_it_goes(guidance: ModuleType) -> None:
    problem = programs.program([">a", ">b", "", "a b", ""], {"a": 30, "b": 60})
    hint, _ = guidance.filled(problem)
    check_hint(problem, hint, VALUES)
    assert hint.values["keep"] == (1.0, 0.0, 1.0, 0.0)
    small = programs.program([">a", ">b", "", "a b", ""], {"a": 60, "b": 100})
    hint, _ = guidance.filled(small)
    assert hint.values["keep"] == (1.0, 0.0, 0.0, 0.0)


def test_an_untrained_network_is_one_that_can_be_read(guidance: ModuleType, tmp_path: Path) -> None:
    shipped = guide.load()
    guidance.untrained(tmp_path / "untrained.npz", shipped, 1)
    made = guide.load(tmp_path / "untrained.npz")
    assert (made["mean"] == shipped["mean"]).all()
    assert (made["scores.weight"] != shipped["scores.weight"]).all()
