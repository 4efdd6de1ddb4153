"""Large-neighbourhood search: what it reports is valid and better each time; it adopts, stops and repeats itself."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stowplan.kernel.context import Context, Options
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.copy_engine import PlanTimeline, ProblemFacts
from stowplan.models.memory_mapping.cpsat import Improvement
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Piece, Problem, Step
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import pace
from stowplan.portfolio.memory_mapping.lns import PARAMS, Arm, LargeNeighbourhoodSearch, lns
from stowplan.portfolio.memory_mapping.neighbourhoods import Chooser, lost_gains
from stowplan.portfolio.memory_mapping.pace import report_every
from tests.models.memory_mapping.brute_force import best_plan, optimum
from tests.models.memory_mapping.cases import random_plan, random_problem
from tests.portfolio.memory_mapping.states import wide_problem
from tests.portfolio.memory_mapping.test_changes import only


class Recorder(Context):
    """A context that keeps what is reported."""

    def __init__(self, start: Plan | None, *, seconds: float = 30.0, bound: int | None = None, **options: Any):
        super().__init__(Options(**{"time_limit": seconds, **options}), start)
        self.best: tuple[Plan | None, int | None] = (start, bound)
        self.plans: list[Plan] = []
        self.notes: list[str] = []
        self.known: tuple[Hint, ...] = ()
        self.left = seconds

    def plan(self, plan: Plan, source: str) -> None:
        assert source == "lns"
        self.plans.append(plan)

    def bound(self, bound: int, source: str) -> None:
        raise AssertionError("it proves nothing")

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        raise AssertionError("it proves nothing")

    def note(self, text: str) -> None:
        self.notes.append(text)

    def incumbent(self) -> tuple[Plan | None, int | None]:
        return self.best

    def hints(self) -> tuple[Hint, ...]:
        return self.known

    def closed(self) -> bool:
        return self.remaining() <= 0

    def remaining(self) -> float:
        return self.left


def all_slow(problem: Problem) -> Plan:
    return Plan(problem=problem.digest, objective=problem.all_slow_ps)


def with_objective(problem: Problem, plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, objective=PlanTimeline(ProblemFacts(problem), plan).objective)


def assert_anytime(problem: Problem, start: Plan, plans: list[Plan]) -> None:
    objectives = [start.objective, *(plan.objective for plan in plans)]
    assert all(later < earlier for earlier, later in pairwise(objectives))
    for plan in plans:
        verification = verify(problem, plan)
        assert verification.ok, verification.violations


@pytest.mark.parametrize("seed", [1, 5, 7, 9, 12, 14])
def test_it_finds_the_optimum_of_small_problems_and_stops_there(seed: int) -> None:
    problem = random_problem(random.Random(seed), steps=6, tensors=4, channels=1)
    best, start = optimum(problem), all_slow(problem)
    context = Recorder(start, bound=best)
    LargeNeighbourhoodSearch(ProblemFacts(problem), context, start).run()
    assert_anytime(problem, start, context.plans)
    assert [start, *context.plans][-1].objective == best


@pytest.mark.parametrize("seed", range(4))
def test_it_goes_on_from_plans_that_use_the_freedoms_of_compilers(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(
        rng, steps=20, tensors=8, stalls="allowed", channels=1, evictions="between_steps", prefetches="sliced"
    )
    plans = [random_plan(problem, rng, attempts=20) for _ in range(8)]
    start = next(plan for plan in plans if any(copy.part for copy in plan.copies))
    context = Recorder(start, deterministic=True, seconds=60.0, time_limit=1.0)
    lns(problem, context)
    assert all(verify(problem, plan).ok for plan in context.plans)
    assert min(plan.objective for plan in [start, *context.plans]) < problem.all_slow_ps


@pytest.mark.parametrize("seed", range(4))
def test_wide_problems_get_better(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, steps=rng.randint(10, 40), tensors=rng.randint(5, 16), channels=1)
    start = random_plan(problem, rng, attempts=20)
    context = Recorder(start, deterministic=True, seconds=60.0, time_limit=1.0)
    LargeNeighbourhoodSearch(ProblemFacts(problem), context, start).run()
    assert_anytime(problem, start, context.plans)
    assert context.plans
    assert context.notes


def test_equal_runs_give_equal_plans() -> None:
    problem = wide_problem(3)
    runs = []
    for _ in range(2):
        context = Recorder(all_slow(problem), deterministic=True, seconds=60.0, time_limit=0.5)
        lns(problem, context)
        runs.append(context.plans[-1])
    assert runs[0] == runs[1]


def test_it_adopts_what_others_find() -> None:
    problem = random_problem(random.Random(4), steps=6, tensors=4, channels=1, stalls="allowed")
    best = best_plan(problem)
    assert best.objective < problem.all_slow_ps
    context = Recorder(all_slow(problem))
    context.best = (best, best.objective)
    lns(problem, context)
    # It starts from what the others have, finds that proven optimal, and has nothing to say.
    assert context.plans == []


def test_what_was_found_here_is_found_in_the_plan_of_others() -> None:
    """Two searches have moved other tensors of one plan: whoever sees the other's plan has both."""
    together = 0
    for seed in range(80):
        rng = random.Random(seed)
        problem = random_problem(rng, steps=20, tensors=8, channels=1, stalls="allowed")
        plan = random_plan(problem, rng, attempts=20)
        half = set(range(0, len(problem.tensors), 2))
        ours, theirs = (with_objective(problem, only(problem, plan, each)) for each in (half, {*range(99)} - half))
        start = all_slow(problem)
        if not (ours.objective < start.objective and theirs.objective < start.objective):
            continue
        context = Recorder(start)
        search = LargeNeighbourhoodSearch(ProblemFacts(problem), context, start)
        assert search._accept(ours) > 0
        context.best = (theirs, None)
        search._adopt()
        both = with_objective(problem, plan).objective
        if both < min(ours.objective, theirs.objective):
            together += 1
            assert_anytime(problem, start, context.plans)
            assert context.plans[-1].objective == search._timeline.objective == both
        else:
            assert search._timeline.objective == min(ours.objective, theirs.objective)
        # Nothing is done twice.
        told = len(context.plans)
        search._adopt()
        assert len(context.plans) == told
    assert together > 10


