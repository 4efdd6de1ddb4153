"""Every plan of every heuristic is valid, runs in the simulator, and is no better than the optimum."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import msgspec
import pytest

import stowplan
from benchmarks.lib.modulo_scheduling import kernels
from benchmarks.lib.modulo_scheduling.baselines import Evolution, random_play
from stowplan.frontends.dfg import lower
from stowplan.hardware.se import compare, streaming_engine
from stowplan.learned_guidance.modulo_scheduling.state import Uniform
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.plan import Plan, encode_objective
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Pin, Problem, Rules, Variable
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling import candidates
from stowplan.portfolio.modulo_scheduling import search as search_module
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.kind import KIND
from stowplan.portfolio.modulo_scheduling.mapper import Mapper
from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts
from stowplan.portfolio.modulo_scheduling.search import MappingSearch, Tally, list_scheduling
from tests.kernel.recorder import Recorder
from tests.models.modulo_scheduling import brute_force
from tests.models.modulo_scheduling.cases import graph, line, linked_problem, random_problem, register_problem, varied_problem
from tests.paths import EXAMPLES


def random_alone(problem: Problem, context: Recorder) -> None:
    tally = candidates.prepare(problem, context, "random")
    if tally is not None and problem.instructions:
        random_play(tally, context.seed(), evaluations(context, problem), context.closed)


def evolution_alone(problem: Problem, context: Recorder) -> None:
    tally = candidates.prepare(problem, context, "evolution")
    if tally is None or not problem.instructions:
        return
    run = Evolution(tally, context.seed())
    while tally.evaluations < evaluations(context, problem) and not context.closed():
        run.generation(context.closed)


def evaluations(context: Recorder, problem: Problem) -> int:
    return int(2_500 * context.seconds()) // len(problem.instructions) + 1


HEURISTICS = [candidates.search, random_alone, evolution_alone]


def any_problem(seed: int) -> Problem:
    return (random_problem, varied_problem, linked_problem, register_problem)[seed % 4](seed)


@cache
def best_objective(seed: int) -> int | None:
    found = brute_force.best(any_problem(seed))
    return None if found is None else encode_objective(*found)


def simulated(problem: Problem, plan: Plan, iterations: int = 5) -> Plan:
    """The plan, after the verifier and the simulator have seen it."""
    found = verify(problem, plan)
    assert found.ok, found.violations
    assert compare(problem, plan, iterations).clocks == (iterations - 1) * plan.ii + plan.makespan
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("function", HEURISTICS)
def test_random_problems(function: Any) -> None:
    """Plans hold, none beats brute force, and infeasibility is claimed only where there is no plan."""
    found = 0
    for seed in range(60):
        problem = any_problem(seed)
        best = best_objective(seed)
        context = Recorder(time_limit=0.02, deterministic=True, seed=seed)
        function(problem, context)
        for plan, _ in context.plans:
            assert verify(problem, plan).ok, (seed, verify(problem, plan).violations)
            assert best is not None
            assert plan.objective >= best, seed
        assert best is None or context.why is None, seed
        found += bool(context.plans)
    assert found > 10


@pytest.mark.slow
def test_the_search_reaches_most_optima() -> None:
    reached = possible = 0
    for seed in range(60):
        problem = any_problem(seed)
        if problem.rules.pass_through:
            continue
        best = best_objective(seed)
        context = Recorder(time_limit=0.2, deterministic=True, seed=seed)
        candidates.search(problem, context)
        possible += best is not None
        reached += best is not None and min((plan.objective for plan, _ in context.plans), default=None) == best
    assert possible >= 10
    assert reached >= 0.9 * possible, (reached, possible)


@pytest.mark.parametrize("function", HEURISTICS)
def test_kernels_run_in_the_simulator(function: Any) -> None:
    for problem in (lower(kernels.distance()), lower(kernels.unrolled(kernels.multiply_add(), 3))):
        context = Recorder(time_limit=2, deterministic=True)
        function(problem, context)
        assert context.plans
        for plan, _ in context.plans:
            simulated(problem, plan)


def test_list_scheduling_of_the_paper_s_kernel() -> None:
    """Seven instructions, one a tile: II 1."""
    problem = lower(kernels.distance())
    tally = Tally(Body(problem))
    assert list_scheduling(tally, 0, lambda: False)
    assert tally.best is not None
    assert tally.best.ii == 1
    assert tally.evaluations >= 1
    again = Tally(Body(problem))
    list_scheduling(again, 0, lambda: False)
    assert again.best == tally.best


def test_recurrences() -> None:
    """A cycle of three instructions of latency 3 with distance 1, and siblings on it."""
    problem = graph("a>b b>c c>a:1 a>d b>d x>a", line(6, latency=3, spoke_depth=16))
    context = Recorder(time_limit=2, deterministic=True)
    candidates.search(problem, context)
    best = min(plan.objective for plan, _ in context.plans)
    for plan, _ in context.plans:
        simulated(problem, plan)
    assert best == cpsat.solve(problem, time_limit=20).bound


def test_pins_are_kept() -> None:
    problem = lower(kernels.distance())
    ids = [instruction.id for instruction in problem.instructions]
    pins = (Pin(instruction=ids[0], tile=9), Pin(instruction=ids[1], time=4), Pin(instruction=ids[2], slot=0))
    pinned = msgspec.structs.replace(problem, pins=pins)
    for function in HEURISTICS:
        context = Recorder(time_limit=2, deterministic=True)
        function(pinned, context)
        for plan, _ in context.plans:
            simulated(pinned, plan)
            assert (plan.tiles[0], plan.times[1], plan.slots[2]) == (9, 4, 0)
    context = Recorder(time_limit=2, deterministic=True)
    candidates.search(pinned, context)
    assert context.plans


def test_delays_are_kept_short() -> None:
    problem = lower(kernels.distance(), rules=Rules(max_delay=1))
    context = Recorder(time_limit=2, deterministic=True)
    candidates.search(problem, context)
    assert context.plans
    for plan, _ in context.plans:
        simulated(problem, plan)
        assert max(plan.delays) <= 1


def test_variables_bring_instructions_together() -> None:
    body = graph("a>b b>c c>d a>e", line(5, latency=1, spoke_depth=8))
    first, second = body.instructions[0], body.instructions[3]
    shared = tuple(
        msgspec.structs.replace(each, writes=("v",)) if each in (first, second) else each for each in body.instructions
    )
    problem = msgspec.structs.replace(body, instructions=shared, variables=(Variable(id="v"),))
    context = Recorder(time_limit=1, deterministic=True)
    candidates.search(problem, context)
    assert context.plans
    assert all(plan.tiles[0] == plan.tiles[3] for plan, _ in context.plans)


def test_removing_leaves_no_trace() -> None:
    """A mapper that puts in and takes out keeps its books."""
    problem = lower(kernels.unrolled(kernels.distance(), 2))
    body = Body(problem)
    tally = Tally(body)
    list_scheduling(tally, 1, lambda: False)
    plan = tally.best
    assert plan is not None
    mapper = Mapper(body, plan.ii, random.Random(0))
    mapper.adopt(plan.tiles, plan.times)
    assert (mapper.tiles, mapper.times) == (list(plan.tiles), list(plan.times))
    mapper.unschedule(range(body.count))
    assert not mapper.time
    assert set(mapper.tile.tolist()) == {-1}
    mapper.adopt(plan.tiles, plan.times)
    assert (mapper.tiles, mapper.times) == (list(plan.tiles), list(plan.times))


def test_the_search_gets_better_than_the_list() -> None:
    problem = lower(kernels.unrolled(kernels.distance(), 3), streaming_engine())
    tally = Tally(Body(problem))
    list_scheduling(tally, 0, lambda: False)
    first = tally.best
    run = MappingSearch(tally, 1)
    for _ in range(150):
        run.step(tally.body.least_ii, lambda: False)
    assert first is not None
    assert tally.best is not None
    assert tally.best.objective < first.objective
    simulated(problem, tally.best)


def test_stops_when_told() -> None:
    problem = lower(kernels.fft(16))
    for function in HEURISTICS:
        context = Recorder(looks=3, time_limit=60)
        function(problem, context)


def test_empty_loop_body() -> None:
    problem = Problem(instructions=(), machine=line(3))
    for function in [*HEURISTICS, candidates.cpsat]:
        context = Recorder(time_limit=1, deterministic=True)
        function(problem, context)
        assert all(verify(problem, plan).ok for plan, _ in context.plans)
    assert KIND.facts(problem, None, None)["instructions"] == 0


def test_obstacles_are_explained() -> None:
    problem = graph("a b c d e f", line(2, spoke_depth=2))
    for function in [*HEURISTICS, candidates.cpsat]:
        context = Recorder(time_limit=1)
        function(problem, context)
        assert not context.plans
        assert context.why is not None
        assert "6 instructions, but 2 tiles have 2 slots each" in context.why["explanation"]


def test_the_example_maps_at_its_least_ii() -> None:
    problem = stowplan.read(EXAMPLES / "fir.dfg.json", "se")
    context = Recorder(time_limit=2, deterministic=True)
    candidates.search(problem, context)
    assert min(plan.ii for plan, _ in context.plans) == Body(problem).least_ii


def test_a_deterministic_search_ends_where_no_attempt_places_anything() -> None:
    # The clock is in no slot 3 of any interval: every attempt ends before its first placement.
    problem = graph("a>b", pins=(Pin(instruction="a", time=1, slot=3),))
    context = Recorder(time_limit=0.02, deterministic=True)
    candidates.search(problem, context)
    assert not context.plans


def even_ring() -> Problem:
    """Without delays a cycle of four leaves even intervals alone, 12 to 20."""
    names = "abcd"
    ring = tuple(
        Instruction(id=name, op="add", operands=(Operand(instruction=names[at - 1], distance=int(at == 0)),))
        for at, name in enumerate(names)
    )
    return Problem(instructions=ring, machine=streaming_engine(), rules=Rules(max_delay=0))


def worst_plan(body: Body) -> Tally:
    """A tally with a plan at the largest interval, that takes no other."""
    tally = Tally(body)
    for seed in range(100):
        mapper = Mapper(body, 20, random.Random(seed))
        if mapper.run([1.0] * 4, 100, lambda: False) and tally.offer(20, mapper.tiles, mapper.times):
            break
    assert tally.best is not None
    assert tally.best.ii == 20
    tally.offer = lambda ii, tiles, times: False  # type: ignore[method-assign]
    return tally


def test_random_play_goes_down_over_intervals_that_are_refuted() -> None:
    body = Body(even_ring())
    assert list(body.iis) == [12, 14, 16, 18, 20]
    tally = worst_plan(body)
    random_play(tally, 0, tally.evaluations + 300, lambda: False)
    assert tally.best is not None
    assert tally.best.ii == 20


def test_nothing_looks_for_intervals_that_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    body = Body(even_ring())
    tally, tried = worst_plan(body), set[int]()
    monkeypatch.setattr(search_module, "_attempt", lambda tally, ii, *rest, **named: tried.add(ii))
    run = MappingSearch(tally, 0)
    for _ in range(300):
        run.step(body.least_ii, lambda: False)
    assert tried == {12, 14, 16, 18}
    rolls = RollOuts(tally, Uniform(), 0)
    assert {rolls._choose_ii(13) for _ in range(300)} == {14, 16, 18, 20}
    tally.best = None
    assert rolls._choose_ii(13) == 14
