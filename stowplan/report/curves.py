"""The convergence plot: the best objective and the bound over wall-clock time.

Values of some units consist of two numbers (:class:`stowplan.units.Pair`), for example an initiation interval and a latency. If
the first number is the same in all objectives, the vertical axis shows only the second. Nothing in this module raises an error
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from stowplan.report.scene import Axis, Dot, Key, Line, Mark, Panel, Plot, Style, Text, level, steps
from stowplan.report.text import byte_unit, format_tick, format_value, nice_ticks, time_unit
from stowplan.result import HistoryEntry
from stowplan.units import BYTES, PS, Unit

INCUMBENT = Style(stroke="accent", width=2, name="incumbent")
BOUND = Style(stroke="warm", width=2, dash=(7, 4), name="bound")
BASELINE = Style(stroke="soft", dash=(3, 3), name="rule base")

#: Time in seconds, value, and source.
Point = tuple[float, int, str]


def convergence_plot(
    history: Sequence[HistoryEntry], seconds: float, unit: Unit, baselines: Mapping[str, int], baseline: int | None
) -> Plot | None:
    """The best objective and the bound over time, with the baselines that lie in their range.

    Parameters
    ----------
    history
        The improvements of a run.
    seconds
        Length of the time axis. It is longer if the history has later entries.
    unit
        Unit of objectives and bounds.
    baselines
        Objectives of all baselines, by name.
    baseline
        Objective of the main baseline, which the scale always includes; None if there is none.

    Returns
    -------
    Plot or None
        None if the history has neither an objective nor a bound.
    """
    best = _changes((entry.seconds, entry.objective, entry.source) for entry in history)
    proven = _changes((entry.seconds, entry.bound, entry.source) for entry in history)
    if not best and not proven:
        return None
    base = _common_first_number(unit, [value for _, value, _ in best])
    best, proven = ([(moment, value - base, source) for moment, value, source in steps] for steps in (best, proven))
    baselines = {label: value - base for label, value in baselines.items()}
    # A baseline with a different first number lies outside the scale.
    is_near = baseline is not None and (not base or _common_first_number(unit, [baseline]) == base)
    baseline = baseline - base if baseline is not None and is_near else None
    # Early bounds are far off and would flatten everything else, so the scale ends at the last bound.
    values = [value for _, value, _ in best] + [value for _, value, _ in proven[-1:] if value >= 0]
    if best and baseline is not None:
        values.append(baseline)
    margin = max((max(values) - min(values)) * 0.06, max(values) * 0.002, 1.0)
    low, high = min(values) - margin, max(values) + margin
    end = max([seconds, *(moment for moment, _, _ in best + proven), 1e-3])
    across, place = _time_axis(end, min((moment for moment, _, _ in best + proven if moment > 0), default=end))
    per_unit, name = _scale_of(unit, int(high), base)
    ticks = [(tick * per_unit, format_tick(tick)) for tick in nice_ticks(low / per_unit, high / per_unit)]
    marks = _baselines(baselines if best else {}, low, high)
    for series, style, word in ((proven, BOUND, "bound"), (best, INCUMBENT, "objective")):
        # Bounds below the scale are left out, and the curve begins at the lower edge.
        series = [point for point in series if point[1] >= low]
        if not series:
            continue
        line = steps([*(place(moment) for moment, _, _ in series), 1.0], [min(value, high) for _, value, _ in series])
        marks.append(Line([(line[0][0], low), *line] if word == "bound" else line, style))
        for moment, value, source in _distinguishable(series, place):
            tip = f"{word} {format_value(value + base, unit)}\n{source} after {moment:.2f} s"
            marks.append(Dot(place(moment), min(value, high), Style(fill=style.stroke, name=style.name), 8, tip=tip))
    spoken = f"Objective and bound over {end:.1f} seconds; the table below has the numbers"
    panel = Panel(Axis(low, high, ticks, f"objective ({name})"), marks, 260, spoken)
    keys = [Key("best objective", INCUMBENT, "line"), Key("proven bound", BOUND, "line"), Key("baseline", BASELINE, "line")]
    return Plot(across, [panel], legend=keys)


def _time_axis(end: float, first: float) -> tuple[Axis, Callable[[float], float]]:
    """The time axis up to ``end`` seconds, and a function from a moment to its position on it, from 0 to 1. The axis is
    logarithmic if the first improvement, after ``first`` seconds, comes very early."""
    if end / max(first, 1e-3) <= 50:
        ticks = [(tick / end, f"{tick:g}") for tick in nice_ticks(0, end, 6)]
        return Axis(0, 1, ticks, "seconds"), lambda moment: moment / end
    begin = math.pow(10, math.floor(math.log10(max(first, 1e-3))))

    def place(moment: float) -> float:
        return math.log(max(moment, begin) / begin) / math.log(end / begin)

    powers = range(math.floor(math.log10(begin)), math.floor(math.log10(end)) + 1)
    return Axis(0, 1, [(place(10.0**power), f"{10.0**power:g}") for power in powers], "seconds, logarithmic"), place


def _baselines(baselines: Mapping[str, int], low: float, high: float) -> list[Mark]:
    """A line for each baseline whose objective is between ``low`` and ``high``, with names where there is enough space."""
    marks: list[Mark] = []
    label_positions: list[float] = []
    for label, value in sorted(baselines.items(), key=lambda item: item[1]):
        place = (value - low) / (high - low)
        if not 0 <= place <= 1:
            continue
        marks.append(level(Axis(0, 1), value, BASELINE))
        if all(abs(place - other) > 0.07 for other in label_positions):
            label_positions.append(place)
            marks.append(Text(0.995, value, label, align="end", halo="paper"))
    return marks


def _common_first_number(unit: Unit, values: Sequence[int]) -> int:
    """For a unit of two numbers: the part of the values that the axis leaves out because the first number is the same in all of
    them; otherwise 0."""
    firsts = {unit.split(value)[0] for value in values}
    return firsts.pop() * unit.pair.scale if unit.pair is not None and len(firsts) == 1 else 0


def _scale_of(unit: Unit, top: int, base: int) -> tuple[int, str]:
    """The divisor of objectives on an axis that ends at ``top``, and the name of the resulting unit. ``base`` is the part that
    the axis leaves out."""
    if (pair := unit.pair) is not None:
        name, size = (f"{pair.second} at {pair.first} {base // pair.scale}", 1) if base else (pair.first, pair.scale)
    else:
        name, size = time_unit(top) if unit == PS else byte_unit(top) if unit == BYTES else (unit.name, 1)
    return size, name


def _changes(entries: Iterable[tuple[float, int | None, str]]) -> list[Point]:
    """Entries whose value differs from the value of the entry before."""
    changed: list[Point] = []
    for seconds, value, source in entries:
        if value is not None and (not changed or changed[-1][1] != value):
            changed.append((seconds, value, source))
    return changed


def _distinguishable(series: Sequence[Point], place: Callable[[float], float]) -> list[Point]:
    """Points that are far enough apart to be distinguished; of points that are close together, the last is kept."""
    chosen: list[Point] = []
    for point in reversed(series):
        if not chosen or place(chosen[-1][0]) - place(point[0]) > 1 / 200:
            chosen.append(point)
    return chosen[::-1]
