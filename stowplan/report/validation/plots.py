"""Plots of a validation: gaps of every way to plan, estimates beside returns, rewards beside latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from stowplan.portfolio.validation.records import Outcome, ProblemReport, Summary
from stowplan.portfolio.validation.statistics import Spread
from stowplan.report.colours import PALETTE
from stowplan.report.plots import HIGH, WIDE, axis_labels, flip, plot, rectangle, svg, time_labels
from stowplan.report.units import format_tick, nice_ticks
from stowplan.result import format_gap

#: Least width of the gap axis: smaller gaps than this part of it cannot be told from none.
_LEAST_GAP = 1e-4

#: Part of the width for gaps; what is right of it is for names.
_DRAWN = 0.84

#: Room that is left at the edges of a scatter plot, as a part of its range.
_MARGIN = 0.04


def gaps_plot(
    rows: Sequence[tuple[str, Spread]],
    outcomes: Mapping[str, Sequence[tuple[str, Outcome]]],
    part: Callable[[Outcome], float | None],
    title: str,
) -> str:
    """One line for each way to plan: a dot for each plan, a box from quartile to quartile, and the median.

    Empty where every plan is at the optimum.

    Parameters
    ----------
    outcomes
        (problem, outcome) of each way to plan, by its name.
    part
        The gap of an outcome that is drawn.
    """
    worst = max((spread.worst for _, spread in rows if spread.worst is not None), default=0.0)
    if not worst:
        return ""
    top = max(worst * 1.03, _LEAST_GAP)
    step = 1 / max(1, len(rows))

    def across(gap: float) -> float:
        return WIDE * (0.01 + _DRAWN * min(gap / top, 1.0))

    ticks = [(across(tick / 100) / WIDE, f"{format_tick(tick)}%") for tick in nice_ticks(0.0, 100 * top, 8)]
    drawn = [f'<path class="grid" d="M{round(place * WIDE)} 0v{HIGH}"/>' for place, _ in ticks]
    for number, (name, spread) in enumerate(rows):
        middle, colour = 1 - (number + 0.5) * step, PALETTE[number % len(PALETTE)]
        if spread.lower_quartile is not None and spread.upper_quartile is not None and spread.median is not None:
            low, high = across(spread.lower_quartile), across(spread.upper_quartile)
            box = rectangle(low, max(high, low + 0.002 * WIDE), middle - 0.3 * step, middle + 0.3 * step)
            drawn.append(f'<path fill="{colour}" fill-opacity="0.35" d="{box}"/>')
            at, half = round(across(spread.median)), round(0.3 * step * HIGH)
            drawn.append(f'<path class="rule" d="M{at} {flip(middle) - half}v{2 * half}"/>')
        for problem, outcome in outcomes.get(name, ()):
            gap = part(outcome)
            if gap is not None:
                tip = escape(f"{problem}\n{name}: {format_gap(gap)}")
                place = f"M{round(across(gap))} {flip(middle)}h0"
                drawn.append(f'<path class="dot rim" d="{place}"/>')
                drawn.append(f'<path class="dot" stroke="{colour}" d="{place}" data-tip="{tip}"/>')
    spoken = f"{title} of {len(rows)} ways to plan; the table below has the numbers"
    places = [f"bottom:{(1 - (number + 0.5) * step) * 100:.1f}%;transform:translateY(50%)" for number in range(len(rows))]
    names = "".join(
        f'<span class="line-name" style="{place}">{escape(name)}</span>' for place, (name, _) in zip(places, rows, strict=True)
    )
    panels = [
        f'<div class="h-chart frame">{svg("".join(drawn), spoken)}{names}</div>',
        time_labels(ticks, escape(title)),
    ]
    return plot(['<div class="h-chart"></div>', '<div class="h-ticks"></div>'], panels, escape(title))


def scatter_plot(
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]], across_title: str, up_title: str, *, scaled: bool = False
) -> str:
    """Points of some problems, each in a colour of its own; empty without points.

    Parameters
    ----------
    scaled
        Whether the points of each problem are brought to the range 0 to 1, where problems have unlike units.
    """
    shown = [(name, _unit_range(points) if scaled else list(points)) for name, points in series if points]
    every = [point for _, points in shown for point in points]
    if not every:
        return ""
    (left, right), (bottom, top) = (_range([point[part] for point in every]) for part in range(2))
    x_ticks = [((tick - left) / (right - left), format_tick(tick)) for tick in nice_ticks(left, right, 8)]
    y_ticks = [((tick - bottom) / (top - bottom), format_tick(tick)) for tick in nice_ticks(bottom, top)]
    drawn = [f'<path class="grid" d="M0 {flip(place)}h{WIDE}"/>' for place, _ in y_ticks]
    for number, (name, points) in enumerate(shown):
        colour, tip = PALETTE[number % len(PALETTE)], escape(name)
        path = "".join(
            f"M{round(WIDE * (x - left) / (right - left))} {flip((y - bottom) / (top - bottom))}h0" for x, y in points
        )
        drawn.append(f'<path class="dot" stroke="{colour}" stroke-opacity="0.6" d="{path}" data-tip="{tip}"/>')
    spoken = f"{up_title} over {across_title}, {len(every)} points"
    labels = [axis_labels("h-chart", y_ticks, up_title), '<div class="h-ticks"></div>']
    panels = [f'<div class="h-chart frame">{svg("".join(drawn), spoken)}</div>', time_labels(x_ticks, escape(across_title))]
    return plot(labels, panels, escape(up_title))


def outcomes_of(summary: Summary, problems: Sequence[ProblemReport]) -> dict[str, list[tuple[str, Outcome]]]:
    """(problem, outcome) of each row of a summary, in the order of its rows."""
    found: dict[str, list[tuple[str, Outcome]]] = {row.name: [] for row in summary.rows}
    names = list(found)
    for problem in problems:
        sides = [problem.policy, problem.control]
        each: list[Sequence[Outcome]] = []
        for side in sides:
            each += [(), (), ()] if side is None else [(side.likeliest,), side.sampled, (side.best,) if side.sampled else ()]
        each.append(() if problem.baseline is None else (problem.baseline,))
        for name, outcomes in zip(names, each, strict=True):
            found[name] += [(problem.name, outcome) for outcome in outcomes]
    return found


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = _MARGIN * (high - low) or max(abs(high), 1.0) * _MARGIN
    return low - margin, high + margin


def _unit_range(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    ends = [(min(values), max(values)) for values in ([point[part] for point in points] for part in range(2))]

    def scaled(value: float, part: int) -> float:
        low, high = ends[part]
        return (value - low) / (high - low) if high > low else 0.5

    return [(scaled(x, 0), scaled(y, 1)) for x, y in points]
