"""Conflicts of problems that only a search refutes, against every offset tried."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from stowplan.models.packing.bounds import find_overload, load_bound
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.portfolio.packing import candidates
from stowplan.portfolio.packing.canonical import clip, find_conflict
from tests.models.packing.cases import Recorder, fits, moments, random_problem

#: Seeds of problems whose least height is above all that shows without a search.
SEEDS = (13, 24, 40, 73, 112, 124, 130, 147, 151, 163, 189, 194, 219, 264, 265, 292, 310, 328, 331, 340, 349, 384, 418, 481)


def too_tight(seed: int) -> Problem:
    """The problem with the largest capacity that does not do."""
    problem = random_problem(seed)
    height = next(height for height in range(load_bound(problem), 99) if fits(problem, height))
    return msgspec.structs.replace(problem, capacity=height - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_conflicts_cannot_be_reduced(seed: int) -> None:
    problem = too_tight(seed)
    assert problem.capacity is not None
    assert find_overload(problem) is None
    found = find_conflict(problem, 0, 100_000, lambda: False)
    assert found.irreducible
    capacity = problem.capacity
    assert not fits(clip(problem, found.buffers, found.start, found.end), capacity)
    for left_out in found.buffers:
        rest = [number for number in found.buffers if number != left_out]
        assert fits(clip(problem, rest, found.start, found.end), capacity), left_out
    # No shorter span would have done, with whatever buffers.
    everyone = range(len(problem.buffers))
    times = sorted({time for each in problem.buffers for piece in each.pieces for time in piece})
    at, end = times.index(found.start), times.index(found.end)
    if at + 1 < end:
        assert fits(clip(problem, everyone, times[at + 1], found.end), capacity)
        assert fits(clip(problem, everyone, found.start, times[end - 1]), capacity)


def test_clipped_lives_are_what_lies_in_the_span() -> None:
    for seed in range(100):
        problem = random_problem(seed)
        for start, end in pairwise((-2, 1, 5, 9, 14)):
            clipped = {each.id: moments(each) for each in clip(problem, range(len(problem.buffers)), start, end).buffers}
            for buffer in problem.buffers:
                assert clipped.get(buffer.id, set()) == moments(buffer) & set(range(start, end)), (seed, buffer.id)


def test_without_time_a_conflict_is_not_called_irreducible() -> None:
    problem = too_tight(SEEDS[0])
    found = find_conflict(problem, 0, 100_000, lambda: True)
    assert not found.irreducible
    assert "fewer might do" in found.details(problem)["explanation"]
    assert not fits(clip(problem, found.buffers, found.start, found.end), problem.capacity or 0)


@pytest.mark.parametrize("candidate", [candidates.exact, candidates.cpsat])
def test_those_who_refute_explain(candidate: object) -> None:
    assert callable(candidate)
    bystander = Buffer(id="bystander", lower=0, upper=9, size=0)
    problem = too_tight(SEEDS[1])
    problem = msgspec.structs.replace(problem, buffers=(*problem.buffers, bystander))
    context = Recorder(problem, time_limit=1.0)
    candidate(problem, context)
    assert context.infeasible
    conflict = context.why["conflict"]
    assert conflict["irreducible"]
    assert conflict["load"] <= (problem.capacity or 0)
    assert "bystander" not in conflict["buffers"]
    assert all(name in context.why["explanation"] for name in conflict["buffers"][:6])
