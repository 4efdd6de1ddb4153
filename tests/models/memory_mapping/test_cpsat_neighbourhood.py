"""Neighbourhoods: complete hints, valid plans that are no worse, and the optimum where all is free."""

from __future__ import annotations

import random

import msgspec
import pytest
from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.copy_engine import PlanTimeline, ProblemFacts
from stowplan.models.memory_mapping.cpsat.improve import NeighbourhoodModel, improve
from stowplan.models.memory_mapping.cpsat.model import size_estimate
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Evictions, Problem, Stalls
from stowplan.models.memory_mapping.verify import verify
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import random_plan, random_problem
from tests.models.memory_mapping.test_cpsat import copies_take_time

BOTH: list[Stalls] = ["forbidden", "allowed"]


def situation_of(problem: Problem, plan: Plan) -> PlanTimeline:
    timeline = PlanTimeline(ProblemFacts(problem), plan)
    assert timeline.objective == plan.objective
    return timeline


def random_neighbourhood(
    seed: int,
    *,
    stalls: Stalls | None = None,
    frozen: bool = False,
    channels: int = 1,
    evictions: Evictions = "whole_steps",
) -> tuple[Problem, Neighbourhood]:
    rng = random.Random(seed)
    steps, tensors = rng.choice([6, 10, 14]), rng.choice([4, 6, 8])
    problem = random_problem(rng, steps=steps, tensors=tensors, channels=channels, stalls=stalls, evictions=evictions)
    problem = copies_take_time(problem) if channels > 1 else problem
    timeline = situation_of(problem, random_plan(problem, rng, attempts=15))
    start = rng.randrange(problem.horizon)
    end = rng.randint(start + 1, problem.horizon)
    free = [tensor for tensor in range(len(problem.tensors)) if rng.random() < 0.7]
    return problem, Neighbourhood(timeline, free, start, end, detail=rng.choice([0, 0, 5]), frozen=frozen)


def checked(problem: Problem, neighbourhood: Neighbourhood, plan: Plan) -> int:
    """Objective of a plan found in a neighbourhood, which must be valid and leave what is fixed as it was."""
    given = neighbourhood.timeline.plan
    objective = PlanTimeline(neighbourhood.timeline.facts, plan, neighbourhood.timeline).objective
    verification = verify(problem, msgspec.structs.replace(plan, objective=objective))
    assert verification.ok, verification.violations
    uses = [use for step in problem.steps for use in step.uses]
    for use in set(plan.fast_uses) ^ set(given.fast_uses):
        assert uses[use].tensor in neighbourhood.free
    places = {(each.tensor, each.end, each.offset) for each in given.residencies}
    assert all(
        (each.tensor, each.end, each.offset) in places for each in plan.residencies if each.tensor not in neighbourhood.free
    )
    return objective


def solved(model: cp_model.CpModel) -> tuple[cp_model.CpSolver, str]:
    """Solver and its log."""
    solver, lines = cp_model.CpSolver(), list[str]()
    solver.parameters.num_workers = 1
    solver.parameters.log_search_progress = True
    solver.parameters.log_to_stdout = False
    solver.log_callback = lines.append
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver, "\n".join(lines)


@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", range(60))
def test_the_hint_is_complete_and_what_is_found_is_valid_and_no_worse(stalls: Stalls, seed: int) -> None:
    problem, neighbourhood = random_neighbourhood(seed, stalls=stalls)
    if not neighbourhood.free:
        return
    model = NeighbourhoodModel(neighbourhood)
    model.add_hint()
    solver, log = solved(model.model)
    assert "The solution hint is complete and is feasible." in log
    found = checked(problem, neighbourhood, model.extract(solver.value))
    assert found <= neighbourhood.timeline.objective
    if stalls == "allowed":
        # What the model says of the end of the program holds, but for copies that turn out to serve nothing.
        zero = neighbourhood.timeline.moments.reached[neighbourhood.start]
        assert found <= solver.objective_value + zero <= neighbourhood.timeline.objective


