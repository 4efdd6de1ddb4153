"""The complete model against brute force; hints; offsets; limits."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from ortools.sat.python import cp_model

from stowplan.frontends.hlo import read_program
from stowplan.hardware.costs import make_problem
from stowplan.hardware.targets import load_target
from stowplan.models.memory_mapping.accesses import access_sequences
from stowplan.models.memory_mapping.cpsat import MemoryMappingModel, solve
from stowplan.models.memory_mapping.cpsat.decisions import Stay
from stowplan.models.memory_mapping.cpsat.hint import decisions_of
from stowplan.models.memory_mapping.cpsat.offsets import pack
from stowplan.models.memory_mapping.cpsat.variables import BuildStopped, Variables
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Piece, Problem, Stalls, Step, Tensor, Use
from stowplan.models.memory_mapping.verify import verify
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import planned_problems, random_plan, random_problem
from tests.models.memory_mapping.relaxations import relaxation_bound

BOTH: list[Stalls] = ["forbidden", "allowed"]


def copies_take_time(problem: Problem) -> Problem:
    tensors = tuple(
        msgspec.structs.replace(t, copy_in_ps=max(1, t.copy_in_ps), copy_out_ps=max(1, t.copy_out_ps)) for t in problem.tensors
    )
    return msgspec.structs.replace(problem, tensors=tensors)


def assert_optimal(problem: Problem) -> None:
    outcome = solve(problem, time_limit=60)
    verification = verify(problem, outcome.plan)
    assert verification.ok, verification.violations
    assert outcome.status == "optimal"
    assert outcome.plan.objective == outcome.bound == optimum(problem)


@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", range(100))
def test_finds_what_brute_force_finds(stalls: Stalls, seed: int) -> None:
    assert_optimal(random_problem(random.Random(seed), steps=6, tensors=4, stalls=stalls, channels=1))


@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", range(40))
def test_several_channels(stalls: Stalls, seed: int) -> None:
    rng = random.Random(seed)
    assert_optimal(copies_take_time(random_problem(rng, steps=5, tensors=4, stalls=stalls, channels=rng.choice([2, 3]))))


@pytest.mark.parametrize("seed", range(40))
def test_evictions_between_steps(seed: int) -> None:
    assert_optimal(random_problem(random.Random(seed), steps=6, tensors=4, channels=1, evictions="between_steps"))


@pytest.mark.parametrize("seed", [39, 321, 414, 473])
def test_all_uses_in_a_loop_that_writes_an_outside_tensor_go_together(seed: int) -> None:
    """Seeds at which a model without this rule breaks it."""
    assert_optimal(random_problem(random.Random(seed), steps=6, tensors=4, loops=2, channels=1))


@pytest.mark.parametrize("seed", [58, 469, 862, 921])
def test_a_copy_out_right_before_a_slow_read_runs_beside_copies_of_the_same_boundary(seed: int) -> None:
    """Seeds at which only an empty window, which several channels wait for last, is optimal."""
    rng = random.Random(seed)
    assert_optimal(copies_take_time(random_problem(rng, channels=rng.choice([2, 2, 3]), steps=rng.choice([4, 6, 8]))))


@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", [84, 179])
def test_where_sizes_fit_but_offsets_do_not(stalls: Stalls, seed: int) -> None:
    problem = random_problem(random.Random(seed), stalls=stalls, steps=8, tensors=6)
    without = MemoryMappingModel(problem, offsets=False)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(without.model) == cp_model.OPTIMAL
    assert without.extract(solver.value) is None
    assert solver.value(without.objective.expression) < optimum(problem)
    assert_optimal(problem)


def log_of(model: MemoryMappingModel) -> str:
    solver, lines = cp_model.CpSolver(), list[str]()
    solver.parameters.num_workers = 1
    solver.parameters.log_search_progress = True
    solver.parameters.log_to_stdout = False
    solver.log_callback = lines.append
    solver.solve(model.model)
    return "\n".join(lines)


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", range(20))
def test_a_hint_is_complete_and_feasible(offsets: bool, stalls: Stalls, seed: int) -> None:
    """In the words of the solver's own log, the only place where it tells."""
    rng = random.Random(seed)
    problem = copies_take_time(random_problem(rng, steps=rng.choice([8, 12]), stalls=stalls))
    plan = random_plan(problem, rng, attempts=15)
    model = MemoryMappingModel(problem, offsets=offsets)
    is_hinted = model.add_hint(plan)
    assert is_hinted or plan.objective > problem.all_slow_ps
    if is_hinted and len(model.model.proto.variables):
        assert "The solution hint is complete and is feasible." in log_of(model)


def optimum_of(model: MemoryMappingModel) -> tuple[cp_model.CpSolver, int]:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model.model) == cp_model.OPTIMAL
    return solver, int(solver.value(model.objective.expression))


