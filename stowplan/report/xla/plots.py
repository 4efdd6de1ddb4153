"""The curve of trials in the report: what each compile came to, and the best so far."""

from __future__ import annotations

from html import escape

from stowplan.backends.xla.tuning import TrialRecord, Tuning
from stowplan.errors import brief
from stowplan.report.colours import PALETTE
from stowplan.report.plots import HIGH, WIDE, axis_labels, flip, plot, svg, time_labels
from stowplan.report.units import format_tick, nice_ticks
from stowplan.report.xla.comparison import in_words

#: Trials worse than the default by more than this many times what the best gains are drawn at the upper edge: XLA without
#: any fast memory would flatten all else.
_WORST = 1.5


def way_colours(tuning: Tuning) -> dict[str, str]:
    """Colour of each way of steering, in the order in which they were first tried."""
    ways = dict.fromkeys(trial.way for trial in tuning.trials)
    return {way: PALETTE[number % len(PALETTE)] for number, way in enumerate(ways)}


def trials_plot(tuning: Tuning) -> str:
    """Cycles and stalls of every trial, over compiles; what is above the scale, and what XLA refused, at its upper edge."""
    base, best = tuning.default.total, tuning.trials[tuning.best].total
    low, high = _range(tuning)
    count = len(tuning.trials)

    def across(number: float) -> int:
        return round(WIDE * (number - 0.5) / count)

    def up(total: int) -> int:
        return flip(min(max((total / base - low) / (high - low), 0.0), 1.0))

    y_ticks = [((tick / 100 - low) / (high - low), f"{format_tick(tick)}%") for tick in nice_ticks(100 * low, 100 * high)]
    drawn = [f'<path class="grid" d="M0 {flip(place)}h{WIDE}"/>' for place, _ in y_ticks]
    drawn.append(f'<path class="base" d="M0 {up(base)}h{WIDE}"/>')
    path, best_so_far = f"M{across(1)} {up(base)}", base
    for number, trial in enumerate(tuning.trials[1:], 2):
        if not trial.error and trial.total < best_so_far:
            best_so_far = trial.total
            path += f"H{across(number)}V{up(best_so_far)}"
    drawn.append(f'<path class="curve incumbent" d="{path}H{WIDE}"/>')
    colours = way_colours(tuning)
    for number, trial in enumerate(tuning.trials, 1):
        tip = escape(f"{number}. {in_words(trial.way)}\n{_outcome(trial, base)}")
        at, colour = across(number), colours[trial.way]
        if trial.error:
            drawn.append(f'<path class="refused" d="M{at} 0v{HIGH // 12}" data-tip="{tip}"/>')
        elif trial.total / base > high:
            drawn.append(f'<path class="off-scale" stroke="{colour}" d="M{at} 0v{HIGH // 12}" data-tip="{tip}"/>')
        else:
            chosen = " chosen" if number - 1 == tuning.best else ""
            place = f"M{at} {up(trial.total)}h0"
            # A rim, without which the lighter colours would be lost on white.
            drawn.append(f'<path class="dot rim{chosen}" d="{place}"/>')
            drawn.append(f'<path class="dot{chosen}" stroke="{colour}" d="{place}" data-tip="{tip}"/>')
    x_ticks = range(1, count + 1) if count <= 16 else [round(tick) for tick in nice_ticks(1, count, 12)]
    spoken = f"Cycles of {count} compiles; the best is {best / base:.2%} of the default. The table below has the numbers"
    labels = [axis_labels("h-chart", y_ticks, "of the default's cycles"), '<div class="h-ticks"></div>']
    named = f'<span class="line-name" style="bottom:{(1 - low) / (high - low) * 100:.1f}%">XLA\'s default</span>'
    panels = [
        f'<div class="h-chart frame">{svg("".join(drawn), spoken)}{named}</div>',
        time_labels(((across(tick) / WIDE, f"{tick:,}") for tick in x_ticks), "compile"),
    ]
    return plot(labels, panels, "Trials")


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
