"""The report: one self-contained HTML page about a result.

The page loads nothing from the network (its own policy forbids it), follows the reader's light or dark scheme, needs no
matplotlib, and can be read without its script, which only adds details on pointing, and zoom.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from stowplan import files
from stowplan.hardware.nnp_i.compiler import compiler_plan
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.tier_placement.plan import Plan as TierPlan
from stowplan.models.tier_placement.problem import Problem as TierProblem
from stowplan.report.analysis import analyse_steps, analyse_tensors
from stowplan.report.colours import PALETTE, assign_colours
from stowplan.report.plots import Details, convergence_plot, plan_plot
from stowplan.report.scene import Scene, TimeAxis, build_scene
from stowplan.report.tier_html import bands
from stowplan.report.tier_html import tables as tier_tables
from stowplan.report.units import format_bytes, format_value
from stowplan.result import CandidateReport, Result, format_ps

#: Rows of the tables of tensors and steps.
TOP = 20
#: History as a table: first and last entries.
MOST_HISTORY = 200

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def write_report(
    problem: object,
    result: Result,
    path: str | Path,
    *,
    compare: tuple[str, Plan] | None = None,
    time: TimeAxis = "steps",
) -> None:
    """Write the report on ``result`` to ``path``; the same result gives the same bytes.

    Parameters
    ----------
    problem
        What was solved. The layouts and the tables of tensors and steps are for memory mapping; the report on another kind
        has the rest.
    compare
        Name and plan to draw beside the result's: a production compiler's, or a baseline's.
    time
        Axis of the layouts: logical steps, or simulated time.

    Raises
    ------
    InputError
        If a plan is for another problem, or the file cannot be written.
    """
    files.write_atomic(path, render_report(problem, result, compare=compare, time=time).encode("utf-8", errors="replace"))


def render_report(problem: object, result: Result, *, compare: tuple[str, Plan] | None = None, time: TimeAxis = "steps") -> str:
    """Text of the page that :func:`write_report` writes."""
    details = Details(tensors={}, plans=[])
    sections = [_summary(problem, result), _warnings(result.warnings)]
    if isinstance(problem, Problem):
        labelled = [(result.provenance.candidate, result.plan)] if isinstance(result.plan, Plan) else []
        labelled += [compare] if compare is not None else []
        colours = assign_colours(problem, [plan for _, plan in labelled])
        if labelled:
            scenes = [(label, build_scene(problem, plan, time)) for label, plan in labelled]
            sections.append(_layouts(scenes, colours, details))
        sections += [_convergence(result), _candidates(result)]
        if isinstance(result.plan, Plan):
            sections += [_tensors(problem, result.plan, colours), _steps(problem, result.plan)]
    elif isinstance(problem, TierProblem) and isinstance(result.plan, TierPlan):
        sections += _memory_map(problem, result, result.plan)
    else:
        sections += [_convergence(result), _candidates(result)]
    sections.append(_provenance(result))
    title = f"{result.provenance.program or 'program'} on {result.provenance.target}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)} – stowplan</title>\n'
        f"<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(section for section in sections if section)
        + '\n</main>\n<div id="tip" role="tooltip"></div>\n'
        f'<script id="data" type="application/json">{details.to_json()}</script>\n'
        f"<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return resources.files("stowplan.report").joinpath(name).read_text(encoding="utf-8")


def _memory_map(problem: TierProblem, result: Result, plan: TierPlan) -> list[str]:
    """The sections on a tier placement, beside the compiler's own map."""
    compiled = compiler_plan(problem)
    before = None if compiled is None else ("compiler", compiled)
    drawn = [(result.provenance.candidate, plan), *([before] if before else [])]
    found = [bands(problem, drawn)]
    for heading, (caption, head, rows) in tier_tables(problem, plan, before):
        found.append(f"<section><h2>{escape(heading)}</h2>\n{_table(caption, head, rows)}</section>")
    return [*found, _convergence(result), _candidates(result)]


