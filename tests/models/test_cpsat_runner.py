"""The runner of CP-SAT: what its bounds prove, limits and stops, hints."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.bank_mapping import cpsat as bank_mapping
from stowplan.models.cpsat_runner import add_hint, proven, run
from stowplan.models.packing import cpsat as packing
from stowplan.models.packing.problem import Buffer, Problem
from tests.models.bank_mapping.cases import random_problem
from tests.patience import HANG


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (99.0, 99),
        (99.9999, 99),  # to the nearest: 100
        (100.50001, 100),
        (100.0 - 2**-46, 100),  # an error of scaling
        (-99.9999, -100),
        (-0.4, -1),
        (2.0**49 + 0.75, 2**49),  # to the nearest: one more
        (2.0**53, 2**53 - 8),  # stands for all that round to it, so for 2**53 - 1 too, and errors of scaling
        (2.0**55 + 8, 2**55 - 24),
        (math.inf, None),
        (-math.inf, None),
        (math.nan, None),
        (2.0**62, None),
        (-(2.0**63), None),
    ],
)
def test_bounds_are_rounded_down(bound: float, expected: int | None) -> None:
    assert proven(bound) == expected


@given(st.integers(0, 1 << 57), st.integers(-(1 << 57), 1 << 57), st.integers(1, 10**6))
@example(whole=3, offset=10**16 + 1, divisor=3)
def test_no_scaled_bound_is_rounded_up(whole: int, offset: int, divisor: int) -> None:
    """As CP-SAT makes a bound: what is left of the objective after division, in doubles, times the divisor."""
    reported = divisor * (float(whole) + float(offset) / divisor)
    true = divisor * whole + offset
    if abs(reported) < cpsat_runner.MOST_BOUND:
        found = proven(reported, float(offset))
        assert found is not None
        assert found <= true
        doubt = Fraction(2 * cpsat_runner.ROUNDING) * Fraction(math.ulp(max(abs(reported), abs(offset))))
        assert true - found <= doubt + 1


def hard_model(seed: int = 3) -> cp_model.CpModel:
    """Twenty tasks on five machines: CP-SAT does not prove the optimum in seconds."""
    rng = random.Random(seed)
    model = cp_model.CpModel()
    sizes = [rng.randrange(10_000, 99_999) for _ in range(20)]
    rows = [[model.new_bool_var("") for _ in range(5)] for _ in sizes]
    for row in rows:
        model.add_exactly_one(row)
    squares = []
    for machine in range(5):
        load = sum(size * row[machine] for size, row in zip(sizes, rows, strict=True))
        square = model.new_int_var(0, 1 << 45, "")
        model.add_multiplication_equality(square, [load, load])
        squares.append(square)
    model.minimize(sum(squares))
    return model


def test_a_large_constant_does_not_make_bounds_lie() -> None:
    """The objective's constant is a double of its own: 10**16 + 1 is none."""
    model = cp_model.CpModel()
    x = model.new_int_var(0, 10, "x")
    model.add(2 * x >= 7)
    model.minimize(6 * x + 10**16 + 1)
    bounds: list[int] = []
    found = run(model, time_limit=60, on_bound=bounds.append)
    best = 24 + 10**16 + 1
    assert found.status == "optimal"
    assert found.bound is not None
    assert best - 16 <= found.bound <= best
    assert max(bounds) <= best


def test_the_bound_of_a_small_objective_is_itself() -> None:
    model = cp_model.CpModel()
    x = model.new_int_var(0, 10, "x")
    model.add(2 * x >= 7)
    model.minimize(6 * x + 10**12 + 1)
    bounds: list[int] = []
    values: list[int] = []
    found = run(model, time_limit=60, on_bound=bounds.append, on_solution=lambda value: values.append(value(x)))
    assert (found.status, found.value(x), found.bound) == ("optimal", 4, 24 + 10**12 + 1)
    assert values[-1] == 4
    assert bounds[-1] == found.bound


def test_no_objective_no_bound_and_no_solution() -> None:
    model = cp_model.CpModel()
    x = model.new_int_var(0, 10, "x")
    assert run(model, time_limit=60).bound is None
    assert not model.has_objective()
    model.add(x >= 11)
    found = run(model, time_limit=60)
    assert (found.status, found.is_found, found.bound) == ("infeasible", False, None)


def test_running_out_of_work_is_not_infeasible() -> None:
    found = run(hard_model(), time_limit=60, deterministic_limit=1e-9)
    assert found.status in ("unknown", "feasible")


class Deaf:
    """A solver that looks at no clock: it ends once it is told to."""

    def __init__(self) -> None:
        self.parameters = SimpleNamespace()
        self.wall_time = 0.0
        self.response_proto = SimpleNamespace(deterministic_time=0.0)
        self.told = threading.Event()
        self.value = None

    def stop_search(self) -> None:
        self.told.set()

    def solve(self, model: Any, callback: Any) -> Any:
        assert self.told.wait(60)
        return cp_model.UNKNOWN