@pytest.mark.parametrize("seed", range(40))
def test_evictions_between_steps(seed: int) -> None:
    problem, neighbourhood = random_neighbourhood(seed, stalls="allowed", frozen=seed % 4 == 0, evictions="between_steps")
    outcome = improve(neighbourhood, time_limit=10)
    if outcome.plan is not None:
        assert checked(problem, neighbourhood, outcome.plan) <= neighbourhood.timeline.objective


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("seed", range(25))
def test_a_frozen_clock_gives_valid_plans(channels: int, seed: int) -> None:
    problem, neighbourhood = random_neighbourhood(seed, stalls="allowed", frozen=True, channels=channels)
    outcome = improve(neighbourhood, time_limit=10)
    assert outcome.status in ("optimal", "infeasible", "empty")
    assert (outcome.plan is not None) == (outcome.status == "optimal")
    if outcome.plan is not None:
        checked(problem, neighbourhood, outcome.plan)


@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", range(25))
def test_with_all_free_it_is_the_whole_problem(stalls: Stalls, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowplan.models.memory_mapping.cpsat.variables.LEAST_REACH", 100)
    rng = random.Random(seed)
    problem = random_problem(rng, steps=6, tensors=4, stalls=stalls, channels=1)
    nothing = Plan(problem=problem.digest, objective=problem.all_slow_ps)
    for plan in (random_plan(problem, rng, attempts=8), nothing):
        timeline = situation_of(problem, plan)
        neighbourhood = Neighbourhood(timeline, range(4), 0, problem.horizon, detail=100)
        # A tensor that fast memory never helps is left where it is.
        if all(residency.tensor in neighbourhood.free for residency in plan.residencies):
            break
    outcome = improve(neighbourhood, time_limit=30)
    best = timeline.objective if outcome.plan is None else checked(problem, neighbourhood, outcome.plan)
    assert best == optimum(problem)


def test_the_size_depends_on_what_is_free_and_not_on_the_program() -> None:
    sizes = []
    for copies in (1, 40):
        base = random_problem(random.Random(5), steps=12, tensors=6, loops=0, channels=1, stalls="allowed")
        tensors = tuple(msgspec.structs.replace(t, is_input=True) for t in base.tensors)
        idle = msgspec.structs.replace(
            base.steps[0], uses=(), table=None, pieces=(base.steps[0].pieces or base.steps[1].pieces)[:1]
        )
        idle = msgspec.structs.replace(idle, pieces=(msgspec.structs.replace(idle.pieces[0], slow_ps=(), fast_ps=()),))
        problem = msgspec.structs.replace(
            base, tensors=tensors, steps=(*base.steps[:6], *[idle] * 50 * copies, *base.steps[6:])
        )
        plan = Plan(problem=problem.digest, objective=problem.all_slow_ps)
        neighbourhood = Neighbourhood(situation_of(problem, plan), range(6), 0, problem.horizon)
        sizes.append((len(neighbourhood.axis), size_estimate(neighbourhood.sequences)))
    assert sizes[0] == sizes[1]
    assert sizes[0][1] > 0


def test_the_window_moves_out_of_loops() -> None:
    seeds = (seed for seed in range(100) if random_problem(random.Random(seed), steps=10, loops=2, channels=1).loops)
    for seed in [next(seeds) for _ in range(10)]:
        problem = random_problem(random.Random(seed), steps=10, tensors=4, loops=2, channels=1)
        plan = Plan(problem=problem.digest, objective=problem.all_slow_ps)
        for start in range(problem.horizon):
            neighbourhood = Neighbourhood(situation_of(problem, plan), range(4), start, start + 1)
            assert neighbourhood.start <= start < neighbourhood.end
            for border in (neighbourhood.start, neighbourhood.end):
                assert not any(loop.start < border < loop.end for loop in problem.loops)


def test_it_stops_when_told() -> None:
    problem, neighbourhood = random_neighbourhood(3, stalls="allowed")
    outcome = improve(neighbourhood, time_limit=10, should_stop=lambda: True)
    if outcome.plan is not None:
        assert checked(problem, neighbourhood, outcome.plan) <= neighbourhood.timeline.objective


def test_equal_calls_give_equal_plans() -> None:
    for seed in range(10):
        first, second = (improve(random_neighbourhood(seed)[1], time_limit=60, deterministic_limit=0.1) for _ in range(2))
        assert (first.status, first.plan, first.deterministic) == (second.status, second.plan, second.deterministic)
