"""Reuse penalties: the rules of problems, the verifier against bytes, and both exact methods against trying every offset."""

from __future__ import annotations

import itertools
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import stowplan
from stowplan.certificates.checker.reading import MalformedError, UnprovenError
from stowplan.certificates.maker import certify
from stowplan.errors import InputError
from stowplan.models.packing import cpsat
from stowplan.models.packing.bounds import find_overload, reuse_bound
from stowplan.models.packing.plan import Plan, make_plan
from stowplan.models.packing.problem import Buffer, Overlap, Penalty, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing import penalties
from tests.models.packing.cases import Recorder, moments, random_problem


def penalised(seed: int, most: int = 5) -> Problem:
    """A random problem with a tight capacity and penalties between some of its buffers."""
    plain = random_problem(seed, most)
    chance = random.Random(seed)
    pairs = [
        Penalty(first=one.id, second=other.id, cost=chance.choice([0, 1, 1, 2, 5]))
        for one, other in itertools.combinations(plain.buffers, 2)
        if chance.random() < 0.7
    ]
    largest = max(buffer.size + (buffer.offset or 0) for buffer in plain.buffers)
    capacity = max(1, largest, *(sum(each.size for each in plain.buffers if time in moments(each)) for time in range(-2, 14)))
    return msgspec.structs.replace(plain, capacity=capacity + chance.choice([0, 0, 1, 3]), penalties=tuple(pairs))


def cost_by_bytes(problem: Problem, offsets: tuple[int, ...]) -> int:
    """The sum of the penalties, byte by byte."""
    at = {buffer.id: {*range(offset, offset + buffer.size)} for buffer, offset in zip(problem.buffers, offsets, strict=True)}
    return sum(each.cost for each in problem.penalties or () if at[each.first] & at[each.second])


def least_cost(problem: Problem) -> int | None:
    """Optimum by trying all offsets; None if nothing fits."""
    assert problem.capacity is not None
    best: int | None = None
    offsets: list[int] = []
    taken: set[tuple[int, int]] = set()

    cost_of = {frozenset((each.first, each.second)): each.cost for each in problem.penalties or ()}

    def place(number: int, cost: int) -> None:
        nonlocal best
        if best is not None and cost >= best:
            return
        if number == len(problem.buffers):
            best = cost
            return
        buffer = problem.buffers[number]
        for offset in range(problem.capacity or 0) if buffer.offset is None else [buffer.offset]:
            end = offset + buffer.size
            cells = {(time, byte) for time in moments(buffer) for byte in range(offset, end)}
            if offset % buffer.alignment or end > (problem.capacity or 0) or cells & taken:
                continue
            more = sum(
                cost_of.get(frozenset((buffer.id, other.id)), 0)
                for other, at in zip(problem.buffers, offsets, strict=False)
                if max(offset, at) < min(end, at + other.size)
            )
            taken.update(cells)
            offsets.append(offset)
            place(number + 1, cost + more)
            offsets.pop()
            taken.difference_update(cells)

    place(0, 0)
    return best


def test_exact_methods_find_the_optimum() -> None:
    positive = infeasible = 0
    for seed in range(300):
        problem = penalised(seed)
        if not problem.penalties:
            continue
        expected = least_cost(problem)
        outcome = cpsat.solve(problem, time_limit=60)
        recorder = Recorder(problem, workers=1)
        penalties.components(problem, recorder)
        if expected is None:
            infeasible += 1
            assert find_overload(problem) is not None or outcome.status == "infeasible", seed
            assert recorder.infeasible, seed
            continue
        assert outcome.plan is not None
        assert (outcome.status, outcome.plan.objective, outcome.bound) == (
            "optimal",
            expected,
            expected if outcome.bound is not None else None,
        ), seed
        assert recorder.best is not None
        assert (recorder.best.objective, max(recorder.bounds, default=0)) == (expected, expected), seed
        positive += expected > 0
    assert positive > 60
    assert infeasible > 3


def test_bounds_and_their_certificates_hold() -> None:
    certified = 0
    for seed in range(400):
        problem = penalised(seed, most=6 if seed % 4 else 5)
        if not problem.penalties or find_overload(problem) is not None:
            continue
        bound = reuse_bound(problem)
        if not bound:
            continue
        expected = least_cost(problem)
        assert expected is None or bound <= expected, seed
        found = certify(problem, bound=bound)
        assert (found.bound, found.proof["form"]) == (bound, "crowds")
        # A run that is interrupted makes one proof only.
        assert certify(problem, bound=bound, should_stop=lambda: True) == found
        certified += 1
        crowd = found.proof["crowds"][0]
        for wrong in ([crowd, crowd], [[*crowd, crowd[0]]], [[*crowd, 99]], [list(range(len(problem.buffers)))], [["a"]]):
            proof = {"form": "crowds", "crowds": wrong}
            with pytest.raises((UnprovenError, MalformedError)):
                msgspec.structs.replace(found, proof=proof, bound=1 << 40).check(problem)
    assert certified > 40