def _summary(problem: object, result: Result) -> str:
    unit = result.unit
    verified = ("verified", "good") if result.verified else ("not verified", "bad")
    cards = []
    if result.objective is None:
        cards.append(("Objective", "no plan", ""))
    else:
        by = f'<span class="{verified[1]}">{verified[0]}</span>, by {escape(result.provenance.candidate)}'
        cards.append(("Objective", format_value(result.objective, unit), by))
    if result.speedup is not None:
        cards.append((f"Speedup over {result.baseline_name}", f"{result.speedup:.3f}×", format_value(result.baseline, unit)))
    gap = "no gap without a plan" if result.objective is None else "" if result.gap is None else f"gap {result.gap:.2%}"
    cards.append(("Proven bound", format_value(result.bound, unit), gap if result.bound is not None else "none proven"))
    if isinstance(problem, Problem) and result.objective is not None:
        cards.append(("Normalised return R", f"{problem.normalised_return(result.objective):.4f}", "0 all slow, 1 all fast"))
    stop = result.stop_reason.replace("_", " ")
    cards.append(("Status", result.status.replace("_", " "), f"stopped: {stop}, after {result.seconds:.1f} s"))
    facts: list[tuple[str, str]] = [("Kind", result.kind.replace("_", " ")), ("Cost model", result.provenance.cost_model)]
    if isinstance(problem, Problem):
        facts += [
            ("Fast memory", f"{format_bytes(problem.capacity)}, aligned to {format_bytes(problem.alignment)}"),
            ("Copy channels", f"{problem.channels:,}"),
            ("Stalls", problem.stalls),
            ("Program", f"{problem.horizon:,} steps, {len(problem.tensors):,} tensors, {problem.use_count:,} uses"),
            ("All in slow memory", format_ps(problem.all_slow_ps)),
            ("All in fast memory", format_ps(problem.all_fast_ps)),
        ]
    for name, value in result.baselines.items():
        ratio = result.speedup_over(name)
        faster = "" if ratio is None else f", speedup {ratio:.3f}"
        facts.append((f"Baseline {name}", format_value(value, unit) + faster))
    return (
        '<dl class="cards">'
        + "".join(
            f'<div class="card"><dt>{escape(name)}</dt><dd class="num">{escape(value)}<small>{note}</small></dd></div>'
            for name, value, note in cards
        )
        + f"</dl>\n{_facts(facts)}"
    )


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<div><dt>{escape(name)}</dt><dd class="num">{escape(value)}</dd></div>' for name, value in facts)
    return f'<dl class="facts">{rows}</dl>'


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
    return f'<section class="warnings" aria-label="Warnings"><strong>Warnings</strong><ul>{items}</ul></section>'


def _layouts(scenes: Sequence[tuple[str, Scene]], colours: dict[int, int], details: Details) -> str:
    end = max(scene.end for _, scene in scenes)
    zooms = "".join(
        f'<button type="button" data-zoom="{zoom}" aria-pressed="{str(zoom == 1).lower()}">{zoom}×</button>'
        for zoom in (1, 2, 4, 8)
    )
    figures = []
    for label, scene in scenes:
        stalls = f"{format_ps(scene.timeline.stall_ps)} of it waiting" if scene.stalls else "no stalls"
        busy = scene.timeline.channel_busy_ps / (scene.timeline.total_ps * scene.problem.channels or 1)
        caption = (
            f"{format_ps(scene.timeline.total_ps)}, {stalls}; {len(scene.plan.residencies):,} residencies, "
            f"{len(scene.plan.copies):,} copies, channel busy {busy:.0%}; {len(scene.plan.fast_uses):,} of "
            f"{scene.problem.use_count:,} uses from fast memory"
        )
        plot = plan_plot(scene, colours, details, end)
        figures.append(f"<figure><h3>{escape(label)}</h3><figcaption>{caption}</figcaption>{plot}</figure>")
    return (
        "<section><h2>Layout</h2>\n<p>Time runs across, offsets in fast memory run up. One colour is one tensor"
        f"{', in both plans' if len(scenes) > 1 else ''}; many tensors share colours. Point at a box to see its tensor "
        "wherever it stands, click to keep it. Below: bytes in use, copies as they ran, and where the program "
        "waited for them.</p>\n"
        f'<div class="tools"><span id="zoom">Zoom</span><span role="group" aria-labelledby="zoom">{zooms}</span></div>\n'
        f'<div class="plans">{"".join(figures)}</div></section>'
    )


