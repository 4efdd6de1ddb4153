"""Packings as pictures, sections of the report and text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stowplan
from stowplan.errors import InputError, UsageError
from stowplan.kernel.kind import kind_of
from stowplan.models.packing.csv_files import parse
from stowplan.models.packing.overlaps import without_overlaps
from stowplan.models.packing.plan import Plan, make_plan
from stowplan.models.packing.problem import Buffer, Overlap, Problem
from stowplan.report import packing
from stowplan.report.boxes import assign_colours
from stowplan.report.packing import axis_top, build_layout, heading, layouts_section, plots
from stowplan.report.page import Details
from stowplan.report.presenter import Labelled, draw, presenter_for
from stowplan.report.scene import HATCH, Line, hatch
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
    layout = build_layout(problem, Plan(problem=problem.digest, objective=14, offsets=(0, 8)))
    assert [(box.owner, box.left, box.right, box.bottom, box.size, box.fixed) for box in layout.boxes] == [
        (0, 0, 3, 0, 4, False),
        (0, 7, 10, 0, 4, False),
        (1, 2, 8, 8, 6, True),
    ]
    assert (layout.start, layout.end, layout.height, layout.peak) == (0, 10, 14, 10)
    assert dict(zip(layout.times.tolist(), layout.load.tolist(), strict=False)) == {0: 4, 2: 10, 3: 6, 7: 10, 8: 4}


@given(st.integers(0, 10**6))
def test_load_is_what_lives(seed: int) -> None:
    problem = random_problem(seed)
    layout = build_layout(problem, stacked(problem))
    assert layout.peak == max(layout.load.tolist(), default=0)
    for begin, load in zip(layout.times.tolist(), layout.load.tolist(), strict=False):
        assert load == sum(box.size for box in layout.boxes if box.left <= begin < box.right)


@pytest.mark.parametrize(("capacity", "top", "words"), [(None, 14, ""), (16, 16, "capacity 16 B"), (100, 14, "far above")])
def test_the_axis_ends_where_data_does(capacity: int | None, top: int, words: str) -> None:
    problem = two(capacity=capacity)
    layout = build_layout(problem, Plan(problem=problem.digest, objective=14, offsets=(0, 8)))
    assert axis_top([layout]) == top
    assert words in heading(problem, [layout])


def test_plans_that_do_not_fit() -> None:
    problem = two()
    for plan, expected in (
        (Plan(problem="0", objective=0, offsets=(0, 8)), "for another problem"),
        (Plan(problem=problem.digest, objective=0, offsets=(0,)), "found 1 offsets, expected one for each of the 2"),
        ("none", "found a str of another kind"),
    ):
        with pytest.raises(InputError, match=expected):
            presenter_for(problem).check_fits(problem, plan)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_the_same_twice(tmp_path: Path, suffix: str) -> None:
    if suffix == "png":
        pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[viz]'")
    problem = random_problem(7, most=30)
    plans = [("$one$", stacked(problem)), ("two", stacked(problem))]
    for name in "ab":
        draw(problem, plans, tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    with pytest.raises(UsageError, match="found 0 plans"):
        draw(problem, [], tmp_path / "c.svg")
    if suffix == "svg":
        # The list of numbers is left out where every box has its name.
        draw(two(), [("plan", stacked(two()))], tmp_path / "d.svg")
        assert "numbered boxes" not in (tmp_path / "d.svg").read_text()


def test_empty_problems_are_drawn(tmp_path: Path) -> None:
    for problem in (Problem(buffers=()), Problem(buffers=(Buffer(id="a", lower=0, upper=1, size=0),))):
        draw(problem, [("plan", stacked(problem))], tmp_path / "plan.svg")
        assert "0 bytes high" in summarize(problem, stacked(problem))


def test_the_page_knows_every_box() -> None:
    problem = two()
    layout = build_layout(problem, Plan(problem=problem.digest, objective=14, offsets=(0, 8)))
    details = Details()
    body = layouts_section([layout], plots([("plan", layout)], assign_colours([layout.boxes])), details).body
    told = json.loads(details.to_json())
    assert told["tensors"] == {"0": ["a", "4 B"], "1": ["b", "6 B"]}
    assert sorted(told["plans"][0]) == [[0, 3, "0 B", ""], [2, 8, "8 B", "fixed"], [7, 10, "0 B", ""]]
    assert len(re.findall("data-i=", body)) == 3
    assert body.count('<path class="fixed"') == 1


def summarize(problem: Problem, plan: Plan, others: Sequence[Labelled] = ()) -> str:
    return presenter_for(problem).summarize(problem, plan, others=others)


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = two(capacity=12)
    plan = Plan(problem=problem.digest, objective=14, offsets=(0, 8))
    lines = summarize(problem, plan, [("other", plan)]).splitlines()
    assert lines[0] == "two: 2 buffers, 14 bytes high"
    assert lines[1].endswith("10 bytes at most; the height is 40.0% above that")
    assert lines[2].endswith("12 bytes (does NOT fit)")
    assert lines[3].split() == ["other", "14", "bytes", "high"]
    assert lines[5].split() == ["0", "4", "4", "B", "[0,", "10)", "a", "(1", "gaps)"]
    assert lines[6].split() == ["8", "14", "6", "B", "[2,", "8)", "b", "(fixed)"]
    monkeypatch.setattr(packing, "LINES", 1)
    assert "… and 1 more" in summarize(problem, plan)


def test_a_bank_with_nothing_in_it_has_no_layout() -> None:
    """The table says that it is empty; axes without boxes would say nothing."""
    problem = stowplan.read(EXAMPLES / "banks.json")
    plan = next(iter(kind_of(problem).initial(problem).values()))
    used = {problem.banks[bank].name for bank in plan.banks}
    found = presenter_for(problem).report_sections(problem, made_up(plan=plan), [], Details())
    headings = [section.heading for section in found]
    assert headings == ["Banks", *(f"Layout of {bank.name}" for bank in problem.banks if bank.name in used)]
    assert len(used) < len(problem.banks)


def test_shared_bytes_are_hatched(tmp_path: Path) -> None:
    problem = parse("id,lower,upper,size,overlaps\na,0,2,100,\nb,1,3,80,a:120\nc,2,4,100,b:80\n")
    plans = [("plan", Plan(problem=problem.digest, objective=120, offsets=(20, 0, 0)))]
    draw(problem, plans, tmp_path / "shared.svg")
    svg = (tmp_path / "shared.svg").read_text()
    assert "shared bytes" in svg
    draw(without_overlaps(problem), [("plan", stacked(without_overlaps(problem)))], tmp_path / "apart.svg")
    assert "shared bytes" not in (tmp_path / "apart.svg").read_text()
    # b and a share the bytes from 20 to 80 while time goes from 1 to 2.
    (panel, _) = plots([("plan", build_layout(problem, plans[0][1]))], {0: 0, 1: 1, 2: 2})[0].panels
    lines = [mark.points for mark in panel.marks if isinstance(mark, Line) and mark.style == HATCH]
    inside = [points for points in lines if points[0][0] < 2]
    assert len(inside) > 20
    for points in inside:
        assert all(1 <= x <= 2 and 20 - 1e-6 <= y <= 80 + 1e-6 for x, y in points), points
        assert points[0][0] < points[1][0]
        assert points[0][1] < points[1][1]


def test_a_hatching_has_a_line_however_small_the_rectangle_is() -> None:
    ((begin, end),) = [line.points for line in hatch(1.0, 1.01, 3.0, 3.01, (7, 7))]
    assert 1.0 <= begin[0] < end[0] <= 1.01
    assert 3.0 - 1e-9 <= begin[1] < end[1] <= 3.01 + 1e-9


def test_bytes_that_several_buffers_share_count_once() -> None:
    chain = Problem(
        buffers=(
            Buffer(id="a", lower=0, upper=6, size=8),
            Buffer(id="b", lower=2, upper=7, size=8, overlaps=(Overlap(operand="a", distance=None),)),
            Buffer(
                id="c",
                lower=3,
                upper=8,
                size=8,
                overlaps=(Overlap(operand="a", distance=None), Overlap(operand="b", distance=None)),
            ),
        )
    )
    assert set(build_layout(chain, make_plan(chain, (0, 0, 0))).load.tolist()) == {8}
    # The result ends first, so that its operand's bytes are its own again.
    early = Problem(
        buffers=(
            Buffer(id="a", lower=0, upper=10, size=8),
            Buffer(id="r", lower=2, upper=5, size=8, overlaps=(Overlap(operand="a", distance=None),)),
            Buffer(id="c", lower=5, upper=10, size=8),
        )
    )
    layout = build_layout(early, make_plan(early, (0, 0, 8)))
    assert layout.times.tolist() == [0, 2, 5, 10]
    assert layout.load.tolist() == [8, 8, 16]
