"""``solve``: its arguments, and the contract of its result field by field."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest

import stowplan
from stowplan.errors import InputError, UsageError
from stowplan.kernel.context import Options
from stowplan.models.memory_mapping import plan as plans
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.batch.records import Settings
from stowplan.portfolio.batch.run import run_batch
from stowplan.portfolio.memory_mapping.kind import KIND
from stowplan.result import Result, Status, StopReason
from tests.kernel.conftest import AMPLE, SolveFakes
from tests.kernel.fakes import ALL_SLOW, FLOOR, OPTIMUM, WAITS_FOR_GREEDY, ladder_plan, ladder_problem
from tests.models.memory_mapping.cases import random_plan, random_problem
from tests.paths import EXAMPLES

BUFFERS = EXAMPLES / "buffers.csv"

# --------------------------------------------------------------------------------------------------------- its arguments


def test_every_option_is_passed_on() -> None:
    """An option that ``solve`` takes and does not pass on would silently have its default in the run."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(stowplan.solve))) if isinstance(node, ast.Call)]
    (call,) = (node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "Options")
    assert not call.args
    passed = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert passed == {name: name for name in Options.__struct_fields__}


def test_every_option_has_the_default_of_the_options() -> None:
    parameters = inspect.signature(stowplan.solve).parameters
    assert {name: parameters[name].default for name in Options.__struct_fields__} == msgspec.structs.asdict(Options())


# ---------------------------------------------------------------------------------------------------------- the contract


