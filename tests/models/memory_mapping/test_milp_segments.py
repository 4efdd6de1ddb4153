"""Bounds of segments, detail, cuts and integers: never more than brute force finds, whatever they are made of."""

from __future__ import annotations

import math
import random
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from stowplan.models.memory_mapping.cpsat import solve
from stowplan.models.memory_mapping.milp import segments
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.segments import SegmentBounds, SegmentProblems
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch
from stowplan.models.memory_mapping.milp.tightening import DetailedModel, RoundingCuts
from stowplan.models.memory_mapping.plan import Copy, Plan
from stowplan.models.memory_mapping.problem import Evictions, Piece, Problem, Stalls, Step, Tensor, Use
from stowplan.models.memory_mapping.verify import verify
from stowplan.models.mip.matrix import INFINITE
from tests.models.memory_mapping.brute_force import best_plan, optimum
from tests.models.memory_mapping.cases import planned_problems, problems, random_problem
from tests.models.memory_mapping.relaxations import relaxation, relaxation_bound

BOTH: list[Stalls] = ["forbidden", "allowed"]


def effort() -> Effort:
    return Effort(math.inf, iteration_limit=10_000, node_limit=200)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few uses."""
    monkeypatch.setattr(segments, "SHORT_USES", 3)
    monkeypatch.setattr(segments, "LONG_USES", 6)


def bounded(problem: Problem) -> SegmentBounds:
    bounds = SegmentBounds(problem, effort())
    bounds.run()
    return bounds


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("stalls", "evictions"), [("forbidden", "whole_steps"), ("allowed", "whole_steps"), ("allowed", "between_steps")]
)
@pytest.mark.parametrize("seed", range(25))
def test_no_bound_exceeds_the_optimum(stalls: Stalls, evictions: Evictions, seed: int) -> None:
    channels = None if evictions == "whole_steps" else 1
    rng = random.Random(seed)
    problem = random_problem(rng, steps=5, tensors=3, stalls=stalls, channels=channels, evictions=evictions)
    best = optimum(problem)
    bounds = bounded(problem)
    assert problem.floor_ps <= bounds.bound <= best
    search = RelaxationSearch(DetailedModel(problem), effort())
    search.linear()
    linear = search.bound
    search.cut()
    with_cuts = search.bound
    search.integral()
    assert linear <= with_cuts <= search.bound <= best
    assert search.optimal


def in_slices(problem: Problem, plan: Plan) -> Plan | None:
    """A better plan in which one copy-in comes in two slices, the first of them earlier; None where there is none."""
    for place, residency in enumerate(plan.residencies):
        size = problem.tensors[residency.tensor].size
        whole = [copy for copy in plan.copies if copy.direction == "in" and copy.tensor == residency.tensor]
        for copy in (copy for copy in whole if copy.start == residency.start):
            others = [other for other in plan.copies if other is not copy]
            offsets = range(0, problem.capacity - size + 1, problem.alignment)
            for start, border, offset in product(range(copy.start), range(1, size), offsets):
                for first, second in (((0, border), (border, size)), ((border, size), (0, border))):
                    slices = Copy(copy.tensor, "in", start, copy.end, first), msgspec.structs.replace(copy, part=second)
                    found = msgspec.structs.replace(
                        plan,
                        residencies=(
                            *plan.residencies[:place],
                            msgspec.structs.replace(residency, start=start, offset=offset),
                            *plan.residencies[place + 1 :],
                        ),
                        copies=tuple(sorted([*others, *slices], key=lambda copy: copy.start)),
                    )
                    objective = verify(problem, found).objective
                    found = msgspec.structs.replace(found, objective=objective or 0)
                    if found.objective < plan.objective and verify(problem, found).ok:
                        return found
    return None


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("seed", [9, 24, 158, 221, 239])
def test_no_bound_exceeds_a_plan_in_slices(seed: int) -> None:
    """Seeds at which slices are worth having, and rows for whole copies say too much."""
    rng = random.Random(f"s2{seed}")
    count = rng.choice([5, 6]), rng.choice([3, 4])
    drawn = random_problem(
        rng,
        steps=count[0],
        tensors=count[1],
        stalls="allowed",
        channels=1,
        evictions=rng.choice(["whole_steps", "between_steps"]),
    )
    tensors = tuple(
        msgspec.structs.replace(each, size=rng.choice([1, 2, 3, 3]), copy_in_ps=rng.choice([4, 8, 16]))
        for each in drawn.tensors
    )
    whole = msgspec.structs.replace(drawn, alignment=1, alias_rule="in_place", tensors=tensors, capacity=rng.choice([3, 4]))
    problem = msgspec.structs.replace(whole, prefetches="sliced")
    best = best_plan(whole)
    sliced = in_slices(problem, msgspec.structs.replace(best, problem=problem.digest))
    assert sliced is not None
    assert bounded(problem).bound <= sliced.objective < best.objective
    models = (RelaxationModel, DetailedModel)
    assert all(relaxation(problem, model=model, integer=True).bound <= sliced.objective for model in models)
    assert any(relaxation(whole, model=model, integer=True).bound > sliced.objective for model in models)
    outcome = solve(problem, hint=sliced)
    assert verify(problem, outcome.plan).ok
    assert outcome.bound <= outcome.plan.objective <= sliced.objective


def test_detail_is_never_weaker_and_sometimes_tighter() -> None:
    tighter = 0
    for seed in range(16):
        problem = random_problem(random.Random(seed), steps=5, tensors=3)
        plain, detailed = relaxation_bound(problem, integer=True), relaxation(problem, integer=True, model=DetailedModel).bound
        assert plain <= detailed <= optimum(problem)
        tighter += detailed > plain
    assert tighter


@pytest.mark.usefixtures("short")
def test_no_valid_plan_is_better_than_stretches_say() -> None:
    @settings(max_examples=15)
    @given(planned_problems())
    def check(case: tuple[Problem, Plan]) -> None:
        problem, plan = case
        assert bounded(problem).bound <= plan.objective

    check()


@settings(max_examples=15)
@given(problems(steps=6, tensors=3), st.integers(1, 5))
def test_parts_add_up_to_no_more_than_the_whole(problem: Problem, boundary: int) -> None:
    if any(loop.start < boundary < loop.end for loop in problem.loops):
        return
    segments = SegmentProblems(problem)
    parts = [segments.between(0, boundary), segments.between(boundary, problem.horizon)]
    assert sum(optimum(part) for part in parts) <= optimum(problem)


def in_and_out(*, gap_ps: int) -> Problem:
    """A big tensor is written and read much later; in between, another one as big is of more use."""
    pieces = (Piece(100, (100,), (0,)),)
    return Problem(
        name="in and out",
        target="none",
        cost_model="test",
        capacity=10,
        steps=(
            Step("write", "test", 1, (Use(0, True, 10),), (Piece(0, (100,), (0,)),)),
            Step("between", "test", 1, (), (Piece(gap_ps, (), ()),)),
            Step("write other", "test", 1, (Use(1, True, 10),), (Piece(0, (100,), (0,)),)),
            Step("read other", "test", 1, (Use(1, False, 10),), pieces),
            Step("read", "test", 1, (Use(0, False, 10),), (Piece(0, (10,), (10,)),)),
        ),
        tensors=(Tensor("t", 10, 60, 60), Tensor("other", 10, 60, 60)),
    )


def test_a_tensor_stays_while_it_is_copied_out() -> None:
    """Only in the step between is there time for it; in the plain relaxation the copy goes on after the tensor has left."""
    problem = in_and_out(gap_ps=20)
    assert relaxation_bound(problem, integer=True) < bounded(problem).bound == optimum(problem)


def test_presolve_does_not_lose_the_optimum() -> None:
    """With its presolve HiGHS 1.12 says 17."""
    rng = random.Random(364)
    problem = random_problem(rng, steps=rng.choice([4, 5, 6]), tensors=3, stalls=rng.choice(["forbidden", "allowed"]))
    assert relaxation_bound(problem, integer=True) <= optimum(problem) == 16


def test_a_stopped_run_keeps_its_bound() -> None:
    problem = in_and_out(gap_ps=20)
    floor = sum(step.floor_ps for step in problem.steps)
    for ended in (Effort(0.0), Effort(math.inf, should_stop=lambda: True)):
        bounds = SegmentBounds(problem, ended)
        bounds.run()
        assert bounds.bound == floor


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("stalls", BOTH)
def test_equal_runs_give_equal_bounds(stalls: Stalls) -> None:
    problem = random_problem(random.Random(11), steps=10, tensors=6, stalls=stalls)
    one, two = bounded(problem), bounded(problem)
    assert [(each.start, each.end, each.bound_ps) for each in one.segments] == [
        (each.start, each.end, each.bound_ps) for each in two.segments
    ]


@pytest.mark.usefixtures("short")
def test_bounds_rise() -> None:
    for seed in range(4):
        problem = random_problem(random.Random(seed), steps=8, tensors=5)
        reported: list[int] = []
        bounds = SegmentBounds(problem, effort(), reported.append)
        bounds.run()
        assert reported == sorted(set(reported))
        assert not reported or reported[-1] == bounds.bound


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_cuts_hold_wherever_the_rows_do(seed: int) -> None:
    """All 0/1 points with whole other columns that satisfy a row satisfy every cut of it."""
    rng = np.random.default_rng(seed)
    binaries, others = int(rng.integers(2, 6)), int(rng.integers(0, 3))
    count = binaries + others
    lower = np.concatenate([np.zeros(binaries, np.int64), rng.integers(-2, 2, others)])
    upper = np.concatenate([np.ones(binaries, np.int64), lower[binaries:] + rng.integers(1, 4, others)])
    row = rng.integers(-12, 13, count)
    low, high = (-INFINITE, int(rng.integers(-5, 25))) if rng.random() < 0.7 else (int(rng.integers(-25, 5)), INFINITE)
    values = lower + (upper - lower) * rng.random(count)
    matrix = sparse.csr_matrix(row[None, :].astype(np.int64))
    found = RoundingCuts(lower, upper, np.arange(count) < binaries).find(
        matrix, np.array([low]), np.array([high]), values, limit=10
    )
    points = np.array(list(product(*(range(a, b + 1) for a, b in zip(lower.tolist(), upper.tolist(), strict=True)))))
    inside = points[(points @ row >= low) & (points @ row <= high)]
    cuts = found.matrix(count)
    assert np.all(inside @ cuts.T.toarray() <= np.array(found.upper))
    assert np.all(cuts @ values > np.array(found.upper))


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_cuts_of_memory_hold_where_a_tensor_is_there_once(seed: int) -> None:
    """Columns of one tensor count as one: no point in which at most one of each tensor is 1 is cut off, nor by cuts of cuts."""
    rng = np.random.default_rng(seed)
    owner = np.sort(rng.integers(0, 4, int(rng.integers(2, 7))))
    count = len(owner)
    units = rng.integers(1, 13, 4)[owner]
    room = int(rng.integers(1, 25))
    matrix, low, high = sparse.csr_matrix(units[None, :].astype(np.int64)), np.array([-INFINITE]), np.array([room])
    finder = RoundingCuts(np.zeros(count, np.int64), np.ones(count, np.int64), np.ones(count, bool), owner, [0])
    points = np.array([each for each in product((0, 1), repeat=count) if np.bincount(owner, weights=each).max() <= 1])
    inside = points[points @ units <= room]
    for _ in range(2):
        values = rng.random(count)
        values /= np.maximum(1.0, np.bincount(owner, weights=values)[owner])
        found = finder.find(matrix, low, high, values, limit=10)
        if not found.lower:
            return
        assert np.all(inside @ found.matrix(count).T.toarray() <= np.array(found.upper))
        finder.added(matrix.shape[0])
        matrix = sparse.vstack([matrix, found.matrix(count)], format="csr", dtype=np.int64)
        low, high = np.concatenate([low, found.lower]), np.concatenate([high, found.upper])


def test_a_cover_is_cut() -> None:
    """Two tensors of three fifths of the memory do not stand there together, nor does one and two thirds of another."""
    matrix = sparse.csr_matrix(np.array([[6, 6]], dtype=np.int64))
    cuts = RoundingCuts(np.zeros(2, np.int64), np.ones(2, np.int64), np.ones(2, bool))
    found = cuts.find(matrix, np.array([-INFINITE]), np.array([10]), np.array([1.0, 2 / 3]), limit=5)
    assert found.lower
    ratio = found.matrix(2).toarray() / np.array(found.upper)[:, None]
    assert np.allclose(ratio, 1.0)
