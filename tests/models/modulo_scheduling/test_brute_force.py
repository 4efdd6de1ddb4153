"""Exact models and bounds against every plan there is, on hundreds of tiny problems."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from stowplan.models.modulo_scheduling import cpsat, milp
from stowplan.models.modulo_scheduling.bounds import find_obstacle, objective_bound
from stowplan.models.modulo_scheduling.plan import Plan, decode_objective, encode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.verify import verify
from tests.models.modulo_scheduling.brute_force import Reference, best
from tests.models.modulo_scheduling.cases import linked_problem, random_problem, register_problem, varied_problem

#: Problems in one test, so that a failure names few seeds.
BATCH = 50


#: Seeds of each kind of problem.
SEEDS = ((random_problem, 300), (varied_problem, 150), (linked_problem, 250), (register_problem, 400))


@pytest.mark.parametrize(
    ("make", "first"),
    [
        pytest.param(make, first, marks=pytest.mark.slow if first >= 2 * BATCH else ())
        for make, most in SEEDS
        for first in range(0, most, BATCH)
    ],
)
def test_best_plans_and_proofs(make: Callable[..., Problem], first: int) -> None:
    for seed in range(first, first + BATCH):
        problem = make(seed, most=3)
        expected = best(problem)
        outcome = cpsat.solve(problem, time_limit=30)
        if expected is None:
            assert outcome.status == "infeasible", seed
            assert outcome.plan is None
            assert outcome.reason, seed
            continue
        assert find_obstacle(problem) is None, seed
        assert objective_bound(problem) <= encode_objective(*expected), seed
        assert outcome.status == "optimal", seed
        assert outcome.plan is not None
        assert decode_objective(outcome.plan.objective) == expected, seed
        assert outcome.bound == outcome.plan.objective
        assert verify(problem, outcome.plan).ok, (seed, verify(problem, outcome.plan).violations)


@pytest.mark.parametrize("make", [random_problem, varied_problem, linked_problem])
def test_milp_finds_the_same(make: Callable[..., Problem]) -> None:
    done = 0
    for seed in range(60):
        problem = make(seed, most=3)
        if problem.rules.pass_through:
            continue
        expected = best(problem)
        outcome = milp.solve(problem, time_limit=30)
        assert (None if outcome.plan is None else decode_objective(outcome.plan.objective)) == expected, seed
        assert outcome.status == ("infeasible" if expected is None else "optimal"), seed
        assert outcome.plan is None or verify(problem, outcome.plan).ok, seed
        done += 1
    assert done > 30


@pytest.mark.parametrize("make", [random_problem, varied_problem, linked_problem, register_problem])
def test_verifier_agrees_with_all_places(make: Callable[..., Problem]) -> None:
    """Random places, valid or not: the verifier finds fault exactly where the reference does."""
    agreed = {True: 0, False: 0}
    for seed in range(400):
        problem = make(seed, most=3)
        reference, chance = Reference(problem), random.Random(seed)
        ii = chance.randint(1, problem.machine.spoke_depth)
        valid = next(reference.plans(ii, 8 + max(reference.latency)), None)
        for _ in range(6):
            tiles = tuple(chance.choice(list(reference.tiles)) for _ in problem.instructions)
            times = [chance.randint(0, 8) for _ in tiles]
            if valid is not None and chance.random() < 0.7:
                # Near a valid plan, or it.
                tiles, times = valid[0], list(valid[1])
                if chance.random() < 0.6:
                    times[chance.randrange(len(times))] += chance.choice([-1, 1, ii])
            if min(times) < 0:
                continue
            ok = reference.tiles_ok(tiles) and all(reference.times_ok(tiles, times[: n + 1], ii) for n in range(len(times)))
            ok = ok and reference.messages_ok(tiles, times, ii) and reference.registers_ok(tiles, times, ii)
            routes = reference.routes(tiles, times, ii) if ok else None
            found = verify(problem, _plan(reference, ii, tiles, times, routes))
            assert found.ok == (ok and routes is not None), (seed, found.violations)
            agreed[found.ok] += 1
    assert min(agreed.values()) > 200


def _plan(
    reference: Reference, ii: int, tiles: tuple[int, ...], times: list[int], routes: list[tuple[int, ...]] | None
) -> Plan:
    """A plan of these places that hides nothing: right in all that follows from them."""
    problem = reference.problem
    links, delays = [], []
    for at, edge in enumerate(problem.edges):
        ways = reference.ways[tiles[edge.source], tiles[edge.target]]
        first = tuple(link for _, link in ways[0]) if ways and not reference.is_sent[at] else ()
        links.append(routes[at] if routes else first)
        taken = (
            reference.nominal[edge.source]
            if reference.is_sent[at]
            else sum(problem.machine.links[link].clocks for link in links[at])
        )
        delays.append(times[edge.target] + ii * edge.distance - times[edge.source] - reference.latency[edge.source] - taken)
    makespan = max(map(sum, zip(times, reference.latency, strict=True)))
    plan = Plan(
        problem=problem.digest,
        objective=encode_objective(ii, makespan),
        ii=ii,
        makespan=makespan,
        tiles=tiles,
        times=tuple(times),
        slots=tuple(time % ii for time in times),
        routes=tuple(links),
        delays=tuple(delays),
        starts=reference.starts(tiles) or (),
        interfaces=reference.ask(tiles, times, ii) or tuple(0 if n in reference.accesses else None for n in range(len(tiles))),
    )
    return msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
