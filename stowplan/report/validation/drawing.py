"""Plots of a validation: gaps of every way to plan, estimates beside returns, rewards beside latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stowplan.portfolio.validation.records import Outcome, ProblemReport, Summary
from stowplan.portfolio.validation.statistics import Spread
from stowplan.report.colours import PALETTE
from stowplan.report.scene import RULE, Axis, Dot, Key, Line, Mark, Panel, Plot, Rect, Style
from stowplan.report.units import format_tick, nice_ticks
from stowplan.result import format_gap

#: Least width of the gap axis: smaller gaps than this part of it cannot be told from none.
_LEAST_GAP = 1e-4

#: Room that is left at the edges of a plot, as a part of its range.
_MARGIN = 0.04

#: Points of the heights of a way to plan, and of a scatter plot.
_ROW, _HIGH = 32.0, 260.0

#: A rim, without which the lighter colours would be lost on white.
_RIM = Style(fill="ink", name="rim")


def gaps_plot(
    rows: Sequence[tuple[str, Spread]],
    outcomes: Mapping[str, Sequence[tuple[str, Outcome]]],
    part: Callable[[Outcome], float | None],
    title: str,
) -> Plot | None:
    """One line for each way to plan: a dot for each plan, a box from quartile to quartile, and the median.

    None where every plan is at the optimum.

    Parameters
    ----------
    outcomes
        (problem, outcome) of each way to plan, by its name.
    part
        The gap of an outcome that is drawn.
    """
    worst = max((spread.worst for _, spread in rows if spread.worst is not None), default=0.0)
    if not worst:
        return None
    top = max(worst * (1 + _MARGIN), _LEAST_GAP)
    across = Axis(-0.01 * top, top, [(tick / 100, f"{format_tick(tick)}%") for tick in nice_ticks(0.0, 100 * top, 8)], title)
    marks: list[Mark] = []
    for number, (name, spread) in enumerate(rows):
        middle, colour = number + 0.5, PALETTE[number % len(PALETTE)]
        low, high, median = spread.lower_quartile, spread.upper_quartile, spread.median
        if low is not None and high is not None and median is not None:
            box = Style(fill=colour, opacity=0.35)
            marks.append(Rect(low, max(high, low + 0.002 * top), middle + 0.3, middle - 0.3, box))
            marks.append(Line([(median, middle + 0.3), (median, middle - 0.3)], RULE))
        for problem, outcome in outcomes.get(name, ()):
            gap = part(outcome)
            if gap is not None:
                marks.append(Dot(gap, middle, _RIM, 10))
                marks.append(Dot(gap, middle, Style(fill=colour), 8, tip=f"{problem}\n{name}: {format_gap(gap)}"))
    up = Axis(len(rows), 0, [(number + 0.5, name) for number, (name, _) in enumerate(rows)])
    spoken = f"{title} of {len(rows)} ways to plan; the table below has the numbers"
    return Plot(across, [Panel(up, marks, _ROW * len(rows), spoken)])


def scatter_plot(
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]], across_title: str, up_title: str, *, scaled: bool = False
) -> Plot | None:
    """Points of some problems, each in a colour of its own; None without points.

    Parameters
    ----------
    scaled
        Whether the points of each problem are brought to the range 0 to 1, where problems have unlike units.
    """
    shown = [(name, _unit_range(points) if scaled else list(points)) for name, points in series if points]
    every = [point for _, points in shown for point in points]
    if not every:
        return None
    (left, right), (bottom, top) = (_range([point[part] for point in every]) for part in range(2))
    marks: list[Mark] = []
    legend = []
    for number, (name, points) in enumerate(shown):
        style = Style(fill=PALETTE[number % len(PALETTE)])
        marks += [Dot(x, y, style, 6, tip=name) for x, y in points]
        legend.append(Key(name, style))
    across, up = (
        Axis(low, high, [(tick, format_tick(tick)) for tick in nice_ticks(low, high, most)], title)
        for low, high, most, title in ((left, right, 8, across_title), (bottom, top, 5, up_title))
    )
    spoken = f"{up_title} over {across_title}, {len(every)} points"
    # More problems than colours cannot be told apart by a legend.
    return Plot(across, [Panel(up, marks, _HIGH, spoken)], legend=legend if len(series) <= len(PALETTE) else [])


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
