"""Buffers that take bytes of those that die: rules, verifier, bound, model and files."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan.errors import InputError, UsageError
from stowplan.models.packing import cpsat
from stowplan.models.packing.bounds import find_overload, load_bound
from stowplan.models.packing.csv_files import parse, read_plan
from stowplan.models.packing.overlaps import loads, separations, shared_bytes, without_overlaps
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Overlap, Problem
from stowplan.models.packing.verify import verify
from tests.models.packing.cases import random_problem
from tests.models.packing.overlaps import least_height, random_overlaps, sharing
from tests.patience import HANG

CHAIN = "id,lower,upper,size,overlaps\na,0,2,100,\nb,1,3,80,a:120\nc,2,4,100,b:80\n"


def plan_of(problem: Problem, *offsets: int) -> Plan:
    height = max(at + buffer.size for at, buffer in zip(offsets, problem.buffers, strict=True))
    return Plan(problem=problem.digest, objective=height, offsets=offsets, buffers=problem.buffers)


@pytest.mark.parametrize("same", [False, True])
def test_the_verifier_agrees_with_cells_of_time_and_byte(same: bool) -> None:
    allowed = forbidden = 0
    for seed in range(400):
        problem, chance = random_overlaps(seed, most=6, same=same), random.Random(seed)
        offsets = tuple(chance.randint(0, 6) for _ in problem.buffers)
        found = [
            each.concerns["buffers"]
            for each in verify(problem, plan_of(problem, *offsets)).violations
            if each.code == "overlap"
        ]
        assert sorted(found) == sorted(sharing(problem, offsets)), seed
        forbidden += len(found)
        allowed += len(sharing(without_overlaps(problem), offsets)) - len(found)
    assert allowed > 100
    assert forbidden > 100


@pytest.mark.parametrize(
    ("at", "is_valid"), [(-1, False), (0, True), (79, True), (80, True), (81, False), (179, False), (180, True)]
)
def test_a_result_lies_so_far_below_the_end_of_its_operand_or_apart(at: int, is_valid: bool) -> None:
    buffers = (
        Buffer(id="operand", lower=0, upper=2, size=100),
        Buffer(id="result", lower=1, upper=3, size=50, overlaps=(Overlap(operand="operand", distance=100),)),
    )
    problem = Problem(buffers=buffers)
    assert verify(problem, plan_of(problem, 80, at)).ok == is_valid


@pytest.mark.parametrize("at", [39, 40, 41, 0])
def test_buffers_that_hold_the_same_bytes_have_the_same_offset_or_lie_apart(at: int) -> None:
    same = (Overlap(operand="first", distance=None),)
    buffers = (
        Buffer(id="first", lower=0, upper=9, size=50),
        # Which of the two dies first is of no consequence.
        Buffer(id="short", lower=1, upper=3, size=50, overlaps=same),
        Buffer(id="long", lower=5, upper=12, size=50, overlaps=same),
    )
    problem = Problem(buffers=buffers)
    assert verify(problem, plan_of(problem, 40, at, 40)).ok == (at == 40)
    assert load_bound(problem) == least_height(problem) == 50
    # Of the two copies nothing is said: where both live, they lie apart, and one of them apart from the first.
    moved = Problem(buffers=(buffers[0], msgspec.structs.replace(buffers[1], upper=6), buffers[2]))
    assert load_bound(moved) == least_height(moved) == 100


@pytest.mark.parametrize(("block", "same"), [*((block, False) for block in range(4)), (4, True), (5, True)])
def test_the_model_finds_and_proves_the_least_height(block: int, same: bool) -> None:
    gained = tight = 0
    for seed in range(60 * block, 60 * block + 60):
        problem = random_overlaps(seed, same=same)
        optimum = least_height(problem)
        outcome = cpsat.solve(problem, workers=1, time_limit=HANG)
        if optimum is None:
            assert outcome.status == "infeasible", seed
            continue
        assert outcome.plan is not None, seed
        assert (outcome.status, outcome.plan.objective, outcome.bound) == ("optimal", optimum, optimum), seed
        assert verify(problem, outcome.plan).ok, seed
        # A complete hint is taken, and changes nothing.
        again = cpsat.solve(problem, workers=1, time_limit=HANG, hint=outcome.plan)
        assert (again.status, again.bound) == ("optimal", optimum), seed
        assert load_bound(problem) <= optimum, seed
        tight += load_bound(problem) == optimum
        gained += optimum < (least_height(without_overlaps(problem)) or 0)
    assert gained > 8
    assert tight > 40


def test_a_capacity_below_the_least_height_is_refuted() -> None:
    loaded = 0
    for seed in range(120):
        problem = random_overlaps(seed)
        optimum = least_height(problem)
        if not optimum:
            continue
        below = msgspec.structs.replace(problem, capacity=optimum - 1)
        assert cpsat.solve(below, workers=1, time_limit=HANG).status == "infeasible", seed
        assert find_overload(msgspec.structs.replace(problem, capacity=optimum)) is None, seed
        overload = find_overload(below)
        if overload is not None and len(overload.buffers) > 1:
            assert overload.load > optimum - 1, seed
            assert overload.start < overload.end, seed
            loaded += 1
    assert loaded > 20


def test_few_keep_away_from_their_earlier_offsets() -> None:
    for seed in range(60):
        problem = random_overlaps(seed)
        best = cpsat.solve(problem, workers=1, time_limit=HANG).plan
        if best is None:
            continue
        within = msgspec.structs.replace(problem, capacity=best.objective)
        outcome = cpsat.solve_closest(within, best.offsets, workers=1, time_limit=HANG)
        assert outcome.status == "optimal", seed
        assert outcome.plan is not None, seed
        assert outcome.plan.offsets == best.offsets, seed


def test_separations_are_rounded_up_to_what_divides_both_alignments() -> None:
    buffers = (
        Buffer(id="operand", lower=0, upper=2, size=96, alignment=16),
        Buffer(id="result", lower=1, upper=3, size=64, alignment=32, overlaps=(Overlap(operand="operand", distance=101),)),
    )
    problem = Problem(buffers=buffers)
    assert separations(problem) == {(1, 0): 16}
    assert load_bound(problem) == 96 + 16
    assert shared_bytes(problem, (16, 0)) == {(1, 0): 48}
    # One that is no less than the result's size is worth nothing.
    none = msgspec.structs.replace(buffers[1], overlaps=(Overlap(operand="operand", distance=145),))
    assert separations(Problem(buffers=(buffers[0], none))) == {}


def test_a_result_shares_no_more_than_its_size_with_all_of_its_operands() -> None:
    over = tuple(Overlap(operand=name, distance=0) for name in "ab")
    buffers = (
        *(Buffer(id=name, lower=0, upper=2, size=8) for name in "ab"),
        Buffer(id="c", lower=1, upper=3, size=10, overlaps=over),
    )
    problem = Problem(buffers=buffers)
    assert loads(problem) == {0: 16, 1: 16}
    assert loads(problem, [0, 2]) == {0: 8, 1: 10}
    assert least_height(problem) == 16


def test_files_have_the_pairs(tmp_path: Path) -> None:
    problem = parse(f"{CHAIN}d,3,9,100,c:=\n")
    assert [tuple(pair) for pair in problem.overlaps] == [(1, 0, 120), (2, 1, 80), (3, 2, None)]
    problem.save(tmp_path / "problem.json")
    assert stowplan.read(tmp_path / "problem.json") == problem
    plan = cpsat.solve(problem, workers=1, time_limit=HANG).plan
    assert plan is not None
    assert plan.objective == 120
    plan = msgspec.structs.replace(plan, buffers=problem.buffers)
    plan.save(tmp_path / "plan.csv")
    assert verify(problem, read_plan(tmp_path / "plan.csv", problem)).ok
    # Read as a problem, the offsets are fixed, and may overlap still.
    (tmp_path / "fixed.csv").write_text((tmp_path / "plan.csv").read_text())
    fixed = stowplan.read(tmp_path / "fixed.csv")
    assert find_overload(fixed) is None
    assert verify(fixed, plan_of(fixed, *plan.offsets)).ok
    # Names of tensors may have colons, but no spaces.
    assert parse('id,lower,upper,size,overlaps\n"x:0",0,2,4,\ny,1,3,4,x:0:4\n').overlaps == ((1, 0, 4),)
    spaced = parse("id,lower,upper,size\nx 0,0,2,4\ny,1,3,4\n").buffers
    spaced = (spaced[0], msgspec.structs.replace(spaced[1], overlaps=(Overlap(operand="x 0", distance=4),)))
    with pytest.raises(UsageError, match="the id 'x 0' has spaces"):
        plan_of(Problem(buffers=spaced), 0, 0).save(tmp_path / "spaced.csv")


def test_files_and_digests_without_are_as_they_were(tmp_path: Path) -> None:
    problem = random_problem(1)
    problem.save(tmp_path / "problem.json")
    assert "overlaps" not in (tmp_path / "problem.json").read_text()
    empty = tuple(msgspec.structs.replace(buffer, overlaps=()) for buffer in problem.buffers)
    assert Problem(buffers=empty).digest == problem.digest
    one = Problem(buffers=(Buffer(id="a", lower=0, upper=1, size=4),))
    assert one.digest == "c79daa62ef6507a813ab1a26e08ee3e5780274c7afd5234098a2f87ed41fc616"
    assert parse(CHAIN).digest != without_overlaps(parse(CHAIN)).digest


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,0,2,4,\nb,1,3,4,c:4\n", r"buffers\[1\] \(b\): found an overlap with 'c', expected the id of a buffer"),
        ("a,0,2,4,a:4\n", r"buffers\[0\] \(a\): found an overlap with 'a', expected another buffer"),
        ("a,0,2,4,\nb,1,3,4,a:4 a:5\n", "found an overlap with 'a' again, expected one of the two, once"),
        ("a,0,2,4,b:4\nb,0,2,4,a:4\n", "found an overlap with 'a' again"),
        (
            "a,0,3,4,\nb,1,2,4,a:4\n",
            r"found an overlap with 'a', which lives in \[0, 3\), expected one that \[1, 2\) begins in",
        ),
        ("a,0,1,4,\nb,1,2,4,a:4\n", r"which lives in \[0, 1\)"),
        ("a,1,2,4,\nb,0,3,4,a:4\n", r"which lives in \[1, 2\)"),
        ("a,0,2,4,\nb,1,3,4,a:9\n", "found an overlap with 'a' at distance 9, expected 0 to 8 bytes"),
        ("a,0,2,4,\nb,1,3,4,a:-1\n", "at distance -1, expected 0 to 8 bytes"),
        ("a,0,2,4,\nb,1,3,4,a\n", "line 3: found overlap 'a', expected ID:DISTANCE"),
        ("a,0,2,4,\nb,1,3,5,a:=\n", "found an overlap with 'a' of 4 bytes, expected one of 5"),
        ("a,0,1,4,\nb,1,3,4,a:=\n", r"which lives in \[0, 1\), expected one that \[1, 3\) begins in"),
        ("a,0,2,4,\nb,1,3,4,a:x\n", "line 3: found distance of an overlap 'x', expected a whole number"),
    ],
)
def test_what_is_no_overlap_is_said(rows: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(f"id,lower,upper,size,overlaps\n{rows}")


def test_lives_with_gaps_do_not_overlap() -> None:
    with pytest.raises(InputError, match="found an overlap with 'a' and gaps, expected lives without gaps"):
        parse("id,lower,upper,size,gaps,overlaps\na,0,4,4,1-2,\nb,3,5,4,,a:4\n")


def test_json_names_the_field() -> None:
    document = json.loads(msgspec.json.encode(parse(CHAIN)))
    document["buffers"][1]["overlaps"][0]["distance"] = "far"
    with pytest.raises(InputError, match="distance"):
        Problem.decode(json.dumps(document).encode())
