"""The verifier against cells of (time, byte), and each reason code."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan.models.overlaps import MOST_OVERLAPS
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing.quick import quick_plan
from tests.models.packing.cases import moments, random_problem


def plan_of(problem: Problem, *offsets: int) -> Plan:
    height = max((at + each.size for at, each in zip(offsets, problem.buffers, strict=False)), default=0)
    return Plan(problem=problem.digest, objective=height, offsets=offsets)


@given(st.integers(0, 10**6))
def test_overlaps_are_those_of_cells(seed: int) -> None:
    problem = random_problem(seed, most=9)
    chance = random.Random(seed)
    offsets = tuple(chance.randint(0, 9) for _ in problem.buffers)
    cells = [
        {(time, byte) for time in moments(each) for byte in range(at, at + each.size)}
        for at, each in zip(offsets, problem.buffers, strict=True)
    ]
    expected = {(i, j) for j in range(len(cells)) for i in range(j) if cells[i] & cells[j]}
    found = [
        each.concerns["buffers"] for each in verify(problem, plan_of(problem, *offsets)).violations if each.code == "overlap"
    ]
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_overlaps_are_those_of_all_pairs() -> None:
    """Plans of 1 to 300 buffers, valid ones and those in which one buffer was moved."""
    sound = broken = 0
    for seed in range(120):
        problem = random_problem(seed, most=[6, 40, 300][seed % 3])
        chance = random.Random(seed)
        found = quick_plan(problem)
        for moved in range(6) if found is not None else ():
            offsets = list(found[1].offsets)
            if moved:
                number = chance.randrange(len(offsets))
                offsets[number] = max(-1, offsets[number] + chance.randint(-6, 6))
            boxes = [
                (*piece, at, at + each.size)
                for at, each in zip(offsets, problem.buffers, strict=True)
                for piece in (each.pieces if each.size else ())
            ]
            owner = [number for number, each in enumerate(problem.buffers) for _ in (each.pieces if each.size else ())]
            expected = {
                (min(owner[i], owner[j]), max(owner[i], owner[j]))
                for (i, one), (j, two) in itertools.combinations(enumerate(boxes), 2)
                if one[0] < two[1] and two[0] < one[1] and one[2] < two[3] and two[2] < one[3]
            }
            told = [
                each.concerns["buffers"]
                for each in verify(problem, plan_of(problem, *offsets)).violations
                if each.code == "overlap"
            ]
            assert len(told) == len(set(told))
            assert set(told) == expected, (seed, moved)
            sound += not expected
            broken += bool(expected)
    assert sound > 100
    assert broken > 100


def test_offsets_beyond_64_bits() -> None:
    found = verify(PAIR, plan_of(PAIR, 1 << 70, 8, 0))
    assert [each.code for each in found.violations] == ["over_capacity"]


PAIR = Problem(
    buffers=(
        Buffer(id="a", lower=0, upper=4, size=8, alignment=4),
        Buffer(id="b", lower=3, upper=6, size=4, offset=8),
        Buffer(id="c", lower=4, upper=5, size=8),
    ),
    capacity=16,
)


def test_a_valid_plan() -> None:
    found = verify(PAIR, plan_of(PAIR, 0, 8, 0))
    assert (found.ok, found.objective, found.violations) == (True, 12, ())


@pytest.mark.parametrize(
    ("offsets", "codes"),
    [
        ((2, 8, 0), ["misaligned", "overlap"]),
        ((0, 9, 0), ["moved"]),
        ((0, 8, 12), ["over_capacity"]),
        ((-4, 8, 0), ["negative_offset"]),
        ((0, 8, 5), ["overlap"]),
        ((0, 8), ["wrong_count"]),
    ],
)
def test_reason_codes(offsets: tuple[int, ...], codes: list[str]) -> None:
    assert [each.code for each in verify(PAIR, plan_of(PAIR, *offsets)).violations] == codes


def test_the_stated_height_and_the_problem_are_checked() -> None:
    wrong = Plan(problem="0" * 64, objective=11, offsets=(0, 8, 0))
    assert [each.code for each in verify(PAIR, wrong).violations] == ["wrong_problem", "wrong_objective"]


def test_overlaps_without_end_are_cut_short() -> None:
    problem = Problem(buffers=tuple(Buffer(id=str(number), lower=0, upper=1, size=1) for number in range(300)))
    assert len(verify(problem, plan_of(problem, *[0] * 300)).violations) == MOST_OVERLAPS
