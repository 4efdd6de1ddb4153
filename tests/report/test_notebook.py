"""What notebooks show."""

from __future__ import annotations

import base64
import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest

import stowplan
from stowplan.models.packing.problem import Buffer, Problem
from stowplan.report.notebook import document_html, result_html
from stowplan.result import CandidateReport, Result
from tests.test_result import result as made_up

HOSTILE = '<script>alert("x")</script>&amp;'


class Tags(HTMLParser):
    """Tags that were opened and never closed."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.every: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.every.add(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def problem() -> Problem:
    return Problem(
        buffers=(Buffer(id=HOSTILE, lower=0, upper=4, size=3), Buffer(id="b", lower=2, upper=5, size=2)), name=HOSTILE
    )


@pytest.fixture(scope="module")
def solved() -> Result:
    found: Result = stowplan.solve(problem(), candidates="heuristic", time_limit=20)
    return found


def test_a_result_has_its_figures_and_candidates(solved: Result) -> None:
    text = result_html(solved)
    assert not Tags(text).open
    assert "script" not in Tags(text).every
    assert "optimal" in text
    assert "0.00%" in text
    assert all(f">{candidate.name}<" in text for candidate in solved.candidates)
    assert "http" not in text


def test_the_plan_is_drawn_inside_the_page_without_matplotlib(solved: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', solved._repr_html_())
    assert found is not None
    picture = base64.b64decode(found[1]).decode()
    assert picture.startswith("<?xml")
    # Names are text there too.
    assert ">&lt;script&gt;" in picture
    assert "<script" not in picture
    ElementTree.fromstring(picture)


def test_a_result_without_its_problem_has_no_picture(solved: Result) -> None:
    assert "<img" not in msgspec.structs.replace(solved, problem=None)._repr_html_()


def test_everything_is_escaped() -> None:
    told = made_up(
        candidates=(CandidateReport(HOSTILE, 80, None, 1.5, "failed", HOSTILE),),
        warnings=(HOSTILE,),
        baselines={HOSTILE: 90},
        details={"explanation": HOSTILE},
    )
    text = told._repr_html_()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 5
    assert not Tags(text).open


def test_no_plan_and_nothing_known() -> None:
    text = made_up(plan=None, objective=None, bound=None, status="no_plan", candidates=(), baselines={}, baseline=None)
    assert "no_plan" in text._repr_html_()


def test_problems_and_plans_are_tables_of_their_fields(solved: Result) -> None:
    text = solved.plan._repr_html_()
    assert "stowplan.packing.plan" in text
    assert "2 entries" in text
    shown = document_html(problem())
    assert "<script" not in shown
    assert not Tags(shown).open


def test_the_problem_stays_out_of_what_is_written(solved: Result) -> None:
    assert solved.problem == problem()
    assert "problem" not in solved.to_dict()
