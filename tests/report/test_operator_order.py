"""Operator orders as text, pictures and sections of the report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan.errors import InputError
from stowplan.models.operator_order.structure import build
from stowplan.models.operator_order.verify import verify
from stowplan.models.packing.verify import verify as verify_packing
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.portfolio.operator_order.kind import KIND
from stowplan.portfolio.operator_order.orders import depth_first
from stowplan.report import operator_order
from stowplan.report.html import render_report
from stowplan.report.operator_order import build_profile
from stowplan.report.presenter import draw, presenter_for
from tests.models.operator_order.cases import random_problem
from tests.paths import EXAMPLES
from tests.patience import HANG

CELLS = stowplan.read(EXAMPLES / "cells.graph.json")


def given() -> object:
    return KIND.initial(CELLS)["given"]


@pytest.mark.parametrize("seed", range(30))
def test_profiles_and_layouts_are_what_the_verifier_sees(seed: int) -> None:
    problem = random_problem(seed)
    plan = KIND.initial(problem)["given"]
    profile = build_profile(problem, plan)
    assert profile.peak == verify(problem, plan).objective
    assert verify_packing(profile.lives.packing, profile.lives.offsets(plan)).ok
    assert profile.layout().height == plan.arena


def test_text_says_peak_and_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_order, "LINES", 3)
    plan = KIND.initial(CELLS)["given"]
    text = presenter_for(CELLS).summarize(CELLS, plan, others=[("other", plan)])
    assert text.startswith("cells: 46 operators, 47 tensors\n  peak   1,441,792 bytes")
    assert "cell0/stem (conv)" in text
    assert "other         peak 1,441,792, arena" in text
    assert text.endswith("… and 43 more")


def test_pictures(tmp_path: Path) -> None:
    first = KIND.initial(CELLS)["given"]
    structure = build(CELLS)
    second = Lives(CELLS, structure, depth_first(structure)).quick()
    draw(CELLS, [("given", first), ("again", first), ("dfs", second)], tmp_path / "order.svg")
    text = (tmp_path / "order.svg").read_text()
    assert ">given = again: peak 1.375 MiB, arena" in text
    assert ">dfs: peak" in text


def test_the_report_has_live_bytes_of_both_orders() -> None:
    result = stowplan.solve(CELLS, time_limit=HANG, candidates="sets")
    page = render_report(CELLS, result)
    for words in (
        "Live bytes over the order",
        "The line is given",
        "At the peak",
        "the proven bound",
        "free after their last reader",
    ):
        assert words in page


def test_plans_for_other_graphs_are_refused() -> None:
    plan = KIND.initial(CELLS)["given"]
    for changes, words in (
        ({"problem": "0"}, "another problem"),
        ({"order": (0,)}, "order of 1 entries"),
        ({"offsets": ()}, "found 0 offsets"),
    ):
        with pytest.raises(InputError, match=words):
            presenter_for(CELLS).check_fits(CELLS, msgspec.structs.replace(plan, **changes))
    with pytest.raises(InputError, match="another kind"):
        presenter_for(CELLS).check_fits(CELLS, object())


def test_lives_of_other_alignments_stay_apart() -> None:
    """Results take a place only where one offset suits both."""
    problem = random_problem(7)
    structure = build(problem)
    order = list(KIND.initial(problem)["given"].order)
    lives = Lives(problem, structure, order)
    assert verify(problem, lives.quick()).ok
