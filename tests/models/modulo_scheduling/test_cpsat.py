"""The exact search: known optima, hints, limits, and what it says of problems without a plan."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from ortools.sat.python import cp_model

from benchmarks.lib.modulo_scheduling import kernels
from stowplan.frontends.dfg import lower
from stowplan.hardware.se import grid, streaming_engine
from stowplan.models.cpsat_runner import Budget
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.cpsat.model import ModuloModel, latest_time
from stowplan.models.modulo_scheduling.cpsat.questions import explain
from stowplan.models.modulo_scheduling.cpsat.solve import _Search
from stowplan.models.modulo_scheduling.plan import Plan, decode_objective
from stowplan.models.modulo_scheduling.problem import Pin, Problem, Rules
from stowplan.models.modulo_scheduling.structure import Structure, symmetries
from stowplan.models.modulo_scheduling.verify import verify
from tests.models.modulo_scheduling.cases import graph, line, linked_problem, random_problem, register_problem, varied_problem
from tests.patience import FOREVER, no_hang

#: The seven instructions of the paper's figure 1.
PAPER = "a b c a>d b>e d>f e>f c>g f>g"


def optimum(problem: Problem) -> tuple[int, int]:
    outcome = cpsat.solve(problem, time_limit=30)
    assert outcome.status == "optimal"
    assert outcome.plan is not None
    assert verify(problem, outcome.plan).ok
    return decode_objective(outcome.plan.objective)


def test_paper_kernels() -> None:
    assert optimum(graph(PAPER, streaming_engine())) == (1, 16)
    assert optimum(lower(kernels.distance())) == (1, 15)
    assert optimum(lower(kernels.vector_add())) == (1, 3)
    assert optimum(lower(kernels.multiply_add())) == (1, 3)
    assert optimum(lower(kernels.unrolled(kernels.distance(), 2))) == (1, 15)


def test_empty() -> None:
    assert optimum(Problem(instructions=(), machine=line())) == (1, 0)


def test_other_machines() -> None:
    torus = grid(2, 2, wraps=True)
    assert optimum(graph("a>b b>c c>d d>a:1", torus, rules=Rules(siblings="none"))) == (4, 4)
    assert optimum(graph(PAPER, torus, rules=Rules(siblings="none", starts="flow"))) == (2, 4)


def test_a_complete_hint_is_taken() -> None:
    for seed in (3, 5, 11, 22, 30, *range(40, 70)):
        problem = random_problem(seed) if seed < 40 else (varied_problem, linked_problem, register_problem)[seed % 3](seed)
        plan = cpsat.solve(problem, time_limit=10).plan
        if plan is None:
            continue
        structure = Structure(problem)
        everything = range(structure.count)
        model = ModuloModel(
            structure,
            plan.ii,
            whole=True,
            last_time=latest_time(structure, plan.ii, everything),
            links=problem.rules.pass_through,
            makespan=(0, plan.makespan),
        )
        model.add_hint(plan)
        lines: list[str] = []
        solver = cp_model.CpSolver()
        solver.parameters.log_search_progress = True
        solver.parameters.log_to_stdout = False
        solver.parameters.num_workers = 1
        solver.log_callback = lines.append
        solver.solve(model.model)
        assert any("hint is complete and is feasible" in line for line in lines), seed


def test_hints_start_the_search() -> None:
    problem = graph(PAPER, streaming_engine())
    best = cpsat.solve(problem, time_limit=20).plan
    seen: list[Plan] = []
    outcome = cpsat.solve(problem, time_limit=20, hint=best, on_plan=seen.append)
    assert outcome.status == "optimal"
    assert seen == [best]


def test_pins_hold() -> None:
    pins = (Pin(instruction="a", tile=3), Pin(instruction="g", tile=7, time=20), Pin(instruction="c", slot=1))
    problem = graph(PAPER, streaming_engine(), pins=pins)
    outcome = cpsat.solve(problem, time_limit=30)
    assert outcome.plan is not None
    assert verify(problem, outcome.plan).ok
    assert outcome.plan.tiles[problem.number["a"]] == 3
    assert outcome.plan.times[problem.number["g"]] == 20
    assert outcome.plan.slots[problem.number["c"]] == 1


def test_pass_through_goes_further() -> None:
    pins = (Pin(instruction="a", tile=0), Pin(instruction="b", tile=15))
    far = graph("a>b", streaming_engine(), pins=pins)
    refused = cpsat.solve(far, time_limit=20)
    assert refused.status == "infeasible"
    assert "values go no further than the links reach" in (refused.reason or "")
    assert optimum(msgspec.structs.replace(far, rules=Rules(pass_through=True))) == (1, 21)


def test_reasons() -> None:
    # Four siblings on four tiles, each a producer of all others: the ends of the row do not reach each other.
    outcome = cpsat.solve(graph("a>b a>c a>d a>e b>c b>d b>e c>d c>e d>e"), time_limit=20)
    assert outcome.status == "infeasible"
    assert "siblings" in (outcome.reason or "")
    assert (
        cpsat.solve(graph("a b c d e", line(2)), time_limit=20).reason == "5 flows need starts on different tiles, there are 2"
    )


def test_time_that_is_over_is_no_verdict_on_the_rules() -> None:
    structure = Structure(graph("a>b a>c a>d a>e", line(4)))
    full = explain(structure, 4, Budget(1e6, None, None), 0)
    assert "the rule that" in full
    assert "the time was over" not in full
    spent = explain(structure, 4, Budget(1e6, None, lambda: True), 0)
    assert "no single rule" not in spent
    assert spent.endswith("; the time was over before it was known of 5 of 5 rules whether they are to blame")
    # With the time for the first rule only.
    ticks = itertools.count()
    cut = explain(structure, 4, Budget(1e6, None, lambda: next(ticks) > 0), 0)
    assert "the time was over before it was known of " in cut
    assert "no single rule" not in cut


def test_bounds_and_plans_improve() -> None:
    problem = lower(kernels.unrolled(kernels.distance(), 3))
    plans: list[int] = []
    bounds: list[int] = []
    outcome = cpsat.solve(
        problem, time_limit=30, on_plan=lambda plan: plans.append(plan.objective), on_bound=lambda bound: bounds.append(bound)
    )
    assert plans == sorted(plans, reverse=True)
    assert bounds == sorted(bounds)
    assert outcome.bound is not None
    assert outcome.plan is not None
    assert max(bounds) <= outcome.bound <= outcome.plan.objective == plans[-1]


def test_deterministic() -> None:
    problem = lower(kernels.fft(8), rules=Rules(siblings="consumers_and_producers"))
    first, second = (cpsat.solve(problem, time_limit=300, deterministic_limit=0.15, seed=4) for _ in range(2))
    assert first == second


def test_stops_when_told() -> None:
    problem = lower(kernels.fft(16, inputs=True))
    with no_hang():
        outcome = cpsat.solve(problem, time_limit=FOREVER, should_stop=lambda: True)
    assert outcome.status in ("unknown", "feasible")


@pytest.mark.parametrize("limit", [0.01, 1.0])
def test_out_of_time_is_not_infeasible(limit: float) -> None:
    outcome = cpsat.solve(lower(kernels.fft(32)), time_limit=limit)
    assert outcome.status in ("unknown", "feasible")
    assert outcome.bound is not None


def test_symmetries() -> None:
    assert len(symmetries(graph("a>b"))) == 2
    assert len(symmetries(graph("a>b", grid(3, 3, wraps=True)))) == 72
    assert len(symmetries(graph("a>b", grid(2, 3)))) == 4
    assert len(symmetries(graph("a>b", pins=(Pin(instruction="a", tile=0),)))) == 1


def test_an_interval_that_limits_refute_says_nothing_of_smaller_ones() -> None:
    # Two instructions that wait for each other: with delays of 0 an II of 2 fits exactly, and 3 is too long.
    problem = graph("a>b b>a:1", line(1, latency=1), rules=Rules(max_delay=0, siblings="none"))
    search = _Search(problem, None, {"time_limit": 20.0})
    assert search.least == 2
    assert search.attempt(3, 0.5) == "infeasible"
    assert search.least == 2
    assert search.attempt(2, 0.5) == "feasible"
    assert optimum(problem) == (2, 2)
