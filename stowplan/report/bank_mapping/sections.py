"""The part of the HTML report that is about bank mapping: bytes moved, what is on chip, layouts and copies."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.report.bank_mapping.mapping import (
    bytes_on_chip,
    copied_bytes,
    largest,
    layout_class,
    layout_colours,
    totals,
)
from stowplan.report.page import Section, legend, table
from stowplan.report.tier_placement.maps import TIER_COLOURS
from stowplan.report.units import format_bytes

_OFF_CHIP, _COPIES, _TENSORS = TIER_COLOURS[:3]

#: Width of a chart in its own units, and heights of a bar and of the chart of bytes on chip.
_WIDE, _BAR, _HIGH = 1000, 18, 120

#: Rows of each table, and tensors with a bar of their own.
TOP = 20


def traffic(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> Section:
    """Bytes moved by each plan."""
    rows = totals(problem, plans)
    most = max(1, *(copied + outside for _, copied, outside, _ in rows))
    bars = []
    for label, copied, outside, together in rows:
        first, second = outside * _WIDE / most, copied * _WIDE / most
        text = f"{format_bytes(outside)} off chip, {format_bytes(copied)} between banks"
        bars.append(
            f"<figcaption>{escape(label)}: {together} ({text})</figcaption>"
            + _svg(
                f'<rect x="0" y="0" width="{first:.2f}" height="{_BAR}" fill="{_OFF_CHIP}"/>'
                f'<rect x="{first:.2f}" y="0" width="{second:.2f}" height="{_BAR}" fill="{_COPIES}"/>',
                _BAR,
                f"{label}: {text}",
            )
        )
    colours = legend([(_OFF_CHIP, "moved off chip"), (_COPIES, "copied between banks")])
    return Section("Bytes moved", f"{colours}<figure>{''.join(bars)}</figure>")


def on_chip(problem: Problem, plan: Plan) -> Section:
    """Bytes on chip at each operator; the axis ends at the peak."""
    used = bytes_on_chip(problem, plan)
    both = used.sum(axis=0)
    peak = int(both.max(initial=0))
    count = max(1, len(problem.operators))
    drawn = "".join(
        f'<path fill="{colour}" d="{_steps(values, peak, count)}"/>'
        for values, colour in ((both, _COPIES), (used[0], _TENSORS))
    )
    text = f"At most {format_bytes(peak)} of {format_bytes(problem.capacity)}"
    colours = legend([(_TENSORS, "tensors on chip"), (_COPIES, "their copies")])
    chart = _svg(drawn, _HIGH, f"Bytes on chip over {count} operators")
    return Section(
        "On chip",
        f"<p>{text}; the chart ends at the peak. Operators run from left to right.</p>\n{colours}<figure>{chart}</figure>",
    )


def layouts(problem: Problem, plan: Plan) -> list[Section]:
    """The largest tensors with their lives and layouts, as bars and in a table; and the largest copies."""
    shown = largest(problem)[:TOP]
    colours = layout_colours(problem, plan)
    count = max(1, len(problem.operators))
    copied = copied_bytes(problem, plan)
    bars, rows = [], []
    for number in shown:
        tensor, life = problem.tensors[number], problem.life(number)
        assert life is not None
        kind = layout_class(problem, number, plan.layouts[number])
        place = "on chip" if plan.on_chip[number] else "off chip"
        left, width = life[0] * _WIDE / count, (life[1] - life[0]) * _WIDE / count
        first, last = (problem.operators[at].name for at in (life[0], life[1] - 1))
        title = f"{tensor.name}: {kind}, {place}, from {first} to {last}"
        pale = "" if plan.on_chip[number] else ' fill-opacity="0.22"'
        marks = "".join(
            f'<rect x="{(copy.before + 0.5) * _WIDE / count - 2:.2f}" y="3" width="4" height="{_BAR - 6}" fill="#000" '
            f'stroke="#fff"><title>{escape(f"copied before {problem.operators[copy.before].name}")}</title></rect>'
            for copy in plan.copies
            if copy.tensor == number
        )
        bars.append(
            f'<div class="name">{escape(tensor.name)}</div><div>{format_bytes(tensor.bytes)}, {place}</div>'
            + _svg(
                f'<rect x="{left:.2f}" y="1" width="{width:.2f}" height="{_BAR - 2}" fill="{colours[kind]}"{pale} '
                f'stroke="{colours[kind]}" vector-effect="non-scaling-stroke"><title>{escape(title)}</title></rect>{marks}',
                _BAR,
                title,
            )
        )
        copies = format_bytes(copied[number]) if copied[number] else "–"
        rows.append((tensor.name, format_bytes(tensor.bytes), kind, place, f"{life[0]} to {life[1] - 1}", copies))
    used = {row[2] for row in rows}
    head = ("Tensor:n", "Size:r", "Spread along", "Place", "Operators:r", "Copies:r")
    caption = f"The {len(shown):,} largest of {len(largest(problem)):,} tensors"
    body = (
        "<p>From first to last use, operators from left to right. Filled: on chip for that time; pale: in main memory. "
        f"A dark mark is a copy into another layout.</p>\n{legend([(colours[name], name) for name in colours if name in used])}"
        f'<div class="bars">{"".join(bars)}</div>'
    )
    found = [Section("Layouts", body), Section("Largest tensors", table(caption, head, rows), follows_search=True)]
    return [*found, *_copies(problem, plan)]


def _copies(problem: Problem, plan: Plan) -> list[Section]:
    if not plan.copies:
        return []
    sizes = {copy: problem.tensors[copy.tensor].layout_bytes(copy.layout) for copy in plan.copies}
    shown = sorted(plan.copies, key=lambda copy: (-sizes[copy], copy.before, copy.tensor))[:TOP]
    rows = []
    for copy in shown:
        tensor = problem.tensors[copy.tensor]
        layouts = (tensor.layout_name(plan.layouts[copy.tensor]), tensor.layout_name(copy.layout))
        rows.append((tensor.name, *layouts, problem.operators[copy.before].name, format_bytes(sizes[copy])))
    head = ("Copy of:n", "From", "To", "Before:n", "Size:r")
    caption = f"{len(shown):,} of {len(plan.copies):,} copies between banks"
    return [Section("Largest copies", table(caption, head, rows), follows_search=True)]


def _steps(values: Sequence[int], peak: int, count: int) -> str:
    """Path of an area under values, one for each operator."""
    path = "".join(f"H{at * _WIDE / count:.1f}V{_HIGH * (1 - int(value) / (peak or 1)):.1f}" for at, value in enumerate(values))
    return f"M0 {_HIGH}{path}H{_WIDE}V{_HIGH}z"


def _svg(content: str, high: int, spoken: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDE} {high}" width="100%" height="{high}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(spoken)}">{content}</svg>'
    )
