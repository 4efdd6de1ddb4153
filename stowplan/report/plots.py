"""Plots of the HTML report: inline SVG that stretches with the page, with labels as HTML so that they do not.

Every plot is a column of labels beside a scroller with panels on one time axis. Drawings use a coordinate system of
:data:`WIDE` by :data:`HIGH` whatever their size on the page.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from stowplan.report.boxes import DENSE, Box
from stowplan.report.colours import PALETTE, ink_on
from stowplan.report.page import Details
from stowplan.report.units import byte_unit, format_bytes, format_tick, format_value, nice_ticks, shorten, time_unit
from stowplan.result import HistoryEntry, two_numbers

WIDE, HIGH = 20_000, 2_000

#: Boxes of one plan that can be pointed at; smaller ones beyond that are drawn, but have no details.
MOST_BOXES = 6_000
#: Names are written into so many boxes of a plot at most.
MOST_NAMES = 150
#: Letters of a name in a box at most.
MOST_LETTERS = 60
#: Letters that fit across a plot, beside another and alone; lines and letters that fit above each other in a layout.
LETTERS, LETTERS_ALONE, LINES, LETTERS_UP = 74, 130, 26, 50


def convergence_plot(
    history: Sequence[HistoryEntry], seconds: float, unit: str, baselines: Mapping[str, int], baseline: int | None
) -> str:
    """Incumbent and bound over wall-clock time, with the baselines that lie in their range; empty without history."""
    found = _changes((entry.seconds, entry.objective, entry.source) for entry in history)
    proven = _changes((entry.seconds, entry.bound, entry.source) for entry in history)
    if not found and not proven:
        return ""
    base = _common_part(unit, [value for _, value, _ in found])
    found, proven = ([(moment, value - base, source) for moment, value, source in each] for each in (found, proven))
    baselines = {label: value - base for label, value in baselines.items()}
    # One with another first number is off the scale.
    is_near = baseline is not None and (not base or _common_part(unit, [baseline]) == base)
    baseline = baseline - base if baseline is not None and is_near else None
    # The worst bounds say little and would flatten all else, so the scale ends at the last one.
    values = [value for _, value, _ in found] + [value for _, value, _ in proven[-1:] if value >= 0]
    if found and baseline is not None:
        values.append(baseline)
    margin = max((max(values) - min(values)) * 0.06, max(values) * 0.002, 1.0)
    low, high = min(values) - margin, max(values) + margin
    end = max([seconds, *(moment for moment, _, _ in found + proven), 1e-3])
    first = min((moment for moment, _, _ in found + proven if moment > 0), default=end)
    is_log = end / max(first, 1e-3) > 50
    begin = math.pow(10, math.floor(math.log10(max(first, 1e-3)))) if is_log else 0.0

    def across(moment: float) -> int:
        if is_log:
            return round(WIDE * math.log(max(moment, begin) / begin) / math.log(end / begin))
        return round(WIDE * moment / end)

    def up(value: float) -> int:
        return flip(min(max((value - low) / (high - low), 0.0), 1.0))

    per_unit, name = _scale_of(unit, int(high), base)
    y_ticks = [
        ((tick * per_unit - low) / (high - low), format_tick(tick)) for tick in nice_ticks(low / per_unit, high / per_unit)
    ]
    x_ticks = _log_ticks(begin, end) if is_log else nice_ticks(0, end, 6)
    drawn = [f'<path class="grid" d="M0 {flip(place)}h{WIDE}"/>' for place, _ in y_ticks]
    named: list[str] = []
    taken: list[float] = []
    for label, value in sorted(baselines.items(), key=lambda item: item[1]):
        place = (value - low) / (high - low)
        if not found or not 0 <= place <= 1:
            continue
        drawn.append(f'<path class="base" d="M0 {flip(place)}h{WIDE}"/>')
        if all(abs(place - other) > 0.07 for other in taken):
            taken.append(place)
            named.append(f'<span class="line-name" style="bottom:{place * 100:.1f}%">{escape(label)}</span>')
    for series, kind, word in ((proven, "bound", "bound"), (found, "incumbent", "objective")):
        if not series:
            continue
        # Bounds below the scale are left out; the curve then comes up from its edge.
        series = [point for point in series if point[1] >= low]
        path = (
            f"M{across(series[0][0])} {HIGH}V{up(series[0][1])}"
            if kind == "bound"
            else f"M{across(series[0][0])} {up(series[0][1])}"
        )
        path += "".join(f"H{across(s)}V{up(v)}" for s, v, _ in series[1:])
        drawn.append(f'<path class="curve {kind}" d="{path}H{WIDE}"/>')
        for moment, value, source in _apart(series, across):
            tip = escape(f"{word} {format_value(value + base, unit)}\n{source} after {moment:.2f} s")
            drawn.append(f'<path class="dot {kind}" d="M{across(moment)} {up(value)}h0" data-tip="{tip}"/>')
    labels = [
        axis_labels("h-chart", y_ticks, f"objective ({name})"),
        '<div class="h-ticks"></div>',
    ]
    ticks = time_labels(
        ((across(tick) / WIDE, f"{tick:g}") for tick in x_ticks), "seconds" + (", logarithmic" if is_log else "")
    )
    spoken = f"Objective and bound over {end:.1f} seconds; the table below has the numbers"
    panels = [f'<div class="h-chart frame">{svg("".join(drawn), spoken)}{"".join(named)}</div>', ticks]
    return plot(labels, panels, "Convergence")


def _common_part(unit: str, values: Sequence[int]) -> int:
    """What the axis of a unit of two numbers leaves out: the first number, where it is the same in all; else 0."""
    pair = two_numbers(unit)
    firsts = set() if pair is None else {value // pair[1] for value in values}
    return next(iter(firsts)) * pair[1] if pair is not None and len(firsts) == 1 else 0


def _scale_of(unit: str, top: int, base: int) -> tuple[int, str]:
    """What objectives are divided by on an axis that ends at ``top``, and the unit that gives; ``base`` is left out of them."""
    if unit == "ps":
        name, size = time_unit(top)
    elif unit in ("bytes", "B"):
        name, size = byte_unit(top)
    elif (pair := two_numbers(unit)) is not None:
        name, size = (f"{pair[2]} at {pair[0]} {base // pair[1]}", 1) if base else (pair[0], pair[1])
    else:
        name, size = unit, 1
    return size, name


def plot(labels: Iterable[str], panels: Iterable[str], name: str) -> str:
    """Labels beside a scroller with panels."""
    return (
        f'<div class="plot"><div class="labels">{"".join(labels)}</div>'
        f'<div class="scroller" tabindex="0" role="group" aria-label="{name}">'
        f'<div class="panels">{"".join(panels)}</div></div></div>'
    )


def svg(content: str, spoken: str, attributes: str = "") -> str:
    """A drawing that stretches; ``spoken`` says what it is to those who cannot see it."""
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" aria-label="{escape(spoken)}"{attributes}>'
        f"{content}</svg>"
    )


def flip(part: float) -> int:
    """Height of a part of the range, 0 at the bottom."""
    return round(HIGH * (1 - part))


def rectangle(left: float, right: float, bottom: float, top: float) -> str:
    """Path of a rectangle, at least one unit wide and high; heights are parts of the range."""
    x, y = round(left), flip(top)
    width, height = max(1, round(right) - x), max(1, flip(bottom) - y)
    return f"M{x} {y}h{width}v{height}h{-width}z"


def layout_svg(
    boxes: Sequence[Box],
    colours: Mapping[int, int],
    details: Details,
    *,
    scale: float,
    height: int,
    describe: Callable[[int], tuple[str, int]],
    source: Callable[[int], str],
    start: float = 0,
    times: Sequence[tuple[float, float]] | None = None,
    letters: int = LETTERS,
) -> str:
    """Boxes of a layout, which details are noted of, with names in those that have room for them.

    Parameters
    ----------
    scale, start
        Units of the drawing for each of the time axis, and where on it the drawing begins.
    height
        Bytes from the bottom to the top.
    describe
        Name and bytes of an owner.
    source
        What else there is to say of the box of this number.
    times
        Begin and end of each box for people, where the time axis has others.
    letters
        How many fit across the drawing.
    """
    rows: list[tuple[float, float, str, str]] = []
    groups: defaultdict[int, list[str]] = defaultdict(list)
    names: list[str] = []
    rest: defaultdict[int, list[str]] = defaultdict(list)
    for index in sorted(range(len(boxes)), key=lambda i: (-boxes[i].area, i)):
        box = boxes[index]
        bottom, top = box.bottom / height, (box.bottom + box.size) / height
        left, right = (box.left - start) * scale, (box.right - start) * scale
        path = rectangle(left, right, bottom, top)
        if len(rows) >= MOST_BOXES:
            rest[colours[box.owner]].append(path)
            continue
        name, size = describe(box.owner)
        details.tensors[box.owner] = (name, format_bytes(size))
        # An edge of the paper's colour would be all that is seen of a thin box.
        is_thin = len(boxes) <= DENSE and (top - bottom < 0.008 or right - left < 0.003 * WIDE)
        kind = ' class="fixed"' if box.fixed else ' class="thin"' if is_thin else ""
        groups[box.owner].append(f'<path{kind} d="{path}" data-i="{len(rows)}"/>')
        begin, end = (box.left, box.right) if times is None else times[index]
        rows.append((begin, end, format_bytes(box.bottom), source(index)))
        if len(names) < MOST_NAMES:
            names += _name_svg(name, left, right, bottom, top, ink_on(PALETTE[colours[box.owner]]), letters)
    details.plans.append(rows)
    drawn = "".join(f'<path fill="{PALETTE[colour]}" d="{"".join(paths)}"/>' for colour, paths in sorted(rest.items()))
    drawn += "".join(
        f'<g data-t="{owner}" fill="{PALETTE[colours[owner]]}">{"".join(paths)}</g>' for owner, paths in sorted(groups.items())
    )
    dense = " dense" if len(boxes) > DENSE else ""
    attributes = f' class="boxes{dense}" data-plan="{len(details.plans) - 1}"'
    return svg(drawn, "Boxes of the layout; pointing at one names what stands there", attributes) + (
        f'<div class="names" aria-hidden="true">{"".join(names)}</div>'
    )


def _name_svg(name: str, left: float, right: float, bottom: float, top: float, colour: str, across: int) -> list[str]:
    """The name of a box, lying or standing in it; nothing where there is no room."""
    wide, high = (right - left) / WIDE, top - bottom
    least = min(len(name), 6)
    # Some have room only where the page is zoomed, and are hidden until then.
    for zoom, later in ((1, ""), (4, "later")):
        lying, standing = round(wide * zoom * across), round(high * LETTERS_UP)
        if high * LINES >= 1 and lying >= least:
            kinds = later
            break
        if wide * zoom * across >= 2.6 and standing >= least and standing > lying:
            kinds = f"up {later}".strip()
            break
    else:
        return []
    kind = f' class="{kinds}"' if kinds else ""
    text = shorten(name, MOST_LETTERS)
    # The page cuts the beginning to the room that there is; the end stays, since numbered names differ there.
    begin, end = (text[:-4], text[-4:]) if len(text) > least else (text, "")
    return [
        f'<span{kind} style="left:{left / WIDE * 100:.2f}%;width:{wide * 100:.2f}%;'
        f'bottom:{bottom * 100:.2f}%;height:{high * 100:.2f}%;color:{colour}">'
        f"<b>{escape(begin)}</b>{f'<i>{escape(end)}</i>' if end else ''}</span>"
    ]


def _changes(entries: Iterable[tuple[float, int | None, str]]) -> list[tuple[float, int, str]]:
    """Entries with a value other than the one before."""
    kept: list[tuple[float, int, str]] = []
    for seconds, value, source in entries:
        if value is not None and (not kept or kept[-1][1] != value):
            kept.append((seconds, value, source))
    return kept


def _apart(series: Sequence[tuple[float, int, str]], across: Callable[[float], int]) -> list[tuple[float, int, str]]:
    """Points far enough apart to be told from each other; the last of a crowd stays."""
    kept: list[tuple[float, int, str]] = []
    for point in reversed(series):
        if not kept or across(kept[-1][0]) - across(point[0]) > WIDE // 200:
            kept.append(point)
    return kept[::-1]


def _log_ticks(begin: float, end: float) -> list[float]:
    return [10.0**power for power in range(math.floor(math.log10(begin)), math.floor(math.log10(end)) + 1)]


def axis_labels(panel: str, ticks: Iterable[tuple[float, str]], title: str) -> str:
    """Labels left of a panel; places are parts of its height."""
    labels = "".join(f'<span class="tick" style="bottom:{place * 100:.2f}%">{label}</span>' for place, label in ticks)
    return f'<div class="{panel}">{labels}<span class="unit">{escape(title)}</span></div>'


def time_labels(ticks: Iterable[tuple[float, str]], title: str, minor: Iterable[tuple[float, str]] = ()) -> str:
    """Labels below a plot; ``minor`` ones show only where it is zoomed."""
    parts = []
    major = list(ticks)
    for place, label in [*major, *(tick for tick in minor if tick not in major)]:
        kind = " first" if place < 0.01 else " last" if place > 0.97 else ""
        kind += "" if (place, label) in major else " minor"
        parts.append(f'<span class="xtick{kind}" style="left:{place * 100:.2f}%">{label}</span>')
    return f'<div class="h-ticks">{"".join(parts)}<span class="axis">{title}</span></div>'
