"""A baseline that is named: the result is never worse, and says by how much it is better."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan import kinds
from stowplan.kernel.given import reserved_names
from stowplan.kernel.keep_close.reverting import cost_limit
from stowplan.kernel.kind import Baseline, Candidate, kind
from stowplan.portfolio.memory_mapping import candidates
from stowplan.result import Result
from stowplan.verification import Verification
from tests.kernel import fakes
from tests.kernel.conftest import AMPLE, OF_EACH_KIND, SolveFakes
from tests.kernel.fakes import ALL_SLOW, OPTIMUM, ladder_plan, ladder_problem
from tests.kernel.recorder import Recorder
from tests.paths import EXAMPLES

#: Every baseline of every kind.
NAMED = [(each.name, baseline) for each in kinds.registered() for baseline in reserved_names(kind(each.name))]


def maker(function: str) -> dict[str, Any]:
    """A kind whose baseline is made by one of the fakes."""
    made = Candidate("greedy", "baseline", place="thread")
    return {
        "baselines": (Baseline(name="greedy", maker=lambda problem: made),),
        "function": lambda name: fakes.function_of(function if name == made.name else name),
    }


def solve_with_nothing_else(monkeypatch: pytest.MonkeyPatch, name: str, baseline: str, **options: Any) -> Result:
    """Of a kind's input, where no candidate finds anything and no plan but the baseline's is at hand."""
    own = kind(name)
    idle = Candidate("does_nothing", "heuristic", place="thread")
    weak = replace(
        own,
        candidates=lambda problem, options: [idle],
        function=lambda name: fakes.does_nothing if name == idle.name else own.function(name),
        baselines=tuple(each if each.name == baseline else Baseline(name=each.name) for each in own.baselines),
    )
    monkeypatch.setattr(importlib.import_module("stowplan.kernel.solve"), "kind_of", lambda problem: weak)
    file, target = OF_EACH_KIND[name]
    problem = stowplan.read(EXAMPLES / file, target=target)
    return stowplan.solve(problem, **{"time_limit": AMPLE, "candidates": "heuristic", "baseline": baseline, **options})


@pytest.mark.parametrize(("name", "baseline"), NAMED)
def test_of_weak_candidates_the_baseline_is_returned(name: str, baseline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = solve_with_nothing_else(monkeypatch, name, baseline)
    assert (result.baseline_name, result.provenance.candidate) == (baseline, baseline)
    assert result.objective == result.baseline == result.baselines[baseline]
    assert result.is_baseline
    assert result.gain_percent in (0.0, None)
    assert f"gain       none over {baseline}: nothing better was found, and this is its plan" in result.summary()
    assert not [warning for warning in result.warnings if "left out" in warning]


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_also_in_deterministic_runs_and_from_the_cache(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = {"deterministic": True, "cache": tmp_path, "time_limit": 5.0}
    first, second = (solve_with_nothing_else(monkeypatch, name, kind(name).baseline, **options) for _ in range(2))
    assert first.is_baseline
    assert "cached" in second.details
    assert (second.plan, second.is_baseline, second.baseline) == (first.plan, True, first.baseline)


@pytest.mark.parametrize("families", ["heuristic", "exact"])
@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_never_worse_however_short_the_limit(name: str, families: str) -> None:
    """Where the limit is too short for the baseline itself, a warning says so."""
    file, target = OF_EACH_KIND[name]
    result = stowplan.solve(
        stowplan.read(EXAMPLES / file, target=target), candidates=families, time_limit=0.3, workers=1, baseline="prod"
    )
    if result.baseline is None:
        assert [each for each in result.warnings if each.startswith(f"the baseline {result.baseline_name} is left out")]
    else:
        assert result.objective is not None
        assert result.objective <= result.baseline


def test_of_equals_the_baseline_is_kept(solve_fakes: SolveFakes) -> None:
    """Whether it comes first or last."""
    mine = ladder_plan(ladder_problem(), 3, first=1)
    first = solve_fakes("solves", plans={"mine": mine}, baseline="mine")
    last = solve_fakes("solves", "does_nothing", baseline="greedy", kind=maker("makes_the_baseline"))
    for result in (first, last):
        assert result.objective == OPTIMUM
        assert result.plan.fast_uses == mine.fast_uses
        assert result.is_baseline


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_run_waits_for_the_baseline(solve_fakes: SolveFakes, workers: int, deterministic: bool) -> None:
    """Also where its optimum is proven sooner: it says what it gains."""
    options: dict[str, Any] = {"workers": workers, "deterministic": deterministic}
    result = solve_fakes("improves", baseline="prod", gap=0.9, kind=maker("makes_the_baseline"), **options)
    assert (result.objective, result.baseline, result.is_baseline) == (OPTIMUM, OPTIMUM, True)


def test_says_what_is_gained(solve_fakes: SolveFakes) -> None:
    mine = ladder_plan(ladder_problem(), 1)
    result = solve_fakes("solves", "proves", plans={"mine": mine}, baseline="mine")
    assert result.gain_percent == pytest.approx(100 * (ALL_SLOW - 9 - OPTIMUM) / (ALL_SLOW - 9))
    assert not result.is_baseline
    assert "  gain       13.74 % better than mine" in result.summary().splitlines()
    values = result.to_dict()
    assert (values["gain_percent"], values["is_baseline"]) == (result.gain_percent, False)
    assert result.provenance.options["baseline"] == "mine"


def test_without_a_name_there_is_no_line(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("improves")
    assert "gain" not in result.summary()
    assert "baseline" not in result.provenance.options


def test_production_is_xla_where_its_plan_is_at_hand(solve_fakes: SolveFakes) -> None:
    xla = ladder_plan(ladder_problem(), 2)
    assert solve_fakes("improves", plans={"xla": xla}, baseline="prod").baseline_name == "xla"
    assert solve_fakes("improves", plans={"mine": xla}, baseline="prod", kind=maker("solves")).baseline_name == "greedy"
    assert solve_fakes("improves", plans={"prod": xla}, baseline="prod").baseline_name == "prod"


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_baseline_that_is_not_valid_is_left_out_with_a_warning(solve_fakes: SolveFakes, deterministic: bool) -> None:
    too_many = ladder_plan(ladder_problem(), 4)
    result = solve_fakes("improves", plans={"xla": too_many}, baseline="prod", deterministic=deterministic)
    (warning,) = result.warnings
    assert warning.startswith("the baseline xla is left out: its plan is not valid: bad_offset")
    assert (result.objective, result.baseline, result.gain_percent) == (ALL_SLOW - 18, None, None)
    assert "gain" not in result.summary()


def test_as_a_hint_it_is_left_out_too(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("improves", hint=ladder_plan(ladder_problem(), 4), baseline="hint")
    assert result.warnings[0].startswith("the baseline hint is left out: its plan is not valid")
    assert result.objective == ALL_SLOW - 18


@pytest.mark.parametrize(
    ("function", "limit", "why"),
    [("makes_no_baseline", AMPLE, "nothing fits"), ("waits", 0.6, "it was not done within the limit")],
)
def test_a_baseline_that_is_not_made_is_left_out_with_a_warning(
    solve_fakes: SolveFakes, function: str, limit: float, why: str
) -> None:
    result = solve_fakes("improves", baseline="greedy", time_limit=limit, kind=maker(function))
    assert [each for each in result.warnings if "greedy" in each] == [f"the baseline greedy is left out: {why}"]
    assert result.objective is not None


def test_where_no_plan_of_it_exists(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("improves", baseline="greedy", kind={"baselines": (Baseline(name="greedy"),)})
    assert result.warnings == ("the baseline greedy is left out: it has no valid plan for this problem",)


def test_a_problem_without_plans_has_no_baseline_to_miss() -> None:
    problem = stowplan.read(EXAMPLES / "buffers.csv", capacity=1)
    result = stowplan.solve(problem, baseline="prod", time_limit=AMPLE)
    assert result.status == "infeasible"
    assert result.warnings == ()


def test_half_a_greedy_is_no_baseline() -> None:
    file, target = OF_EACH_KIND["memory_mapping"]
    problem = stowplan.read(EXAMPLES / file, target=target)
    recorder = Recorder(looks=0)
    candidates.search(problem, recorder)
    assert [source for _, source in recorder.plans] == ["search"]


def test_a_plan_kept_close_is_no_worse_either_where_any_will_do() -> None:
    problem = stowplan.read(EXAMPLES / "buffers.csv", capacity=10**9)
    best, found = Verification((), 50), Verification((), 61)
    assert cost_limit(kind("packing"), problem, best, None, 0.0).holds(found)
    assert not cost_limit(kind("packing"), problem, best, None, 0.0, 60).holds(found)