def test_the_result_field_by_field(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    problem = ladder_problem()
    mine = ladder_plan(problem, 1)
    result = solve_fakes("improves", "solves", "proves", plans={"mine": mine}, baseline="mine", seed=5, gap=0.001, workers=3)
    assert result.kind == "memory_mapping"
    assert msgspec.structs.replace(result.plan, program="", target="", names={}) == ladder_plan(problem, 3)
    assert (result.plan.program, result.plan.target) == ("ladder", "none")
    assert result.plan.names == {0: "t0", 1: "t1", 2: "t2"}
    assert (result.objective, result.bound, result.gap, result.unit.name) == (OPTIMUM, OPTIMUM, 0.0, "ps")
    assert (result.status, result.stop_reason, result.verified) == ("optimal", "optimal", True)
    assert (result.baseline_name, result.baseline) == ("mine", ALL_SLOW - 9)
    assert result.baselines == {"all_slow": ALL_SLOW, "mine": ALL_SLOW - 9}
    assert result.speedup == pytest.approx((ALL_SLOW - 9) / OPTIMUM)
    assert result.speedup_over("all_slow") == pytest.approx(ALL_SLOW / OPTIMUM)
    assert result.speedup_over("nothing of the sort") is None
    assert result.seconds > 0
    assert result.warnings == ()
    assert [report.name for report in result.candidates] == ["improves", "solves", "proves"]

    made = result.provenance
    assert (made.candidate, made.seed, made.deterministic, made.checkpoint) == ("solves", 5, False, None)
    assert (made.program, made.target, made.cost_model) == ("ladder", "none", "none")
    assert made.problem_digest == problem.digest == result.plan.problem
    assert made.options == {
        "time_limit": AMPLE,
        "candidates": ["heuristic", "learned", "exact"],
        "workers": 3,
        "gap": 0.001,
        "baseline": "mine",
    }
    assert made.versions["stowplan"] == stowplan.__version__
    assert {"python", "ortools", "highspy", "numpy"} <= made.versions.keys()

    facts = result.details
    assert (facts["steps"], facts["tensors"], facts["uses"], facts["capacity"], facts["all_fast"]) == (5, 4, 4, 3, FLOOR)
    assert facts["normalised_return"] == pytest.approx((ALL_SLOW - OPTIMUM) / (ALL_SLOW - FLOOR))
    assert (facts["stall"], facts["fast_traffic"], facts["residencies"], facts["copies"]) == (0, 0.75, 3, 0)
    assert facts["preloads"] == ["t0", "t1", "t2"]

    result.plan.save(tmp_path / "plan.json")
    assert plans.Plan.load(tmp_path / "plan.json") == result.plan
    values = json.loads(json.dumps(result.to_dict("plan.json")))
    assert values["plan"] == "plan.json"
    for name in ("objective", "bound", "gap", "status", "stop_reason", "verified", "baseline", "speedup"):
        assert values[name] == getattr(result, name)
    assert values["history"][0] == {
        "seconds": values["history"][0]["seconds"],
        "source": "floor",
        "objective": None,
        "bound": FLOOR,
    }
    assert values["provenance"]["seed"] == 5


def check_contract(problem: Problem, result: Result) -> None:
    """What holds of the result of any problem of which something is known to be feasible."""
    assert result.plan is not None
    found = verify(problem, result.plan)
    assert found.ok, found.violations
    assert result.verified
    assert found.objective == result.objective == result.plan.objective
    assert result.bound is not None
    assert result.bound <= result.objective
    assert result.gap is not None
    assert 0 <= result.gap <= 1
    assert result.status in ("optimal", "feasible")
    assert (result.status == "optimal") == (result.bound == result.objective)
    assert result.status in get_args(Status)
    assert result.stop_reason in get_args(StopReason)
    assert result.objective <= min(result.baselines.values())
    assert result.baselines["all_slow"] == problem.all_slow_ps
    for name in result.baselines:
        speedup = result.speedup_over(name)
        assert speedup is None or speedup >= 1
    assert result.history[-1].objective == result.objective
    assert result.history[-1].bound == result.bound
    objectives = [entry.objective for entry in result.history if entry.objective is not None]
    assert objectives == sorted(objectives, reverse=True)
    bounds = [entry.bound for entry in result.history if entry.bound is not None]
    assert bounds == sorted(bounds)
    assert result.provenance.candidate in {entry.source for entry in result.history}
    # A limit may be over before anything has come from a worker.
    assert all(warning.endswith("no report within the limit") for warning in result.warnings), result.warnings
    assert not [report for report in result.candidates if report.outcome in ("failed", "rejected")], result.candidates


@pytest.mark.parametrize("seed", range(6))
def test_the_contract_on_random_problems_with_the_real_candidates(seed: int) -> None:
    rng = random.Random(f"contract {seed}")
    problem = random_problem(rng, channels=1)
    given = {"given": random_plan(problem, rng), "other": random_plan(problem, rng)}
    result = stowplan.solve(problem, time_limit=30, plans=given)
    check_contract(problem, result)
    assert {"given", "other"} <= result.baselines.keys()
    # Problems this small are closed.
    assert result.status == "optimal"


def test_the_bound_is_kept_without_heuristics() -> None:
    problem = random_problem(random.Random(11), steps=8, tensors=4, channels=1)
    result = stowplan.solve(problem, time_limit=20, candidates="exact")
    check_contract(problem, result)
    assert result.status == "optimal"


def _empty(**changes: object) -> Problem:
    return msgspec.structs.replace(
        Problem(name="empty", target="none", cost_model="none", capacity=1, steps=(), tensors=()), **changes
    )


def test_a_problem_with_nothing_in_it() -> None:
    problem = _empty()
    result = stowplan.solve(problem, time_limit=20)
    check_contract(problem, result)
    assert (result.objective, result.status, result.gap, result.speedup_over("all_slow")) == (0, "optimal", 0.0, 1.0)
    assert result.summary()


def test_steps_without_uses() -> None:
    steps = ladder_problem().steps[:1] * 3
    problem = _empty(steps=steps)
    result = stowplan.solve(problem, time_limit=20)
    check_contract(problem, result)
    assert (result.objective, result.status) == (300, "optimal")


@pytest.mark.parametrize("what", ["empty", "no uses", "no reads"])
def test_real_candidates_bear_a_problem_with_nothing_to_decide(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound that leaves everything open, so that all of them run."""
    problem = _empty(steps=() if what == "empty" else ladder_problem().steps[:1])
    if what == "no reads":
        problem = msgspec.structs.replace(problem, tensors=ladder_problem().tensors)
    module = importlib.import_module("stowplan.kernel.solve")
    monkeypatch.setattr(module, "kind_of", lambda problem: replace(KIND, bound=lambda problem: -1))
    check_contract(problem, stowplan.solve(problem, time_limit=60))


@pytest.mark.parametrize("limit", [0.05, 0.2])
def test_a_tiny_limit(limit: float) -> None:
    problem = random_problem(random.Random(3), steps=10, tensors=6)
    result = stowplan.solve(problem, time_limit=limit)
    check_contract(problem, result)


# ---------------------------------------------------------------------------------------------------------- plans at hand


def test_never_worse_than_a_plan_at_hand(solve_fakes: SolveFakes) -> None:
    best = ladder_plan(ladder_problem(), 3)
    result = solve_fakes("improves", plans={"best": best})
    assert (result.objective, result.provenance.candidate, result.speedup_over("best")) == (OPTIMUM, "best", 1.0)
    assert result.baseline_name == "greedy"
    assert (result.baseline, result.speedup) == (None, None)  # the greedy was not asked for


def test_a_plan_at_hand_that_is_not_valid_is_bad_input(solve_fakes: SolveFakes) -> None:
    with pytest.raises(InputError, match="'mine' is not valid for this problem: bad_offset"):
        solve_fakes("improves", plans={"mine": ladder_plan(ladder_problem(), 4)})


def test_a_plan_at_hand_for_another_problem_is_bad_input(solve_fakes: SolveFakes) -> None:
    other = msgspec.structs.replace(ladder_plan(ladder_problem(), 1), problem="0" * 64)
    with pytest.raises(InputError, match="wrong_problem"):
        solve_fakes("improves", plans={"mine": other})


@pytest.mark.parametrize(
    ("plans_at_hand", "message"),
    [
        ({"mine": "plan.json"}, "found a str as the plan 'mine', expected a plan of memory_mapping"),
        ({"mine": ladder_problem()}, "found a Problem as the plan 'mine'"),
        ({"all_slow": ladder_plan(ladder_problem(), 1)}, "'all_slow', which is the name of one of the package's own"),
        ({"greedy": ladder_plan(ladder_problem(), 1)}, "'greedy', which is"),
    ],
)
def test_plans_at_hand_that_are_none(solve_fakes: SolveFakes, plans_at_hand: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        solve_fakes("improves", plans=plans_at_hand, kind=WAITS_FOR_GREEDY)


# ---------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": 0}, "found a time limit of 0 s"),
        ({"time_limit": -1.5}, "found a time limit of -1.5 s"),
        ({"deterministic": True, "work_limit": 0}, "found a work limit of 0"),
        ({"work_limit": 1.0}, "found a work limit, which is for deterministic runs"),
        ({"time_limit": 10**400}, "found a time limit of 1000"),
        ({"time_limit": float("nan")}, "found a time limit of nan s"),
        ({"workers": 0}, "found 0 workers"),
        ({"gap": -0.1}, "found a gap of -0.1"),
        ({"gap": 1}, "found a gap of 1"),
        ({"gap": float("nan")}, "found a gap of nan"),
        ({"seed": -1}, "found seed -1"),
        ({"seed": 2**31}, "found seed 2147483648"),
        (
            {"candidates": "heuristics"},
            "found candidate 'heuristics', expected some of exact, heuristic, improves, learned, solves",
        ),
        ({"candidates": ["exact", "sovles"]}, "found candidate 'sovles'"),
        ({"candidates": ""}, "found candidate ''"),
        (
            {"baseline": "xla", "plans": {"mine": ladder_plan(ladder_problem(), 1)}},
            "found baseline 'xla', expected one of all_slow, mine, greedy, prod",
        ),
    ],
)
def test_options_out_of_range(solve_fakes: SolveFakes, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        solve_fakes("improves", "solves", **options)


#: What the library is given, in place of what it takes; and where that is said.
WRONG_TYPES = [
    *[("time_limit", value, "time limit") for value in ("5", None, True, math.nan, math.inf, -math.inf, 1j, [5])],
    *[("seed", value, "seed") for value in (1.5, 1.0, "1", None, True, math.nan)],
    *[("workers", value, "workers") for value in (1.5, 2.0, "2", None, True, math.inf)],
    *[("gap", value, "gap") for value in ("0.1", None, True, math.inf, (0.1,))],
    *[("deterministic", value, "deterministic") for value in ("no", "yes", 0, 1, None)],
    *[("candidates", value, "candidate") for value in (3, None, [3], ["exact", None], b"exact")],
    *[("plans", value, "plans") for value in ("plan.json", ["plan.json"], {3: ladder_plan(ladder_problem(), 1)})],
    *[("baseline", value, "baseline") for value in (3, ["greedy"], True)],
    ("on_progress", "print", "on_progress"),
    ("cancel", True, "cancel"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG_TYPES)
def test_values_of_wrong_types_are_refused(solve_fakes: SolveFakes, name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=f"^found .*{words}.*, expected "):
        solve_fakes("improves", **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *[each for each in WRONG_TYPES if each[0] not in ("plans", "on_progress", "cancel")],
        *[("capacity", value, "capacity") for value in (1.5, "5", True, math.nan)],
        *[(name, 3, name) for name in ("target", "cost_model", "stalls", "precision")],
        ("rules", "max_delay=1", "rules"),
        ("rules", (3,), "rules"),
    ],
)
def test_so_they_are_in_a_batch(name: str, value: object, words: str, tmp_path: Path) -> None:
    settings = Settings(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"^found .*{words}.*, expected "):
        list(run_batch([], tmp_path / "out", settings))
    assert not (tmp_path / "out").exists()


def test_a_capacity_may_be_text_as_on_the_command_line() -> None:
    for text, capacity in (("5", 5), ("20KB", 20_000), ("1.5 MiB", 3 << 19)):
        assert stowplan.read(BUFFERS, capacity=text).capacity == capacity
    with pytest.raises(UsageError, match=r"^found a capacity of 'much', expected bytes, or a number with kB"):
        stowplan.read(BUFFERS, capacity="much")


@pytest.mark.parametrize("capacity", [1.5, True, math.nan])
def test_a_capacity_is_a_whole_number(capacity: object) -> None:
    with pytest.raises(UsageError, match=r"^found a capacity of .* bytes, expected a whole number"):
        stowplan.read(BUFFERS, capacity=capacity)


def test_numbers_of_other_libraries_are_numbers(solve_fakes: SolveFakes) -> None:
    result = solve_fakes("improves", seed=np.int64(5), workers=np.int8(2), gap=np.float32(0), time_limit=np.float64(AMPLE))
    assert json.loads(json.dumps(result.to_dict()))["provenance"]["seed"] == 5


# ---------------------------------------------------------------------------------------------------------- notes


def test_notes_of_the_front_end_are_warnings(solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch) -> None:
    def solved(notes: tuple[str, ...]) -> Result:
        problem = msgspec.structs.replace(ladder_problem(), notes=notes)
        monkeypatch.setattr("tests.kernel.conftest.ladder_problem", lambda: problem)
        return solve_fakes("improves")

    told = ("trip count of while.1 unknown, taken as 1", "a branch")
    result = solved(told)
    assert result.warnings == told
    assert all(f"warning    {note}" in result.summary() for note in told)
    result = solved(tuple(f"note {n // 2}" for n in range(100)))
    assert len(result.warnings) == 20
    assert (result.warnings[0], result.warnings[-1]) == ("note 0", "and 31 more")


@pytest.mark.parametrize("problem", ["problem.json", None, 3])
def test_what_is_no_problem(problem: object) -> None:
    with pytest.raises(UsageError, match=r"expected a problem: see stowplan\.read"):
        stowplan.solve(problem)


@pytest.mark.parametrize(
    ("candidates", "run"),
    [
        ("improves", ["improves"]),
        ("solves, improves", ["improves", "solves"]),
        (["solves"], ["solves"]),
        ("heuristic", ["improves", "solves"]),
        ("learned,exact", []),
        ((), []),
    ],
)
def test_candidates_by_name_and_family(solve_fakes: SolveFakes, candidates: object, run: list[str]) -> None:
    result = solve_fakes("improves", "solves", candidates=candidates)
    assert [report.name for report in result.candidates] == run
    assert result.objective is not None
    assert result.stop_reason == "candidates_done"
    if not run:
        assert (result.objective, result.provenance.candidate) == (ALL_SLOW, "all_slow")


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_any_number_of_workers(solve_fakes: SolveFakes, workers: int) -> None:
    result = solve_fakes("improves", "solves", "proves", workers=workers)
    assert (result.objective, result.status) == (OPTIMUM, "optimal")
