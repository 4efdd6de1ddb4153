"""The HTML report: one self-contained page about a result.

The page loads nothing from the network (its content security policy forbids it), follows the reader's light or dark scheme, and
does not need matplotlib. It can be read without its script, which only adds descriptions under the pointer, and a zoom.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Literal

from stowplan import files
from stowplan.report.curves import convergence_plot
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.page import Details, cards_list, facts_list, table, warnings_box, whole_page
from stowplan.report.presenter import Labelled, Presenter, presenter_for
from stowplan.report.text import format_values
from stowplan.result import CandidateReport, Result, certified, describe_gain
from stowplan.result_text import format_gap, format_ratio
from stowplan.units import PS

#: Maximum number of entries in the table of the history, half of them from its beginning and half from its end.
MAX_HISTORY = 200


def write_report(
    problem: object,
    result: Result,
    path: str | Path,
    *,
    compare: Labelled | None = None,
    time: Literal["steps", "seconds"] = "steps",
) -> None:
    """Writes the report on ``result`` to ``path``. Equal results give equal bytes.

    Parameters
    ----------
    problem
        The problem that was solved. Its kind determines the sections besides those about the search.
    compare
        Name and plan to draw next to the result's plan, such as the plan of a compiler or of a baseline. By default, the plans
        with which plans of this kind are usually compared.
    time
        Time axis for layouts of compiled programs: logical steps, or simulated time.

    Raises
    ------
    InputError
        A plan is of another kind or for another problem, or the file cannot be written.
    VerificationError
        A plan is not valid, and only valid plans of this kind are shown.
    """
    files.write_atomic(path, render_report(problem, result, compare=compare, time=time).encode("utf-8", errors="replace"))


def render_report(
    problem: object,
    result: Result,
    *,
    compare: Labelled | None = None,
    time: Literal["steps", "seconds"] = "steps",
) -> str:
    """The text of the page that :func:`write_report` writes. It has the same parameters and raises the same errors."""
    presenter = presenter_for(problem)
    details = Details()
    others = [compare] if compare is not None else [] if result.plan is None else presenter.references(problem)
    kind_sections = presenter.report_sections(problem, result, others, details, seconds=time == "seconds")
    sections = [
        _summary(problem, result, presenter),
        _warnings(result),
        *(section.html() for section in kind_sections if not section.follows_search),
        _convergence(result, presenter),
        _candidates(result, presenter),
        *(section.html() for section in kind_sections if section.follows_search),
        _details(result),
        _provenance(result),
    ]
    title = f"{result.provenance.program or 'program'} on {result.provenance.target}"
    return whole_page(title, sections, details)


def _summary(problem: object, result: Result, presenter: Presenter) -> str:
    """The figures at the top of the page."""
    shown = format_values((result.objective, result.bound, *result.baselines.values(), result.baseline), result.unit)
    mark, word = ("good", "verified") if result.verified else ("bad", "not verified")
    cards: list[tuple[str, str, str]] = []
    if result.objective is None:
        cards.append(("Objective", "no plan", ""))
    else:
        by = f'<span class="{mark}">{word}</span>, by {escape(result.provenance.candidate)}'
        cards.append(("Objective", shown[result.objective], by))
    if result.speedup is not None and result.unit.has_ratios:
        what = "Speedup" if result.unit == PS else "Ratio"
        cards.append(
            (f"{what} over {result.baseline_name}", f"{format_ratio(result.speedup)}×", escape(shown[result.baseline]))
        )
    gap = "" if result.gap is None or not result.unit.has_ratios else f"gap {format_gap(result.gap)}"
    gap = "no gap without a plan" if result.objective is None else gap
    cards.append(("Proven bound", shown[result.bound], escape(gap) if result.bound is not None else "none proven"))
    if result.certificate is not None:
        written = format_values((result.objective, result.bound, result.certified_bound), result.unit)
        name, _, note = certified(result, written).partition("  ")
        cards.append(("Certified bound", name, escape(note)))
    overview = presenter.overview(problem, result)
    cards += [(name, value, escape(note)) for name, value, note in overview.cards]
    cards.append(("Status", result.status.replace("_", " "), result.stopped.replace("_", " ")))
    facts: list[tuple[str, str]] = [("Kind", result.kind.replace("_", " ")), ("Cost model", result.provenance.cost_model)]
    facts += overview.facts
    for name, value in result.baselines.items():
        ratio = result.speedup_over(name)
        faster = (
            ""
            if ratio is None or not result.unit.has_ratios
            else f", {'speedup' if result.unit == PS else 'ratio'} {format_ratio(ratio)}"
        )
        facts.append((f"Baseline {name}", shown[value] + faster))
    if "baseline" in result.provenance.options and (gain := describe_gain(result)):
        facts.append(("Gain", gain))
    return cards_list(cards) + facts_list(facts)


def _warnings(result: Result) -> str:
    """The warnings, and the reason if there is no plan."""
    why = result.details.get("explanation")
    explained = f"<p><strong>No plan:</strong> {escape(str(why))}</p>" if why else ""
    explained += f"<p><strong>Assuming:</strong> {escape('; '.join(result.assumed))}</p>" if result.assumed else ""
    if not result.warnings:
        return f'<section class="warnings" aria-label="Explanation">{explained}</section>' if explained else ""
    return explained + warnings_box(result.warnings)


def _convergence(result: Result, presenter: Presenter) -> str:
    """The convergence plot, and its data as a table."""
    plot = convergence_plot(result.history, result.seconds, result.unit, result.baselines, result.baseline)
    if plot is None:
        return ""
    entries = list(result.history)
    shown = entries if len(entries) <= MAX_HISTORY else entries[: MAX_HISTORY // 2] + entries[-MAX_HISTORY // 2 :]
    texts = format_values((value for entry in shown for value in (entry.objective, entry.bound)), result.unit)
    rows = [(f"{entry.seconds:.2f}", entry.source, texts[entry.objective], texts[entry.bound]) for entry in shown]
    omitted = f", {len(entries) - len(shown):,} in the middle left out" if len(shown) < len(entries) else ""
    entries_table = table(f"{len(entries):,} improvements{omitted}", ("Seconds:r", "Source", "Objective:r", "Bound:r"), rows)
    return (
        f"<section><h2>Convergence</h2>\n{legend_html(plot.legend)}{plot_html(plot, 'Convergence')}\n"
        f"<details><summary>As a table</summary>{entries_table}</details></section>"
    )


def _candidates(result: Result, presenter: Presenter) -> str:
    """The table of candidates."""
    if not result.candidates:
        return ""

    texts = format_values(
        (value for candidate in result.candidates for value in (candidate.objective, candidate.bound)), result.unit
    )

    def row(candidate: CandidateReport) -> tuple[str, ...]:
        verified = {"rejected": "no"}.get(candidate.outcome, "–" if candidate.objective is None else "yes")
        objective, bound, seconds = texts[candidate.objective], texts[candidate.bound], f"{candidate.seconds:.2f}"
        return candidate.name, objective, bound, seconds, candidate.outcome, verified, candidate.note

    # Candidates with the best plans come first, and those without a plan last. Otherwise the order in which they started is
    # kept.
    ordered = sorted(result.candidates, key=lambda candidate: (candidate.objective is None, candidate.objective or 0))
    rows = [row(candidate) for candidate in ordered]
    best = [index for index, candidate in enumerate(ordered) if candidate.name == result.provenance.candidate][:1]
    head = ("Candidate:n", "Objective:r", "Bound:r", "Seconds:r", "Outcome", "Verified", "Note:o")
    return f"<section><h2>Candidates</h2>\n{table('Best objective first', head, rows, best)}</section>"


def _details(result: Result) -> str:
    """The section with the kind's facts (:attr:`Result.details`)."""
    if not result.details:
        return ""
    facts = [(name.replace("_", " "), _as_text(value)) for name, value in result.details.items() if name != "snapshot"]
    return f"<section><h2>Details</h2>\n{facts_list(facts)}</section>"


def _as_text(value: object) -> str:
    """A detail as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(part)}" for name, part in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_as_text, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


def _provenance(result: Result) -> str:
    """The provenance of the result."""
    origin = result.provenance
    facts = [
        ("Candidate", origin.candidate),
        ("Seed", str(origin.seed)),
        ("Deterministic", "yes" if origin.deterministic else "no"),
        ("Problem", origin.problem_digest[:16]),
        *([("Checkpoint", origin.checkpoint)] if origin.checkpoint else []),
        *([("Checkpoint's training", origin.checkpoint_training)] if origin.checkpoint_training else []),
        *(("Learned guide", guide) for guide in origin.guides),
        *((f"Option {name}", _as_text(value)) for name, value in origin.options.items()),
        *((f"Version of {name}", value) for name, value in origin.versions.items()),
    ]
    return f"<section><h2>How to reproduce this result</h2>\n{facts_list(facts)}</section>"
