"""The curve of trials: what each compile came to, and the best so far."""

from __future__ import annotations

from stowplan.backends.xla.tuning import TrialRecord, Tuning
from stowplan.errors import brief
from stowplan.report.colours import PALETTE
from stowplan.report.curves import BASELINE, INCUMBENT
from stowplan.report.scene import Axis, Dot, Line, Mark, Panel, Plot, Style, Text, level, patches, steps
from stowplan.report.units import format_tick, nice_ticks
from stowplan.report.xla.comparison import in_words

#: Trials worse than the default by more than this many times what the best gains are drawn at the upper edge: XLA without
#: any fast memory would flatten all else.
_WORST = 1.5

#: A rim, without which the lighter colours would be lost on white; and what has no result.
_RIM, _REFUSED = Style(fill="ink", name="rim"), Style(stroke="stall", width=5, dash=(4, 3), name="refused")


def trials_plot(tuning: Tuning) -> Plot:
    """Cycles and stalls of every trial, over compiles; what is above the scale, and what XLA refused, at its upper edge."""
    base, best = tuning.default.total, tuning.trials[tuning.best].total
    low, high = _range(tuning)
    count = len(tuning.trials)
    ways = dict.fromkeys(trial.way for trial in tuning.trials)
    colours = {way: PALETTE[number % len(PALETTE)] for number, way in enumerate(ways)}
    numbers = range(1, count + 1) if count <= 16 else [round(tick) for tick in nice_ticks(1, count, 12)]
    across = Axis(0.5, count + 0.5, [(tick, f"{tick:,}") for tick in numbers], "compile")
    best_so_far = [base]
    for trial in tuning.trials[1:]:
        best_so_far.append(best_so_far[-1] if trial.error else min(best_so_far[-1], trial.total))
    marks: list[Mark] = [
        level(across, 1, BASELINE),
        Line(steps([*range(1, count + 1), count + 0.5], [total / base for total in best_so_far]), INCUMBENT),
    ]
    for number, trial in enumerate(tuning.trials, 1):
        tip = f"{number}. {in_words(trial.way)}\n{_outcome(trial, base)}"
        colour, edge = colours[trial.way], [(number, high), (number, high - (high - low) / 12)]
        if trial.error:
            marks.append(Line(edge, _REFUSED, tip))
        elif trial.total / base > high:
            marks.append(Line(edge, Style(stroke=colour, width=5, name="off-scale"), tip))
        else:
            size, name = (13, "chosen") if number - 1 == tuning.best else (8, "")
            marks.append(Dot(number, trial.total / base, _RIM, size + 2))
            marks.append(Dot(number, trial.total / base, Style(fill=colour, name=name), size, tip=tip))
    marks.append(Text(count + 0.5, 1, "XLA's default", align="end", halo="paper"))
    ticks = [(tick / 100, f"{format_tick(tick)}%") for tick in nice_ticks(100 * low, 100 * high)]
    spoken = f"Cycles of {count} compiles; the best is {best / base:.2%} of the default. The table below has the numbers"
    panel = Panel(Axis(low, high, ticks, "of the default's cycles"), marks, 260, spoken)
    return Plot(across, [panel], legend=patches((colour, in_words(way)) for way, colour in colours.items()))


def _outcome(trial: TrialRecord, base: int) -> str:
    if trial.error:
        return f"no result: {brief(trial.error, 200)}"
    return f"{trial.total:,} cycles, {trial.stall_cycles:,} of them stalls\n{signed_share(trial.total / base - 1)}"


def signed_share(share: float) -> str:
    """``-0.034`` as ``−3.40%``; nothing but 0 is written as 0."""
    if share == 0:
        return "0%"
    digits = next((digits for digits in range(2, 9) if round(100 * share, digits)), 8)
    return f"{'−' if share < 0 else '+'}{abs(100 * share):.{digits}f}%"


def _range(tuning: Tuning) -> tuple[float, float]:
    """Lower and upper end of the scale, as parts of the default's total."""
    base = tuning.default.total
    parts = [trial.total / base for trial in tuning.trials if not trial.error]
    span = max(1 - min(parts), 0.005)
    top = max(part for part in parts if part <= 1 + _WORST * span)
    margin = 0.08 * (top - min(parts)) or 0.001
    return min(parts) - margin, top + margin