def _convergence(result: Result) -> str:
    plot = convergence_plot(result.history, result.seconds, result.unit, result.baselines, result.baseline)
    if not plot:
        return ""
    entries = list(result.history)
    shown = entries if len(entries) <= MOST_HISTORY else entries[: MOST_HISTORY // 2] + entries[-MOST_HISTORY // 2 :]
    rows = [
        (
            f"{entry.seconds:.2f}",
            entry.source,
            format_value(entry.objective, result.unit),
            format_value(entry.bound, result.unit),
        )
        for entry in shown
    ]
    left_out = f", {len(entries) - len(shown):,} in the middle left out" if len(shown) < len(entries) else ""
    table = _table(f"{len(entries):,} improvements{left_out}", ("Seconds:r", "Source", "Objective:r", "Bound:r"), rows)
    return (
        '<section><h2>Convergence</h2>\n<ul class="legend"><li><i class="incumbent"></i>best objective</li>'
        '<li><i class="bound"></i>proven bound</li><li><i class="baseline"></i>baseline</li></ul>\n'
        f"{plot}\n<details><summary>As a table</summary>{table}</details></section>"
    )


def _candidates(result: Result) -> str:
    if not result.candidates:
        return ""

    def row(candidate: CandidateReport) -> tuple[str, ...]:
        verified = {"rejected": "no"}.get(candidate.outcome, "–" if candidate.objective is None else "yes")
        objective, bound = (format_value(value, result.unit) for value in (candidate.objective, candidate.bound))
        return candidate.name, objective, bound, f"{candidate.seconds:.2f}", candidate.outcome, verified, candidate.note

    # Best first, those without a plan last, else in the order in which they were started.
    ordered = sorted(result.candidates, key=lambda candidate: (candidate.objective is None, candidate.objective or 0))
    rows = [row(candidate) for candidate in ordered]
    best = [index for index, candidate in enumerate(ordered) if candidate.name == result.provenance.candidate][:1]
    head = ("Candidate:n", "Objective:r", "Bound:r", "Seconds:r", "Outcome", "Verified", "Note:o")
    return f"<section><h2>Candidates</h2>\n{_table('Best objective first', head, rows, best)}</section>"


def _tensors(problem: Problem, plan: Plan, colours: dict[int, int]) -> str:
    found = analyse_tensors(problem, plan)
    if not found:
        return ""
    rows, marks = [], []
    for row in found[:TOP]:
        tensor = problem.tensors[row.tensor]
        marks.append((row.tensor, PALETTE[colours[row.tensor]] if row.tensor in colours else "transparent"))
        rows.append(
            (
                tensor.name,
                format_ps(row.saving_ps),
                format_bytes(tensor.size),
                f"{row.fast_uses:,} of {row.uses:,}",
                f"{row.residencies:,}",
                f"{row.copies:,}",
            )
        )
    head = ("Tensor:n", "Saving:r", "Size:r", "Fast uses:r", "Residencies:r", "Copies:r")
    caption = (
        "What the steps would lose if this tensor alone were served from slow memory, stalls aside. "
        f"{min(TOP, len(found)):,} of {len(found):,} tensors with fast uses."
    )
    return f"<section><h2>Tensors that save the most</h2>\n{_table(caption, head, rows, marks=marks)}</section>"


def _steps(problem: Problem, plan: Plan) -> str:
    found = analyse_steps(problem, plan)
    if not found:
        return ""
    total = sum(row.latency_ps for row in found) or 1
    rows = []
    for row in found[:TOP]:
        step = problem.steps[row.step]
        runs = f"{step.weight:,}"
        rows.append(
            (
                step.name,
                step.opcode,
                f"{row.step:,}",
                runs,
                format_ps(row.latency_ps),
                f"{row.latency_ps / total:.1%}",
                format_ps(row.all_slow_ps),
                format_ps(row.floor_ps),
                row.limit,
            )
        )
    head = ("Step:n", "Operation", "At:r", "Runs:r", "Latency:r", "Share:r", "All slow:r", "Floor:r", "Bound by")
    caption = (
        "Latency over all runs. Bound by slow memory: its operands, served otherwise, could make the step faster; else it is "
        f"at its floor. {min(TOP, len(found)):,} of {len(found):,} steps."
    )
    return f"<section><h2>Steps that take longest</h2>\n{_table(caption, head, rows)}</section>"


def _provenance(result: Result) -> str:
    origin = result.provenance
    facts = [
        ("Candidate", origin.candidate),
        ("Seed", str(origin.seed)),
        ("Deterministic", "yes" if origin.deterministic else "no"),
        ("Problem", origin.problem_digest[:16]),
        *([("Checkpoint", origin.checkpoint)] if origin.checkpoint else []),
        *((f"Option {name}", str(value)) for name, value in origin.options.items()),
        *((f"Version of {name}", value) for name, value in origin.versions.items()),
        *((name.replace("_", " ").capitalize(), str(value)) for name, value in result.details.items()),
    ]
    return f"<section><h2>How to get this again</h2>\n{_facts(facts)}</section>"


def _table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: Sequence[int] = (),
    marks: Sequence[tuple[int, str]] = (),
) -> str:
    """A table; a column named ``"X:r"`` is set right, ``"X:n"`` holds names, ``"X:o"`` notes. The first column heads its row.

    ``marks`` gives each row a tensor and its colour.
    """
    columns = [
        (
            name.partition(":")[0],
            {"r": ' class="r"', "n": ' class="name"', "o": ' class="note"'}.get(name.partition(":")[2], ""),
        )
        for name in head
    ]
    lines = "".join(f'<th scope="col"{kind.replace("name", "")}>{escape(name)}</th>' for name, kind in columns)
    body = []
    for index, row in enumerate(rows):
        attributes = ' class="best"' if index in best else ""
        swatch = ""
        if marks:
            attributes += f' data-t="{marks[index][0]}"'
            swatch = f'<span class="swatch" style="background:{marks[index][1]}"></span>'
        cells = [f'<th scope="row"{columns[0][1]}>{swatch}{escape(row[0])}</th>']
        cells += [f"<td{kind}>{escape(cell)}</td>" for cell, (_, kind) in zip(row[1:], columns[1:], strict=True)]
        body.append(f"<tr{attributes}>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{lines}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
