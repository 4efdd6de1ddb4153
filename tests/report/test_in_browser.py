"""The report of every kind, and what notebooks show of it, in a headless browser: no errors, nothing asked for, all drawn."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan import kinds
from stowplan.kernel.kind import check, kind_of
from stowplan.report.html import render_report
from stowplan.result import CandidateReport, HistoryEntry, Provenance, Result
from tests.kernel.recorder import Recorder
from tests.kernel.test_deterministic import OF_EACH_KIND
from tests.paths import EXAMPLES
from tests.report.browser import look_at, needs_browser

pytestmark = [pytest.mark.slow, needs_browser]

#: What the names of each kind's drawings begin with, and how many marks there are in it at least.
FIGURES = {
    "memory_mapping": {"Memory layout": 0, "Boxes of the layout": 5, "Bytes in use": 1, "Objective and bound": 4},
    "packing": {"Memory layout": 0, "Boxes of the layout": 11, "Bytes that live": 1, "Objective and bound": 4},
    "tier_placement": {
        "given: tiers of weights": 3,
        "given: tiers of outputs": 1,
        "compiler: tiers of weights": 3,
        "compiler: tiers of outputs": 1,
        "Objective and bound": 4,
    },
    "bank_mapping": {"given = propagation:": 2, "local:": 2, "Bytes on chip": 1, "q: dimension": 1, "Objective and bound": 4},
    "modulo_scheduling": {"Schedule: 7 instructions": 14, "Objective and bound": 4},
    "operator_order": {"Live bytes": 1, "Memory layout": 0, "Boxes of the layout": 40, "Objective and bound": 4},
    "rematerialization": {"Live bytes": 1, "Objective and bound": 4},
    "banked_packing": {"Memory layout": 0, "Boxes of the layout": 3, "Bytes that live": 1, "Objective and bound": 4},
    "llm_placement": {"CPU: ": 3, "CUDA0: 3": 10, "CUDA1: 2": 5, "Objective and bound": 4},
}


@cache
def given_result(name: str) -> tuple[Any, Result]:
    """A problem of a kind, and a result with a plan that costs nothing to make: no search runs."""
    file, target = OF_EACH_KIND[name]
    problem = stowplan.read(EXAMPLES / file, target=target)
    kind = kind_of(problem)
    plans = dict(kind.initial(problem))
    recorder = Recorder()
    for candidate in kind.makers(problem).values():
        kind.function(candidate.name)(problem, recorder)
    plans |= {source: plan for plan, source in recorder.plans}
    costs = {source: check(kind, problem, plan).objective or 0 for source, plan in plans.items()}
    source = min(costs, key=lambda each: costs[each])
    objective, worst, bound = costs[source], max(costs.values()), kind.bound(problem)
    return problem, Result(
        kind=name,
        plan=kind.finish(problem, plans[source], objective),
        objective=objective,
        bound=bound,
        status="feasible",
        stop_reason="time_limit",
        verified=True,
        baseline_name=kind.baseline,
        baseline=worst + 1,
        baselines={kind.baseline: worst + 1},
        history=(
            HistoryEntry(0.02, "first", worst + 1, None),
            HistoryEntry(0.5, "given", objective, bound),
        ),
        candidates=(
            CandidateReport("given", objective, None, 0.5, "finished"),
            CandidateReport("exact", None, bound, 2.0, "stopped", "no plan"),
        ),
        provenance=Provenance("given", 0, False, {"stowplan": "0"}, **_origin(kind.identity(problem))),
        seconds=2.0,
        unit=kind.unit,
        details=kind.facts(problem, plans[source], check(kind, problem, plans[source])),
        problem=problem,
    )


def _origin(identity: dict[str, str]) -> dict[str, str]:
    return {name: identity[name] for name in ("program", "target", "cost_model")} | {"problem_digest": identity["digest"]}


def test_every_kind_is_among_them() -> None:
    assert {*FIGURES} == {each.name for each in kinds.registered()}


@pytest.mark.parametrize("kind", FIGURES)
def test_the_report_of_every_kind(kind: str, tmp_path: Path) -> None:
    problem, result = given_result(kind)
    seen = look_at(render_report(problem, result), tmp_path)
    assert (seen.errors, seen.asked) == ([], [])
    for beginning, marks in FIGURES[kind].items():
        found = seen.figure(beginning)
        assert found, f"no figure {beginning!r} among {[each.name for each in seen.figures]}"
        for figure in found:
            assert figure.width > 100, figure
            assert figure.height > 10, figure
            assert figure.marks >= marks, figure
    for heading in (
        "Convergence",
        "Candidates",
        "Details",
        "Proven bound",
        "How to reproduce this result",
        f"Baseline {result.baseline_name}",
    ):
        assert heading in seen.text
    assert seen.too_wide <= 0


def test_a_narrow_window(tmp_path: Path) -> None:
    """Nothing is wider than the page, and tables scroll; also with names that are long."""
    problem, result = given_result("bank_mapping")
    tensors = tuple(msgspec.structs.replace(each, name=f"{each.name}/{'of_a_fusion.' * 9}") for each in problem.tensors)
    problem = msgspec.structs.replace(problem, tensors=tensors)
    result = msgspec.structs.replace(result, plan=msgspec.structs.replace(result.plan, problem=problem.digest))
    seen = look_at(render_report(problem, result), tmp_path, width=500)
    assert (seen.errors, seen.asked) == ([], [])
    assert seen.too_wide <= 0
    assert all(figure.width > 60 for figure in seen.figures)


def test_each_layout_has_a_zoom_of_its_own(tmp_path: Path) -> None:
    problem, result = given_result("banked_packing")
    script = """
      const last = [...document.querySelectorAll("section")].filter((each) => each.querySelector(".plans")).pop();
      last.querySelector('button[data-zoom="4"]').click();
      const zooms = [...document.querySelectorAll(".plans")].map((each) => each.style.getPropertyValue("--zoom") || "1");
      const pressed = [...document.querySelectorAll("button[aria-pressed=true]")].map((each) => each.dataset.zoom);
      document.querySelector("h1").textContent = `zooms ${zooms} pressed ${pressed}`;
    """
    seen = look_at(render_report(problem, result), tmp_path, script=script)
    assert seen.errors == []
    assert "zooms 1,4 pressed 1,4" in seen.text


def test_what_a_notebook_shows_of_every_kind(tmp_path: Path) -> None:
    """Results, plans and problems as cells of one page: no scripts, nothing loaded, every picture there."""
    results = [given_result(kind) for kind in FIGURES]
    cells = "<hr>".join(each._repr_html_() for problem, result in results for each in (result, result.plan, problem))
    assert "<script" not in cells
    seen = look_at(f"<!doctype html><html><head><meta charset=utf-8></head><body>{cells}</body></html>", tmp_path)
    assert (seen.errors, seen.asked) == ([], [])
    assert len(seen.pictures) == len(results)
    assert all(min(picture) > 100 for picture in seen.pictures)
    assert seen.text.count("verified") >= len(results)


def test_what_is_wrong_with_a_page_is_seen(tmp_path: Path) -> None:
    """The tests above could fail: an error in a script, an empty drawing, one of no size, something asked for."""
    problem, result = given_result("packing")
    page = render_report(problem, result)
    wrong = (
        "<script>undefined_name.call()</script><script>console.error('it broke')</script>"
        '<svg width="200" height="20" aria-label="empty"><path class="grid" d="M0 0h200"/></svg>'
        '<svg width="0" height="0" aria-label="flat"><rect width="5" height="5"/></svg>'
        '<img src="https://example.com/pixel.png"><div style="width:4000px">wide</div>'
    )
    before, _, after = page.rpartition("</body>")
    seen = look_at(before + wrong + "</body>" + after, tmp_path)
    assert any("undefined_name is not defined" in each for each in seen.errors)
    assert any("it broke" in each for each in seen.errors)
    assert any("example.com" in each for each in seen.asked)
    (empty,), (flat,) = seen.figure("empty"), seen.figure("flat")
    assert (empty.width, empty.marks) == (200, 0)
    assert (flat.width, flat.height) == (0, 0)
    assert seen.too_wide > 1000
