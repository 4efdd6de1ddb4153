"""Schedules that follow hints, and how the search takes hints up."""

from __future__ import annotations

import random

from stowplan.models.modulo_scheduling import hint as hints
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling import candidates
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.search import Tally, follow
from tests.kernel.recorder import Recorder
from tests.models.modulo_scheduling.cases import graph, random_problem


def never() -> bool:
    return False


def test_the_values_of_a_plan_lead_to_its_interval() -> None:
    """On its tiles and in its order the list scheduler nearly always makes as good a plan."""
    same = tried = 0
    for seed in range(200):
        problem = random_problem(seed)
        best = candidates.list_plan(problem, 0, never)
        if best is None:
            continue
        tried += 1
        tally = Tally(Body(problem))
        follow(tally, hints.of_plan(problem, best), 1, never)
        if tally.best is not None:
            assert verify(problem, tally.best).ok
            same += tally.best.ii <= best.ii
    assert tried >= 50
    assert same >= 0.9 * tried


def test_any_values_give_valid_schedules_that_are_better_or_none() -> None:
    chance = random.Random(1)
    problem = graph("a>b b>c c>d d>e e>f a>g g>h h>i b>i")
    count = len(problem.instructions)
    plain = Tally(Body(problem))
    for seed in range(60):
        values = [[chance.random() for _ in range(count)] for _ in range(5)]
        hint = hints.hint(problem, values[0], values[1:], confidence=[chance.random() for _ in range(count)])
        before = plain.best
        better = follow(plain, hint, seed, never)
        assert better == (plain.best is not before)
        assert plain.best is not None
        assert verify(problem, plain.best).ok
        assert before is None or plain.best.objective <= before.objective


def test_the_search_follows_the_hint_of_another_candidate() -> None:
    problem = graph("a>b b>c c>d d>e e>f a>g g>h h>i b>i c>j j>k")
    count = len(problem.instructions)
    context = Recorder(deterministic=True, time_limit=0.01)
    context.known = (hints.hint(problem, [0.5] * count, [[0.5] * count] * 4),)
    candidates.search(problem, context)
    unguided = Recorder(deterministic=True, time_limit=0.01)
    candidates.search(problem, unguided)
    assert {source for _, source in unguided.plans} <= {"list", "search"}
    assert len(context.plans) >= len(unguided.plans)
