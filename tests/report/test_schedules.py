"""Schedules as drawings: rows, boxes, and ways of values that can be followed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stowplan
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.portfolio.modulo_scheduling.candidates import list_plan
from stowplan.report.modulo_scheduling_layout import HIGH, IDLE, WIDE, Layout, build_layout
from stowplan.report.page import Details
from stowplan.report.presenter import draw, presenter_for
from tests.paths import EXAMPLES
from tests.test_result import result as made_up

FIR, SAXPY = EXAMPLES / "fir.dfg.json", EXAMPLES / "saxpy.dfg.json"


@pytest.fixture(scope="module")
def solved() -> tuple[Problem, Plan]:
    problem = stowplan.read(FIR, "se", rules=["pass_through=yes"])
    result = stowplan.solve(problem, time_limit=20, candidates="cpsat", deterministic=True)
    assert isinstance(result.plan, Plan)
    return problem, result.plan


@pytest.fixture(scope="module")
def layout(solved: tuple[Problem, Plan]) -> Layout:
    return build_layout(*solved)


def test_tiles_that_do_nothing_share_a_low_row(solved: tuple[Problem, Plan], layout: Layout) -> None:
    problem, plan = solved
    shown = [tile for row in layout.rows for tile in range(row.first, row.last + 1)]
    assert shown == list(range(problem.machine.tiles))
    for row in layout.rows:
        busy = bool({*range(row.first, row.last + 1)} & {*plan.tiles})
        assert row.is_idle is not busy or (not row.is_idle and row.first == row.last)
        assert row.height == (IDLE if row.is_idle else 1)
    assert sum(row.is_idle for row in layout.rows) >= 1
    assert not any(left.is_idle and right.is_idle for left, right in zip(layout.rows, layout.rows[1:], strict=False))


def test_ways_lead_from_border_to_border(solved: tuple[Problem, Plan], layout: Layout) -> None:
    """An arrow behind a box would point at nothing."""
    problem, _ = solved
    assert len(layout.ways) == len(problem.edges)
    for edge, way in zip(problem.edges, layout.ways, strict=True):
        ends = ((edge.source, way.curves[0][0]), (edge.target, way.curves[-1][-1]))
        for number, (x, y) in ends:
            away = (abs(x - layout.boxes[number][0]) / (WIDE / 2), abs(y - layout.boxes[number][1]) / (HIGH / 2))
            assert max(away) == pytest.approx(1)
        for before, after in zip(way.curves, way.curves[1:], strict=False):
            assert before[-1] == after[0]
        points = np.array([point for curve in way.curves for point in (curve[0], curve[-1])])
        assert (points >= 0).all()
        assert (points <= (layout.width, layout.height)).all()
        assert way.distance == edge.distance


def test_values_go_around_what_stands_between(solved: tuple[Problem, Plan]) -> None:
    """Three in a column, the first feeds the last: the way must not run through the middle one."""
    from stowplan.report.modulo_scheduling_layout import _points_on, _Router

    router = _Router([(2, 1), (2, 2), (2, 3)], 4, 4)
    points = _points_on(router._leg((2.0, 1.0), 0, (2.0, 3.0), 2))
    inside = (np.abs(points[:, 0] - 2) < WIDE / 2) & (np.abs(points[:, 1] - 2) < HIGH / 2)
    assert not inside.any()


def test_arrows_are_drawn_over_boxes(solved: tuple[Problem, Plan], tmp_path: Path) -> None:
    problem, plan = solved
    schedule, instructions = presenter_for(problem).report_sections(problem, made_up(plan=plan), [], Details())
    body = schedule.body
    assert max(body.rindex(f'<path class="{kind}"') for kind in ("box", "start")) < body.index('<path class="way')
    assert body.count('<path class="way') == body.count('<path class="tip') == len(problem.edges)
    assert body.count("nothing here") == sum(row.is_idle for row in build_layout(problem, plan).rows)
    assert instructions.body.count("<tr>") == len(problem.instructions) + 1
    for name in "ab":
        draw(problem, [("plan", plan)], tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text()
    assert ">fir on se: " in text
    assert ">nothing here</text>" in text


def test_what_goes_over_the_asynchronous_fabric_is_dotted(tmp_path: Path) -> None:
    problem = stowplan.read(SAXPY, "se", rules=["memory=asynchronous"])
    plan = list_plan(problem, 0, lambda: False)
    assert plan is not None
    layout = build_layout(problem, plan)
    assert [way.is_sent for way in layout.ways] == [edge.asynchronous for edge in problem.edges]
    assert sum(way.is_sent for way in layout.ways) == 3
    presenter = presenter_for(problem)
    page = presenter.report_sections(problem, made_up(plan=plan), [], Details())[0].body
    assert page.count('class="way this sent"') == 3
    assert "load by mi" in page
    facts = dict(presenter.overview(problem, made_up(plan=plan)).facts)
    assert facts["Flows"] == "2, linked by 3 values over the asynchronous fabric"
    assert facts["Memory"] == "3 accesses an iteration, 4 ports; nominal 100 clocks"
    text = presenter.summarize(problem, plan)
    assert "2 flows linked by 3 values over the asynchronous fabric, 3 memory accesses" in text
    assert "x, from the asynchronous fabric" in text
    draw(problem, [("plan", plan)], tmp_path / "saxpy.svg")
    assert "over the asynchronous fabric" in (tmp_path / "saxpy.svg").read_text(encoding="utf-8")
