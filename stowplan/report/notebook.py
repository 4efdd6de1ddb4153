"""HTML of results, plans and problems for notebooks: small tables without external resources, and the kind's picture of a plan.
Nothing in this module raises an error of its own."""

from __future__ import annotations

import base64
from collections.abc import Sized
from html import escape

import msgspec

from stowplan.document import Document
from stowplan.errors import StowplanError
from stowplan.log import cut
from stowplan.report.figures import svg_file
from stowplan.report.page import table, warnings_box
from stowplan.report.paper import lay_out
from stowplan.report.presenter import Presenter, presenter_for
from stowplan.report.text import format_values
from stowplan.result import Result, certified
from stowplan.result_text import format_gap

#: Maximum number of candidates in a table.
MAX_CANDIDATES = 30

_NONE = "–"


def result_html(result: Result) -> str:
    """HTML of a result: its figures, candidates and warnings, and a picture of the plan if the result has its problem."""
    presenter = Presenter() if result.problem is None else presenter_for(result.problem)
    values = [result.objective, result.bound, result.certified_bound, *result.baselines.values()]
    values += [value for candidate in result.candidates for value in (candidate.objective, candidate.bound)]
    shown = format_values(values, result.unit)
    origin = result.provenance
    rows = [
        ("status", f"{result.status}, {result.stopped}"),
        ("objective", f"{shown[result.objective]}{f', by {origin.candidate}' if origin.candidate else ''}"),
        ("verified", "yes" if result.verified else "no"),
        ("bound", shown[result.bound]),
        ("gap", _NONE if result.gap is None or not result.unit.has_ratios else format_gap(result.gap)),
        *([] if result.certificate is None else [("certified", certified(result, format_values(values, result.unit)))]),
        *((f"baseline {name}", shown[value]) for name, value in result.baselines.items()),
    ]
    if "explanation" in result.details:
        rows.append(("because", cut(str(result.details["explanation"]))))
    rows += [("assuming", cut(assumption)) for assumption in result.assumed]
    ordered = sorted(result.candidates, key=lambda candidate: (candidate.objective is None, candidate.objective or 0))[
        :MAX_CANDIDATES
    ]
    candidates = [
        (
            candidate.name,
            shown[candidate.objective],
            shown[candidate.bound],
            f"{candidate.seconds:.2f}",
            candidate.outcome,
            cut(candidate.note),
        )
        for candidate in ordered
    ]
    head = ("Candidate", "Objective:r", "Bound:r", "Seconds:r", "Outcome", "Note:o")
    parts = [
        table(
            f"{origin.program or result.kind} on {origin.target}" if origin.target else origin.program or result.kind,
            ("", ""),
            rows,
        )
    ]
    if candidates:
        parts.append(table("Candidates, best objective first", head, candidates))
    parts += [warnings_box([cut(warning) for warning in result.warnings]), _picture(result, presenter)]
    return f'<div class="stowplan">{"".join(parts)}</div>'


def document_html(document: Document) -> str:
    """HTML of a problem or plan: a table of its fields, in which long fields are replaced by their number of entries."""
    rows = [(name, _brief(getattr(document, name))) for name in document.__struct_fields__ if name not in ("format", "version")]
    return f'<div class="stowplan">{table(str(getattr(document, "format", type(document).__name__)), ("", ""), rows)}</div>'


def _brief(value: object) -> str:
    """A field in a few words."""
    if value is None or value == "":
        return _NONE
    if isinstance(value, msgspec.Struct):
        return cut(repr(value))
    if isinstance(value, Sized) and not isinstance(value, str):
        return f"{len(value):,} entries" if len(value) != 1 else "1 entry"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else cut(str(value))


def _picture(result: Result, presenter: Presenter) -> str:
    """The plan as an embedded SVG; empty if there is nothing to draw."""
    if result.plan is None or result.problem is None:
        return ""
    try:
        presenter.check_drawable(result.problem)
        picture = presenter.picture(result.problem, [(result.provenance.candidate, result.plan)])
    except StowplanError as error:
        # Plans of some kinds are not drawn; the figures are still worth showing.
        return f"<p>{escape(cut(f'no picture: {error}'))}</p>"
    data = base64.b64encode(svg_file(lay_out(picture)).encode()).decode()
    return f'<img alt="the plan" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