def test_a_plan_that_is_not_valid_is_not_reported_and_not_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are verified where they are reported; after the first that is not valid, each as it is found."""
    problem = random_problem(random.Random(5), steps=6, tensors=4, channels=1)
    best, start = optimum(problem), all_slow(problem)
    asked: list[Plan] = []

    def doubtful(problem: Problem, plan: Plan) -> Any:
        asked.append(plan)
        return verify(problem, plan) if len(asked) > 1 else SimpleNamespace(ok=False)

    monkeypatch.setattr("stowplan.portfolio.memory_mapping.lns.verify", doubtful)
    context = Recorder(start, bound=best)
    LargeNeighbourhoodSearch(ProblemFacts(problem), context, start).run()
    assert sum("not valid" in note for note in context.notes) == 1
    assert len(asked) > 1
    assert_anytime(problem, start, context.plans)
    assert [start, *context.plans][-1].objective == best


def test_reports_are_rarer_the_larger_the_program_is() -> None:
    """What a run verifies of a search is a small part of a core."""
    small, large = wide_problem(1), wide_problem(1)
    assert report_every(small) == pace.PARAMS.report_seconds
    steps = large.steps * (1 + 20_000 // large.use_count)
    assert report_every(msgspec.structs.replace(large, steps=steps)) > 2.0


def test_no_time_means_no_work() -> None:
    problem = wide_problem(1)
    context = Recorder(all_slow(problem))
    context.left = 0.0
    lns(problem, context)
    assert_anytime(problem, all_slow(problem), context.plans)


def test_a_program_without_uses() -> None:
    problem = Problem(
        name="idle",
        target="none",
        cost_model="test",
        capacity=1,
        steps=(Step("a", "test", 3, (), (Piece(7, (), ()),)),),
        tensors=(),
    )
    lns(problem, Recorder(all_slow(problem)))


def test_what_the_model_does_not_take_is_noted() -> None:
    problem = random_problem(random.Random(3), steps=8, tensors=4, channels=2)
    tensors = tuple(msgspec.structs.replace(tensor, copy_in_ps=0) for tensor in problem.tensors)
    problem = msgspec.structs.replace(problem, tensors=tensors)
    context = Recorder(random_plan(problem, random.Random(0), attempts=20))
    lns(problem, context)
    assert "several channels" in context.notes[0]


def test_arms_grow_where_it_is_easy_and_shrink_where_it_is_not() -> None:
    arm = Arm("window", False, count=20)
    arm.resize(Improvement("optimal", None), 0, 0.1, 1.0, most=22)
    assert 20 < arm.count <= 22
    arm.resize(Improvement("optimal", None), 0, 0.1, 1.0, most=22)
    assert arm.count == 22
    arm.resize(Improvement("optimal", None), 0, 0.9, 1.0, most=22)
    assert arm.count == 22
    arm.resize(Improvement("feasible", None), 5, 1.0, 1.0, most=22)
    assert arm.count == 22
    for _ in range(50):
        arm.resize(Improvement("feasible", None), 0, 1.0, 1.0, most=22)
    assert arm.count == PARAMS.least_count


def test_an_arm_is_judged_by_what_it_earned_lately() -> None:
    good, bad = Arm("window", False), Arm("lost", False)
    good.learn(1000, 1.0)
    bad.learn(0, 1.0)
    assert good.rate > bad.rate == 0
    for _ in range(100):
        good.learn(0, 1.0)
    bad.learn(10, 1.0)
    assert bad.rate > good.rate


@pytest.mark.parametrize("seed", range(10))
def test_what_is_chosen_lies_in_its_window(seed: int) -> None:
    problem = wide_problem(seed)
    timeline = PlanTimeline(ProblemFacts(problem), random_plan(problem, random.Random(seed), attempts=30))
    chooser = Chooser(timeline.facts, seed)
    for way in chooser.ways.values():
        for count in (1, 4, 50):
            free = way(timeline, count)
            if free is None:
                continue
            assert 0 <= free.start < free.end <= problem.horizon
            assert len(set(free.tensors)) == len(free.tensors) <= chooser.count
            # The first may have a residency there and no use.
            for tensor in free.tensors[1:]:
                steps = [access.step for access in timeline.facts.sequences[tensor].accesses]
                assert min(steps) < free.end
                assert max(steps) >= free.start


@pytest.mark.parametrize("seed", range(10))
def test_no_plan_loses_more_than_there_is_to_gain(seed: int) -> None:
    problem = wide_problem(seed)
    facts = ProblemFacts(problem)
    most, lost = Chooser(facts, 0)._gain, lost_gains(PlanTimeline(facts, all_slow(problem)))
    assert (lost <= most + 1e-9).all()
    assert (lost >= 0).all()


@pytest.mark.parametrize("seed", range(12))
def test_neighbourhoods_around_a_guess_hold_what_disagrees_with_it(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, steps=20, tensors=10, channels=1)
    facts = ProblemFacts(problem)
    timeline = PlanTimeline(facts, random_plan(problem, rng, attempts=20))
    agreeing = hints.of_plan(problem, timeline.plan)
    chooser = Chooser(facts, seed)
    assert "disagreeing" not in chooser.ways
    chooser.follow(agreeing)
    assert chooser.ways["disagreeing"](timeline, 4) is None
    other = hints.of_plan(problem, random_plan(problem, rng, attempts=20))
    chooser.follow(other)
    free = chooser.ways["disagreeing"](timeline, 4)
    if free is not None:
        first, values = free.tensors[0], zip(agreeing.values["fast"], other.values["fast"], strict=True)
        owners = [sequence.tensor for sequence in facts.sequences for _ in sequence.accesses]
        assert first in {owner for owner, (one, two) in zip(owners, values, strict=True) if one != two}
        assert 0 <= free.start < free.end <= problem.horizon
        assert len({*free.tensors}) == len(free.tensors) <= 4


def test_a_guess_is_followed_by_the_search() -> None:
    problem = wide_problem(3)
    context = Recorder(all_slow(problem), deterministic=True, seconds=60.0, time_limit=0.5)
    context.known = (hints.hint(problem, *[[0.5] * hints.counts(problem)["fast"]] * 2),)
    lns(problem, context)
    assert_anytime(problem, all_slow(problem), context.plans)
    assert "disagreeing" in context.notes[-1]