@settings(max_examples=80)
@given(planned_problems())
def test_a_cleared_plan_is_valid_and_no_worse(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    decisions = decisions_of(Variables(problem), plan)
    offsets = pack(problem, decisions.sequences, decisions.stays(), time_limit=10)
    assert offsets is not None
    cleared = decisions.plan(offsets)
    assert verify(problem, cleared).ok, verify(problem, cleared).violations
    assert cleared.objective <= plan.objective


@pytest.mark.parametrize("stalls", BOTH)
def test_a_program_with_nothing_to_decide(stalls: Stalls) -> None:
    problem = Problem(
        name="idle",
        target="none",
        cost_model="test",
        capacity=1,
        stalls=stalls,
        steps=(Step("a", "test", 3, (), (Piece(7, (), ()),)),),
        tensors=(),
    )
    assert_optimal(problem)


def test_a_plan_that_must_wait_is_found_only_where_waiting_is_allowed() -> None:
    def problem(stalls: Stalls) -> Problem:
        return Problem(
            name="wait",
            target="none",
            cost_model="test",
            capacity=1,
            stalls=stalls,
            steps=(Step("a", "test", 1, (Use(0, False, 1),), (Piece(1, (100,), (10,)),)),),
            tensors=(Tensor("t", 1, 20, 20, is_input=True),),
        )

    assert solve(problem("forbidden")).plan.objective == 101
    assert solve(problem("allowed")).plan.objective == 31


def test_the_hint_is_never_lost() -> None:
    rng = random.Random(3)
    problem = random_problem(rng, steps=10, tensors=6)
    plan = solve(problem).plan
    outcome = solve(problem, hint=plan, should_stop=lambda: True)
    assert outcome.plan == plan
    assert outcome.bound <= plan.objective


def test_stopped_at_once_it_still_has_a_plan() -> None:
    problem = random_problem(random.Random(3), steps=10, tensors=6)
    for outcome in (solve(problem, should_stop=lambda: True), solve(problem, time_limit=0.0)):
        assert verify(problem, outcome.plan).ok
        assert outcome.bound <= outcome.plan.objective


def test_plans_and_bounds_are_reported_as_they_improve() -> None:
    problem = random_problem(random.Random(11), steps=10, tensors=6, stalls="allowed")
    plans: list[Plan] = []
    bounds: list[int] = []
    outcome = solve(problem, on_plan=plans.append, on_bound=bounds.append)
    objectives = [plan.objective for plan in plans]
    assert objectives == sorted(set(objectives), reverse=True)
    assert plans[-1] == outcome.plan
    assert all(verify(problem, plan).ok for plan in plans)
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == outcome.bound


def test_equal_calls_give_equal_plans() -> None:
    problem = random_problem(random.Random(5), steps=10, tensors=6, stalls="allowed")
    assert solve(problem, deterministic_limit=1.0) == solve(problem, deterministic_limit=1.0)


def test_refuses_copies_without_duration_on_several_channels() -> None:
    problem = random_problem(random.Random(0), steps=4, channels=2)
    idle = msgspec.structs.replace(problem.tensors[0], copy_in_ps=0)
    with pytest.raises(NotImplementedError, match="take no time"):
        MemoryMappingModel(msgspec.structs.replace(problem, tensors=(idle, *problem.tensors[1:])))


def test_refuses_what_would_take_minutes_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowplan.models.memory_mapping.cpsat.model.MAX_SIZE", 3)
    with pytest.raises(NotImplementedError, match="more than 3"):
        MemoryMappingModel(random_problem(random.Random(1), steps=10, tensors=6, channels=1))


def test_building_stops_when_told() -> None:
    problem = random_problem(random.Random(1), steps=10, tensors=6, channels=1)
    calls = iter([False, False, True])
    with pytest.raises(BuildStopped):
        MemoryMappingModel(problem, should_stop=lambda: next(calls))
    assert next(calls, None) is None


def test_packing_finds_offsets_where_there_are_some() -> None:
    """Three blocks of two in five units: two at a time fit, all three do not."""
    problem = random_problem(random.Random(1), tensors=3, steps=6)
    tensors = tuple(msgspec.structs.replace(problem.tensors[0], size=size, members=()) for size in (2, 2, 2))
    problem = msgspec.structs.replace(problem, tensors=tensors, capacity=5, alignment=1)
    sequences = access_sequences(problem)
    stays = [Stay(0, 0, 3, False, 0, 0), Stay(1, 1, 4, False, 0, 0), Stay(2, 3, 6, False, 0, 0)]
    assert pack(problem, sequences, stays, time_limit=10) is not None
    crowd = [Stay(t, 0, 2, False, 0, 0) for t in range(3)]
    assert pack(problem, sequences, crowd, time_limit=10) is None


@pytest.mark.corpus
@pytest.mark.parametrize("stalls", BOTH)
def test_proves_a_compiled_network(corpus: Path, stalls: Stalls) -> None:
    """AlexNet inference: 65 uses, within a second or so."""
    program = read_program(corpus / "tpu_v4" / "alexnet_inf_b1.hlo.txt.gz")
    problem = make_problem(program, load_target("tpu-v4"), stalls=stalls)
    bound = relaxation_bound(problem)
    outcome = solve(problem, lower_bound_ps=bound, deterministic_limit=30)
    assert outcome.status == "optimal"
    assert verify(problem, outcome.plan).ok
    assert bound <= outcome.plan.objective < problem.all_slow_ps
