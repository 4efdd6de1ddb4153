"""What differences of time refute where delays are limited: against every plan there is, and in words."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.bounds import find_obstacle, objective_bound, unrefuted_iis
from stowplan.models.modulo_scheduling.differences import positive_cycle
from stowplan.models.modulo_scheduling.machine import Link
from stowplan.models.modulo_scheduling.plan import decode_objective
from stowplan.models.modulo_scheduling.problem import Operand, Problem, Rules
from tests.models.modulo_scheduling.brute_force import Reference
from tests.models.modulo_scheduling.cases import (
    DOWN,
    UP,
    graph,
    line,
    linked_problem,
    random_problem,
    register_problem,
    varied_problem,
)


def limited(problem: Problem, chance: random.Random) -> Problem:
    """The problem with a limit on delays, and some more values."""
    delays = [0, 0, 1] if not problem.machine.registers else [None, 1]
    rules = msgspec.structs.replace(problem.rules, max_delay=chance.choice(delays))
    instructions = list(problem.instructions)
    for target in range(1, len(instructions)):
        source = chance.randrange(target)
        more = Operand(instruction=instructions[source].id, distance=chance.choice([0, 0, 0, 1]))
        if chance.random() < 0.5:
            each = instructions[target]
            instructions[target] = msgspec.structs.replace(each, operands=(*each.operands, more))
    return msgspec.structs.replace(problem, rules=rules, instructions=tuple(instructions))


@pytest.mark.parametrize("make", [random_problem, varied_problem, linked_problem, register_problem])
def test_no_feasible_interval_is_refuted(make: Callable[..., Problem]) -> None:
    refuted = obstacles = 0
    for seed in range(300):
        try:
            problem = limited(make(seed, most=4), random.Random(seed))
        except InputError:
            # One flow would wait for itself.
            continue
        iis = unrefuted_iis(problem).iis
        obstacles += not iis
        reference = Reference(problem)
        for ii in range(1, problem.machine.spoke_depth + 1):
            if ii not in iis:
                last = 12 + max((pin.time or 0 for pin in problem.pins), default=0)
                assert next(reference.plans(ii, last), None) is None, (seed, ii)
                refuted += 1
    assert refuted > 100
    assert obstacles > 20


@pytest.mark.parametrize(
    ("edges", "max_delay", "expected"),
    [
        # A sibling one step away, at best, against the longest way of the other.
        ("a>b b>c a>c", 1, "a -> b -> c: 7 clocks or more; a -> c: 6 clocks at most with max_delay 1; a value would wait 1"),
        ("a>b b>c c>d a>d", 1, "put at least 1 instruction(s) into the short way"),
        ("a>b b>c c>d d>e e>f f>g g>h a>h", 0, "put at least 4 instruction(s) into the short way"),
        # Five values around, without delays: an odd number of clocks of pipelines, and links cannot make up for it.
        ("a>b b>c c>e a>d d>e", 0, "whose clocks add up to an odd number"),
    ],
)
def test_reasons(edges: str, max_delay: int, expected: str) -> None:
    found = find_obstacle(graph(edges, line(8, spoke_depth=16), rules=Rules(max_delay=max_delay)))
    assert expected in (found or "")
    assert find_obstacle(graph(edges, line(8, spoke_depth=16))) is None


def test_intervals_from_both_sides() -> None:
    """A value that an instruction gives to itself waits longer the larger the interval is."""

    def iis(edges: str, max_delay: int | None, **changes: object) -> tuple[int, ...]:
        return unrefuted_iis(graph(edges, line(spoke_depth=8, **changes), rules=Rules(max_delay=max_delay))).iis

    assert iis("a>a:1", None) == (3, 4, 5, 6, 7, 8)
    assert iis("a>a:1", 1) == (3, 4)
    assert iis("a>a:2", 0) == ()
    assert iis("a>a:2", 1) == (2,)
    # There and back: the pipelines take 6 clocks, links an even number of clocks, and twice.
    assert iis("a>b b>a:1", 0) == (6, 8)
    # With links of other clocks nothing is odd.
    assert iis("a>b b>a:1", 0, links=(UP, DOWN, Link(name="far", rows=2))) == (6, 7, 8)
    obstacle = find_obstacle(graph("a>a:1 b>c c>b:1 a>b", line(spoke_depth=8), rules=Rules(max_delay=1)))
    assert obstacle is not None
    assert "below 6 are too short (c -> b (+1) -> c: 6 clocks or more)" in obstacle
    assert "above 4 are too long (a -> a (+1): 4 clocks at most with max_delay 1)" in obstacle
    # Five instructions on the one tile there is.
    obstacle = find_obstacle(graph("a>a:1 a>b b>c c>d d>e", line(1, spoke_depth=8), rules=Rules(max_delay=1, siblings="none")))
    assert "below 5 have too few slots; initiation intervals above 4 are too long" in (obstacle or "")


def test_search_keeps_to_what_is_open() -> None:
    """Candidates and models try no interval that is refuted."""
    problem = graph("a>b b>a:1", line(spoke_depth=8), rules=Rules(max_delay=0))
    assert decode_objective(objective_bound(problem))[0] == 6
    outcome = cpsat.solve(problem, time_limit=30)
    assert outcome.plan is not None
    assert outcome.plan.ii == 6


def test_cycles_of_positive_weight() -> None:
    ways = [(0, 0, 1, 3), (1, 1, 2, 3), (2, 2, 0, -7), (3, 1, 0, -4)]
    assert positive_cycle(3, ways) == []
    assert sorted(positive_cycle(3, [*ways, (9, 2, 0, -5)])) == [0, 1, 9]
    assert positive_cycle(1, [(4, 0, 0, 1)]) == [4]
