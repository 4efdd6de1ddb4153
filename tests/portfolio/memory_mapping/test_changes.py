"""Changes of one plan, made in another."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest

from stowplan.models.memory_mapping.copy_engine import PlanTimeline, ProblemFacts
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping.lns import PARAMS, Changes
from tests.models.memory_mapping.cases import random_plan, random_problem


def only(problem: Problem, plan: Plan, tensors: set[int]) -> Plan:
    """What a plan says of some tensors; the others are in slow memory."""
    owner = [use.tensor for step in problem.steps for use in step.uses]
    return msgspec.structs.replace(
        plan,
        residencies=tuple(each for each in plan.residencies if each.tensor in tensors),
        copies=tuple(each for each in plan.copies if each.tensor in tensors),
        fast_uses=tuple(use for use in plan.fast_uses if owner[use] in tensors),
    )


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans do the same, but for the order of copies that are queued at one boundary."""
    return (
        sorted(one.residencies, key=repr) == sorted(other.residencies, key=repr)
        and sorted(one.copies, key=repr) == sorted(other.copies, key=repr)
        and one.fast_uses == other.fast_uses
    )


@pytest.fixture(params=range(60))
def case(request: pytest.FixtureRequest) -> tuple[Problem, Plan, random.Random]:
    rng = random.Random(request.param)
    stalls = "allowed" if request.param % 2 else "forbidden"
    problem = random_problem(rng, steps=20, tensors=8, channels=1, stalls=stalls)
    return problem, random_plan(problem, rng, attempts=20), rng


def test_what_was_changed_in_a_plan_is_changed_in_that_plan(case: tuple[Problem, Plan, random.Random]) -> None:
    problem, plan, rng = case
    facts = ProblemFacts(problem)
    other = random_plan(problem, rng, attempts=20)
    changes = Changes(facts)
    changes.add(PlanTimeline(facts, plan), PlanTimeline(facts, other))
    made = changes.applied_to(PlanTimeline(facts, plan))
    assert (made is None) == same(plan, other)
    assert made is None or same(made, other)


def test_changes_of_other_tensors_come_together(case: tuple[Problem, Plan, random.Random]) -> None:
    problem, plan, _ = case
    facts = ProblemFacts(problem)
    nothing = only(problem, plan, set())
    half = set(range(0, len(problem.tensors), 2))
    ours, theirs = only(problem, plan, half), only(problem, plan, {*range(len(problem.tensors))} - half)
    changes = Changes(facts)
    changes.add(PlanTimeline(facts, nothing), PlanTimeline(facts, ours))
    made = changes.applied_to(PlanTimeline(facts, theirs))
    if same(ours, nothing):
        assert made is None
        return
    assert made is not None
    assert same(made, plan)
    assert [copy.start for copy in made.copies] == sorted(copy.start for copy in made.copies)
    found = PlanTimeline(facts, made).objective
    assert verify(problem, msgspec.structs.replace(made, objective=found)).ok or problem.stalls == "forbidden"


def test_what_others_have_changed_is_left_alone(case: tuple[Problem, Plan, random.Random]) -> None:
    """A change is made whole, or not at all; a later one that rests on it is not made either."""
    problem, plan, _ = case
    facts = ProblemFacts(problem)
    placed = sorted({each.tensor for each in plan.residencies})
    if len(placed) < 3:
        return
    first, second, third = placed[:3]
    steps = [set(), {first, second}, {first, second, third}]
    timelines = [PlanTimeline(facts, only(problem, plan, each)) for each in steps]
    changes = Changes(facts)
    for before, after in pairwise(timelines):
        changes.add(before, after)
    theirs = only(problem, plan, {second})
    made = changes.applied_to(PlanTimeline(facts, theirs))
    # The first change moves a tensor that they have moved, too.
    assert made is not None
    assert same(made, only(problem, plan, {second, third}))
    assert changes.applied_to(timelines[-1]) is None


def test_old_changes_are_forgotten(case: tuple[Problem, Plan, random.Random]) -> None:
    problem, plan, _ = case
    facts = ProblemFacts(problem)
    nothing, all_of_it = PlanTimeline(facts, only(problem, plan, set())), PlanTimeline(facts, plan)
    if not plan.residencies:
        return
    changes = Changes(facts)
    changes.add(nothing, all_of_it)
    for _ in range(PARAMS.remembered):
        changes.add(all_of_it, nothing)
    assert changes.applied_to(nothing) is None
