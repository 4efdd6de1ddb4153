"""CSV files: what is read, what is refused and where, and plans written back."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowplan.errors import InputError, UsageError
from stowplan.models.packing import plan as plans
from stowplan.models.packing import problem as problems
from stowplan.models.packing.csv_files import parse, read_plan, read_problem
from stowplan.models.packing.plan import Plan


def test_all_columns() -> None:
    text = "size,id,lower,upper,alignment,gaps,offset,hint\n8,a,-3,9,4,-2-0 5-9,16,\n\n4,b,0,2,,,,7\n"
    first, second = parse(text, capacity=32).buffers
    assert (first.id, first.lower, first.upper, first.size, first.alignment) == ("a", -3, 9, 8, 4)
    assert (first.gaps, first.offset, first.pieces) == (((-2, 0), (5, 9)), 16, ((-3, -2), (0, 5)))
    assert (second.alignment, second.gaps, second.offset, second.hint) == (1, (), None, 7)


@pytest.mark.parametrize("head", ["buffer,start,upper,size,hint", "buffer_id,begin,upper,size,hint"])
def test_names_of_columns_that_other_tools_use(head: str) -> None:
    first, second = parse(f"{head}\na,0,2,8,16\nb,0,2,8,-1\n").buffers
    assert (first.id, first.lower, first.hint, second.hint) == ("a", 0, 16, None)


def test_end_is_inclusive() -> None:
    (buffer,) = parse("id,lower,end,size,gaps\nx,2,6,1,3-4\n").buffers
    assert (buffer.upper, buffer.gaps) == (7, ((3, 5),))


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "line 1", "id,lower,upper,size"),
        ("id,lower,upper\n", "line 1", "no column 'size'"),
        ("id,lower,size\n", "line 1", "upper and end"),
        ("id,lower,upper,end,size\n", "line 1", "upper and end"),
        ("id,lower,upper,size,colour\n", "line 1", "'colour'"),
        ("id,id,lower,upper,size\n", "line 1", "twice"),
        ("id,buffer,lower,upper,size\n", "line 1", "'id' twice"),
        ("id,lower,upper,size\na,0,1\n", "line 2", "3 values, expected 4"),
        ("id,lower,upper,size\na,0,1,1.5\n", "line 2", "size '1.5'"),
        ("id,lower,upper,size\na,0,1,1_0\n", "line 2", "size '1_0'"),
        ("id,lower,upper,size\na,0,1,-1\n", "line 2", "size -1"),
        ("id,lower,upper,size\na,0,1,99999999999999999999\n", "line 2", "size 99999999999999999999"),
        ("id,lower,upper,size\na,0,1,1\nb,3,3,1\n", "line 3", "more than lower"),
        ("id,lower,upper,size\na,0,1,1\na,0,1,1\n", "line 3", "of line 2 again"),
        ("id,lower,upper,size\n,0,1,1\n", "line 2", "empty id"),
        ("id,lower,upper,size,alignment\na,0,1,1,0\n", "line 2", "alignment 0"),
        ("id,lower,upper,size,offset\na,0,1,1,-4\n", "line 2", "offset -4"),
        ("id,lower,upper,size,alignment,offset\na,0,1,1,8,4\n", "line 2", "multiple of 8"),
        ("id,lower,upper,size,gaps\na,0,9,1,3-12\n", "line 2", "gap 3-12"),
        ("id,lower,upper,size,gaps\na,0,9,1,4-6 5-7\n", "line 2", "gap 5-7"),
        ("id,lower,upper,size,gaps\na,0,9,1,4-6@2:13\n", "line 2", "not supported"),
        ("id,lower,upper,size,gaps\na,0,9,1,0-4 4-9\n", "line 2", "whole life"),
        ("id,lower,upper,size,gaps\na,0,9,1,4\n", "line 2", "START-END"),
    ],
)
def test_what_is_refused(text: str, place: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_problem(path)
    assert str(caught.value).startswith(f"{path}: {place}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_that_overflow_together() -> None:
    big = 1 << 60
    with pytest.raises(InputError, match="add up to"):
        parse(f"id,lower,upper,size\na,0,1,{big}\nb,1,2,{big}\n")


def test_plans_and_problems_come_back(tmp_path: Path) -> None:
    problem = parse("id,lower,upper,size,alignment,gaps\na,0,4,8,4,1-2\nb,3,6,4,1,\n", capacity=16, source="two.csv")
    problem.save(tmp_path / "problem.json")
    assert problems.Problem.load(tmp_path / "problem.json") == problem
    plan = Plan(problem=problem.digest, objective=12, offsets=(0, 8), buffers=problem.buffers, name="two")
    plan.save(tmp_path / "plan.csv")
    rows = (tmp_path / "plan.csv").read_text()
    assert rows == "id,lower,upper,size,alignment,gaps,offset\na,0,4,8,4,1-2,0\nb,3,6,4,1,,8\n"
    assert read_plan(tmp_path / "plan.csv", problem) == plan
    plan.save(tmp_path / "plan.json")
    assert plans.Plan.load(tmp_path / "plan.json") == plan
    with pytest.raises(UsageError, match="without its buffers"):
        Plan(problem=problem.digest, objective=12, offsets=(0, 8)).save(tmp_path / "bare.csv")