@pytest.mark.parametrize(("limit", "stop"), [(0.01, False), (1e6, True)])
def test_a_solver_that_hears_no_clock_is_stopped(monkeypatch: pytest.MonkeyPatch, limit: float, stop: bool) -> None:
    """Without a bound, and without a solution, on the way."""
    monkeypatch.setattr(cp_model, "CpSolver", Deaf)
    found = run(hard_model(), time_limit=limit, should_stop=lambda: stop)
    assert found.status == "unknown"


@pytest.mark.parametrize("kind", ["packing", "bank_mapping"])
def test_all_kinds_stop_without_a_bound_on_the_way(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """These two looked at ``should_stop`` only when a bound came."""
    monkeypatch.setattr(cp_model, "CpSolver", Deaf)
    found: packing.Outcome | bank_mapping.Outcome
    if kind == "packing":
        buffers = tuple(Buffer(id=str(number), lower=number, upper=number + 2, size=5) for number in range(3))
        found = packing.solve(Problem(buffers=buffers), time_limit=1e6, should_stop=lambda: True)
    else:
        found = bank_mapping.solve(random_problem(0), time_limit=1e6, should_stop=lambda: True)
    assert found.status == "unknown"


@pytest.mark.slow
def test_limited_work_repeats_itself() -> None:
    one, two = (run(hard_model(), time_limit=600, deterministic_limit=0.01, seed=7) for _ in range(2))
    assert (one.status, one.bound, one.deterministic) == (two.status, two.bound, two.deterministic)


def test_seeds_of_any_size_are_taken() -> None:
    assert run(cp_model.CpModel(), time_limit=60, seed=-(2**70)).status == "optimal"


def test_the_log_is_handed_on() -> None:
    lines: list[str] = []
    run(hard_model(), time_limit=60, deterministic_limit=1e-9, log=lines.append)
    assert any("CpSolverResponse" in line for line in lines)


def test_an_incomplete_hint_is_an_error() -> None:
    model = cp_model.CpModel()
    x, y = model.new_int_var(0, 9, "x"), model.new_bool_var("y")
    model.new_constant(3)
    with pytest.raises(ValueError, match="hint of 1 values without y"):
        add_hint(model, [(x, 4)])
    add_hint(model, [(x, 4)], complete=False)
    add_hint(model, {x.index: 5, y.index: 1})
    hint = model.proto.solution_hint
    assert dict(zip(hint.vars, hint.values, strict=True)) == {0: 5, 1: 1}


def test_every_kind_uses_the_runner() -> None:
    """No second place that sets limits, watches for stops, or rounds bounds."""
    models = Path(cpsat_runner.__file__).parent
    words = ("CpSolver(", "best_bound_callback", "best_objective_bound", "clear_hints", "stop_search")
    found = {path.relative_to(models).as_posix() for path in models.rglob("*.py") for word in words if word in path.read_text()}
    assert found == {"cpsat_runner.py"}


class _Least:
    """The least of some numbers above a floor; plans are numbers."""

    def __init__(self, *, with_objective: bool = True):
        self.model = cp_model.CpModel()
        self.number = self.model.new_int_var(3, 9, "number")
        self.hints: list[int] = []
        if with_objective:
            self.model.minimize(self.number)

    def add_hint(self, plan: int) -> None:
        self.hints.append(plan)

    def extract(self, value: cpsat_runner.Value) -> int:
        return value(self.number)


def test_plans_and_bounds_are_in_the_terms_of_the_kind() -> None:
    built, plans, bounds = _Least(), list[int](), list[int]()
    outcome = cpsat_runner.find_plan(
        built, objective=lambda value: 10 * value, time_limit=60, hint=7, on_plan=plans.append, on_bound=bounds.append
    )
    assert (outcome.status, outcome.plan, outcome.bound, built.hints, plans[-1]) == ("optimal", 3, 30, [7], 3)
    assert bounds == sorted({*bounds})


def test_a_bound_that_is_known_is_kept() -> None:
    bounds: list[int] = []
    outcome = cpsat_runner.find_plan(_Least(), objective=lambda value: value, least=3, time_limit=60, on_bound=bounds.append)
    assert (outcome.bound, bounds) == (3, [])


def test_without_an_objective_there_is_no_bound() -> None:
    bounds: list[int] = []
    built = _Least(with_objective=False)
    outcome = cpsat_runner.find_plan(built, objective=lambda value: value, time_limit=60, on_bound=bounds.append)
    assert (outcome.status, outcome.bound, bounds) == ("optimal", None, [])


def test_no_plan_no_bound() -> None:
    built = _Least()
    built.model.add(built.number > 9)
    outcome = cpsat_runner.find_plan(built, objective=lambda value: value, least=3, time_limit=60)
    assert (outcome.status, outcome.plan, outcome.bound) == ("infeasible", None, None)


def test_ctrl_c_is_pythons_again_after_a_run() -> None:
    """CP-SAT's own handler would leave the signal to end the process without a word."""
    program = """
import os, signal
from ortools.sat.python import cp_model
from stowplan.models.cpsat_runner import run
signal.signal(signal.SIGINT, signal.default_int_handler)
model = cp_model.CpModel()
model.new_bool_var("x")
run(model, time_limit=60.0)
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done
