"""Packings as pictures, sections of the report and text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stowplan
from stowplan.errors import InputError, UsageError
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.portfolio.kind import kind_of
from stowplan.report.boxes import assign_colours
from stowplan.report.packing.picture import axis_top, heading, save_packing_picture
from stowplan.report.packing.scene import build_scene
from stowplan.report.packing.sections import layouts
from stowplan.report.packing.text import summarize_packing
from stowplan.report.page import Details
from stowplan.report.presenter import presenter_for
from tests.models.packing.cases import random_problem
from tests.paths import EXAMPLES
from tests.test_result import result as made_up


def stacked(problem: Problem) -> Plan:
    """Every buffer above those before it, whatever is fixed."""
    offsets, top = [], 0
    for buffer in problem.buffers:
        offsets.append(top)
        top += buffer.size
    return Plan(problem=problem.digest, objective=top, offsets=tuple(offsets))


def two(**changes: object) -> Problem:
    buffers = (
        Buffer(id="a", lower=0, upper=10, size=4, gaps=((3, 7),)),
        Buffer(id="b", lower=2, upper=8, size=6, offset=8),
    )
    return Problem(buffers=buffers, name="two", **changes)  # type: ignore[arg-type]


def test_a_buffer_with_gaps_has_several_boxes() -> None:
    problem = two()
    scene = build_scene(problem, Plan(problem=problem.digest, objective=14, offsets=(0, 8)))
    assert [(box.owner, box.left, box.right, box.bottom, box.size, box.fixed) for box in scene.boxes] == [
        (0, 0, 3, 0, 4, False),
        (0, 7, 10, 0, 4, False),
        (1, 2, 8, 8, 6, True),
    ]
    assert (scene.start, scene.end, scene.height, scene.peak) == (0, 10, 14, 10)
    assert dict(zip(scene.times.tolist(), scene.load.tolist(), strict=False)) == {0: 4, 2: 10, 3: 6, 7: 10, 8: 4}


@given(st.integers(0, 10**6))
def test_load_is_what_lives(seed: int) -> None:
    problem = random_problem(seed)
    scene = build_scene(problem, stacked(problem))
    assert scene.peak == max(scene.load.tolist(), default=0)
    for begin, load in zip(scene.times.tolist(), scene.load.tolist(), strict=False):
        assert load == sum(box.size for box in scene.boxes if box.left <= begin < box.right)


@pytest.mark.parametrize(("capacity", "top", "words"), [(None, 14, ""), (16, 16, "capacity 16 B"), (100, 14, "far above")])
def test_the_axis_ends_where_data_does(capacity: int | None, top: int, words: str) -> None:
    problem = two(capacity=capacity)
    scene = build_scene(problem, Plan(problem=problem.digest, objective=14, offsets=(0, 8)))
    assert axis_top([scene]) == top
    assert words in heading(problem, [scene])


def test_plans_that_do_not_fit() -> None:
    problem = two()
    for plan, expected in (
        (Plan(problem="0", objective=0, offsets=(0, 8)), "for another problem"),
        (Plan(problem=problem.digest, objective=0, offsets=(0,)), "found 1 offsets, expected one for each of the 2"),
        ("none", "found a str of another kind"),
    ):
        with pytest.raises(InputError, match=expected):
            build_scene(problem, plan)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_the_same_twice(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'stowplan[viz]'")
    problem = random_problem(7, most=30)
    plans = [("$one$", stacked(problem)), ("two", stacked(problem))]
    for name in "ab":
        save_packing_picture(problem, plans, tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    with pytest.raises(UsageError, match="found 0 plans"):
        save_packing_picture(problem, [], tmp_path / "c.png")
    if suffix == "svg":
        # The list of numbers is left out where every box has its name.
        save_packing_picture(two(), [("plan", stacked(two()))], tmp_path / "d.svg")
        assert "numbered boxes" not in (tmp_path / "d.svg").read_text()


def test_empty_problems_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'stowplan[viz]'")
    for problem in (Problem(buffers=()), Problem(buffers=(Buffer(id="a", lower=0, upper=1, size=0),))):
        save_packing_picture(problem, [("plan", stacked(problem))], tmp_path / "plan.png")
        assert "0 bytes high" in summarize_packing(problem, stacked(problem))


def test_the_page_knows_every_box() -> None:
    problem = two()
    scene = build_scene(problem, Plan(problem=problem.digest, objective=14, offsets=(0, 8)))
    details = Details()
    body = layouts([("plan", scene)], assign_colours([scene.boxes]), details).body
    told = json.loads(details.to_json())
    assert told["tensors"] == {"0": ["a", "4 B"], "1": ["b", "6 B"]}
    assert sorted(told["plans"][0]) == [[0, 3, "0 B", ""], [2, 8, "8 B", "fixed"], [7, 10, "0 B", ""]]
    assert len(re.findall("data-i=", body)) == 3
    assert body.count('<path class="fixed"') == 1


def test_text() -> None:
    problem = two(capacity=12)
    plan = Plan(problem=problem.digest, objective=14, offsets=(0, 8))
    lines = summarize_packing(problem, plan, [("other", plan)]).splitlines()
    assert lines[0] == "two: 2 buffers, 14 bytes high"
    assert lines[1].endswith("10 bytes at most; the height is 40.0% above that")
    assert lines[2].endswith("12 bytes (does NOT fit)")
    assert lines[3].split() == ["other", "14", "bytes", "high"]
    assert lines[5].split() == ["0", "4", "4", "B", "[0,", "10)", "a", "(1", "gaps)"]
    assert lines[6].split() == ["8", "14", "6", "B", "[2,", "8)", "b", "(fixed)"]
    assert "… and 1 more" in summarize_packing(problem, plan, top=1)


def test_a_bank_with_nothing_in_it_has_no_layout() -> None:
    """The table says that it is empty; axes without boxes would say nothing."""
    problem = stowplan.read(EXAMPLES / "banks.json")
    plan = next(iter(kind_of(problem).initial(problem).values()))
    used = {problem.banks[bank].name for bank in plan.banks}
    found = presenter_for(problem).report_sections(problem, made_up(plan=plan), [], Details())
    headings = [section.heading for section in found]
    assert headings == ["Banks", *(f"Layout of {bank.name}" for bank in problem.banks if bank.name in used)]
    assert len(used) < len(problem.banks)