def test_components_are_those_that_scipy_finds() -> None:
    """Buffers are connected where they have a penalty or are live together; the components with the fewest penalties come
    first."""
    for seed in range(300):
        problem = penalised(seed, most=12)
        live = [{*moments(buffer)} for buffer in problem.buffers]
        pairs = [(one, other) for one, other in itertools.combinations(range(len(live)), 2) if live[one] & live[other]]
        pairs += problem.penalty_of
        links = coo_array((np.ones(len(pairs)), np.array(pairs, int).reshape(-1, 2).T), shape=(len(live), len(live)))
        count, label = connected_components(links, directed=False)
        members = [np.flatnonzero(label == number).tolist() for number in range(count)]
        penalties_in = [sum(one in each for one, _ in problem.penalty_of) for each in members]
        expected = [each for _, each in sorted(zip(penalties_in, members, strict=True))]
        assert penalties._components(problem) == expected, seed


def test_annealing_finds_valid_plans_and_mostly_the_best() -> None:
    missed = count = 0
    for seed in range(60):
        problem = penalised(seed, most=7)
        if not problem.penalties or (expected := least_cost(problem)) is None:
            continue
        recorder = Recorder(problem, deterministic=True, time_limit=0.02)
        penalties.anneal(problem, recorder)
        assert recorder.best is not None
        assert recorder.best.objective >= expected
        missed += recorder.best.objective > expected
        count += 1
    assert count > 30
    assert missed <= count // 20


def test_penalties_beside_permitted_overlaps() -> None:
    over = (Overlap(operand="a", distance=0),)
    buffers = (
        Buffer(id="a", lower=0, upper=2, size=4),
        Buffer(id="b", lower=1, upper=4, size=4, overlaps=over),
        Buffer(id="c", lower=3, upper=6, size=4),
    )
    pair = (Penalty(first="a", second="b", cost=3), Penalty(first="a", second="c", cost=1))
    tight, wide = (Problem(buffers=buffers, capacity=capacity, penalties=pair) for capacity in (8, 12))
    assert stowplan.solve(tight, time_limit=20).objective == 1
    assert stowplan.solve(wide, time_limit=20).objective == 0
    assert stowplan.solve(msgspec.structs.replace(tight, capacity=7), time_limit=20).objective is None


@given(st.integers(0, 10**6))
def test_the_verifier_counts_shared_bytes(seed: int) -> None:
    problem = penalised(seed, most=8)
    if not problem.penalties:
        return
    chance = random.Random(seed)
    offsets = tuple(chance.randint(0, 9) for _ in problem.buffers)
    plan = make_plan(problem, offsets)
    expected = cost_by_bytes(problem, offsets)
    assert plan.objective == verify(problem, plan).objective == expected
    wrong = msgspec.structs.replace(plan, objective=expected + chance.choice([-1, 1]))
    assert "wrong_objective" in [each.code for each in verify(problem, wrong).violations]
    moved = list(offsets)
    moved[chance.randrange(len(moved))] += chance.randint(1, 4)
    stale = Plan(problem=problem.digest, objective=expected, offsets=tuple(moved))
    codes = [each.code for each in verify(problem, stale).violations]
    assert ("wrong_objective" in codes) == (cost_by_bytes(problem, tuple(moved)) != expected)


TWO = (Buffer(id="a", lower=0, upper=1, size=4), Buffer(id="b", lower=1, upper=2, size=4))


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([("a", "x", 1)], r"penalties\[0\]: found 'x', expected the id of a buffer"),
        ([("a", "a", 1)], "expected two buffers"),
        ([("a", "b", 1), ("b", "a", 1)], r"penalties\[1\]: .* again, expected each pair once"),
        ([("a", "b", -1)], "found cost -1, expected 0 or more"),
        ([("a", "b", 1 << 61)], "costs that add up"),
    ],
)
def test_bad_penalties_are_refused(pairs: list[tuple[str, str, int]], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Problem(
            buffers=TWO, capacity=8, penalties=tuple(Penalty(first=one, second=other, cost=cost) for one, other, cost in pairs)
        )


def test_penalties_need_a_capacity() -> None:
    with pytest.raises(InputError, match="penalties and no capacity"):
        Problem(buffers=TWO, penalties=(Penalty(first="a", second="b", cost=1),))


def test_problems_without_penalties_keep_their_digest() -> None:
    plain = Problem(buffers=TWO, capacity=8)
    assert plain.digest == msgspec.structs.replace(plain, penalties=()).digest
    assert plain.digest == "b45d6267bcc01abb258ae3090560bc3cc5436f74f384aa4e2fc8f1835991e62a"


def test_results_state_costs() -> None:
    result = stowplan.solve(
        Problem(buffers=TWO, capacity=4, penalties=(Penalty(first="a", second="b", cost=7),)), time_limit=20
    )
    assert (result.objective, result.bound, result.unit.name, result.status) == (7, 7, "cost", "optimal")
    assert result.baselines["greedy"] == 7
    assert (result.details["penalties"], result.details["costs"]) == (1, 7)
