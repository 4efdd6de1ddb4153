"""Pictures of runs of EGRL, after figures 3 to 6 of Khadka et al., ICLR 2021; matplotlib comes with the extra ``viz``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.egrl.methods import MOMENTS, VARIANTS
from benchmarks.egrl.tables import Place, Records, best_at, differences, standard_error, titles
from benchmarks.egrl.transfer import Transfer, Trial, even, speedups_of, transfers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours of axes and captions, and of faint lines.
INK, FAINT = "#333333", "#e4e4e4"

#: Colours of Okabe and Ito (2008), which colour-blind eyes tell apart; lines differ in their dashes as well.
BLUE, ORANGE, PURPLE, GREEN, SKY, GREY, DARK_RED = "#0072b2", "#e69f00", "#cc79a7", "#009e73", "#56b4e9", "#8a8a8a", "#8c2d3c"

#: Colour, dashes and width of each method's line.
LINES: Mapping[str, tuple[str, str, float]] = {
    "egrl": (BLUE, "-", 2.4),
    "ea": (ORANGE, "-", 1.6),
    "pg": (PURPLE, "-", 1.6),
    "greedy_dp": (INK, "--", 1.4),
    "greedy_dp_repaired": (INK, "-.", 1.4),
    "random": (GREY, ":", 1.6),
    "annealing": (SKY, "--", 1.4),
    "search": (GREEN, "-.", 1.6),
}

#: Where the compiler and the optimum stand, in all pictures.
COMPILER_LINE = {"color": INK, "linewidth": 1.0, "linestyle": (0, (1, 2))}
OPTIMUM_LINE = {"color": DARK_RED, "linewidth": 1.4, "linestyle": (0, (6, 2))}


def save_figure(path: Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> None:
    """Make a figure of so many inches, let ``draw`` fill it, and write it; the same drawing gives the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(path, dpi=130, metadata={"Software": None})


def _grid(figure: Figure, places: Sequence[Place]) -> dict[Place, Axes]:
    """A panel for each place: networks from left to right, precisions from top to bottom."""
    networks, precisions = (list(dict.fromkeys(place[at] for place in places)) for at in range(2))
    axes = figure.subplots(len(precisions), len(networks), squeeze=False)
    pairs = [(network, precision) for precision in precisions for network in networks]
    found = dict(zip(pairs, axes.flat, strict=True))
    for place, panel in found.items():
        panel.set_title(" ".join(place), fontsize=10)
        panel.set_visible(place in places)
    return {place: found[place] for place in places}


def _size(places: Sequence[Place], width: float, height: float) -> tuple[float, float]:
    networks, precisions = ({place[at] for place in places} for at in range(2))
    return width * len(networks) + 0.4, height * len(precisions) + 0.7


def _plain(panel: Axes) -> None:
    panel.grid(color=FAINT, linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _label_axes(panels: Mapping[Place, Axes], across: str, up: str) -> None:
    """Name the axes at the left and the lower edge of a grid of panels."""
    networks, precisions = (list(dict.fromkeys(place[at] for place in panels)) for at in range(2))
    for (network, precision), panel in panels.items():
        if network == networks[0]:
            panel.set_ylabel(up)
        if precision == precisions[-1]:
            panel.set_xlabel(across)


def _legend_below(figure: Figure, panels: Sequence[Axes], inches: float = 1.35) -> None:
    """One legend for all panels, each name once; ``inches`` is what a name takes."""
    named = {label: line for panel in panels for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    columns = max(1, min(int(figure.get_figwidth() / inches), len(named)))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def curves(records: Records, methods: Sequence[str], path: Path, evaluations: int) -> None:
    """Figure 3: best speedup so far over evaluations, mean and standard deviation over seeds."""
    places = records.places
    save_figure(path, _size(places, 3.4, 2.9), partial(_curves, records, methods, evaluations))


def _curves(records: Records, methods: Sequence[str], evaluations: int, figure: Figure) -> None:
    panels = _grid(figure, records.places)
    used = np.unique(np.linspace(1, evaluations, 400).astype(int))
    for place, panel in panels.items():
        for method in methods:
            group = records.of(place, method)
            if not group:
                continue
            found = np.array([[best_at(record, at) for at in used] for record in group])
            colour, dashes, width = LINES[method]
            mean, deviation = found.mean(axis=0), found.std(axis=0, ddof=1) if len(group) > 1 else np.zeros(len(used))
            # EGRL is drawn above the others.
            look = {"color": colour, "linewidth": width, "linestyle": dashes, "zorder": 3 if method == "egrl" else 2}
            panel.plot(used, mean, drawstyle="steps-post", label=titles([method])[0], **look)
            low, high = np.maximum(0, mean - deviation), mean + deviation
            panel.fill_between(used, low, high, step="post", color=colour, alpha=0.18, linewidth=0)
        panel.axhline(1, label="compiler", **COMPILER_LINE)
        best = records.optimum(place)
        if best is not None:
            panel.axhline(best.speedup, label="proven optimum", **OPTIMUM_LINE)
        panel.set_xlim(0, evaluations)
        panel.set_ylim(0, 1.07 * max(1.0, best.speedup if best else panel.get_ylim()[1]))
        _plain(panel)
    _label_axes(panels, "evaluations of the chip", "best speedup so far")
    _legend_below(figure, list(panels.values()))


def bars(records: Records, methods: Sequence[str], path: Path) -> None:
    """Attribution: difference of each variant to EGRL, its mean and standard error; faint marks are single networks.

    PG, which is far behind them, would flatten all others, and stands in the table alone.
    """
    shown = [method for method in methods if method not in ("egrl", "pg") and differences(records, method)]
    if not shown:
        return
    save_figure(path, (8.0, 0.42 * len(shown) + 1.4), partial(_bars, records, shown))


def _bars(records: Records, methods: Sequence[str], figure: Figure) -> None:
    panel = figure.subplots()
    markers = dict(zip(records.places, "osD^vP*X", strict=False))
    for row, method in enumerate(methods):
        found = differences(records, method)
        mean, error = 100 * statistics.fmean(found), 100 * standard_error(found)
        label = "mean, standard error" if not row else None
        panel.errorbar(mean, row, xerr=error, fmt="|", color=BLUE, markersize=16, capsize=4, markeredgewidth=2.4, label=label)
        for place, marker in markers.items():
            own = differences(Records(records.of(place, "egrl") + records.of(place, method)), method)
            if own:
                at, label = 100 * statistics.fmean(own), " ".join(place) if not row else None
                panel.plot(at, row, marker, color=GREY, markersize=5, alpha=0.8, linestyle="", label=label)
    panel.axvline(0, color=INK, linewidth=1)
    panel.set_yticks(range(len(methods)), titles(methods, VARIANTS))
    panel.set_ylim(len(methods) - 0.5, -0.5)
    panel.set_xlabel("final speedup beside EGRL's, percent")
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    _plain(panel)


#: Lines of figure 4: whose policy, what is made of it, colour, dashes, marker.
TRANSFER_LINES = (
    ("learner", "filled", BLUE, "-", "o"),
    ("learner", "rectified", BLUE, "--", "o"),
    ("learner", "likeliest", BLUE, ":", "o"),
    ("member", "filled", ORANGE, "-", "s"),
    ("member", "rectified", ORANGE, "--", "s"),
    ("member", "likeliest", ORANGE, ":", "s"),
)


def transfer(records: Records, found: Sequence[Trial], path: Path) -> None:
    """Figure 4: policies on networks that they were not trained on, over their training."""
    rows: dict[tuple[str, str], list[Transfer]] = {}
    for each in transfers(found):
        rows.setdefault((each.source, each.precision), []).append(each)
    size = (3.6 * max(map(len, rows.values())) + 0.4, 2.9 * len(rows) + 0.9)
    save_figure(path, size, partial(_transfer, records, found, list(rows.values())))


def _transfer(records: Records, found: Sequence[Trial], rows: Sequence[Sequence[Transfer]], figure: Figure) -> None:
    axes = figure.subplots(len(rows), max(map(len, rows)), squeeze=False)
    for panels, row, is_last in zip(axes, rows, [each is rows[-1] for each in rows], strict=True):
        for number, panel in enumerate(panels):
            panel.set_visible(number < len(row))
        for panel, each in zip(panels, row, strict=False):
            _draw_transfer(panel, records, found, each)
            if panel is panels[0]:
                panel.set_ylabel("speedup over the compiler")
            if is_last:
                panel.set_xlabel("training done, percent of the evaluations")
    _legend_below(figure, list(axes.flat), inches=2.7)


def _draw_transfer(panel: Axes, records: Records, found: Sequence[Trial], transfer: Transfer) -> None:
    for policy, decoding, colour, dashes, marker in TRANSFER_LINES:
        groups = {moment: speedups_of(found, transfer, policy, decoding, moment) for moment in MOMENTS}
        known = [moment for moment, group in groups.items() if group]
        means = np.array([statistics.fmean(groups[moment]) for moment in known])
        spread = np.array([statistics.stdev(groups[moment]) if len(groups[moment]) > 1 else 0.0 for moment in known])
        if known:
            label = f"{'best graph network' if policy == 'member' else policy}, {decoding}"
            panel.plot(known, means, color=colour, linestyle=dashes, marker=marker, markersize=4, label=label)
            panel.fill_between(known, np.maximum(0, means - spread), means + spread, color=colour, alpha=0.12, linewidth=0)
    panel.axhline(1, label="compiler", **COMPILER_LINE)
    place = transfer[1:]
    greedy, best = records.mean(place, "greedy_dp"), records.optimum(place)
    if greedy is not None:
        panel.axhline(greedy, color=GREEN, linewidth=1.4, linestyle="-.", label="Greedy-DP on the network itself")
    if best is not None:
        panel.axhline(best.speedup, label="proven optimum", **OPTIMUM_LINE)
    filled = even(*place)
    if filled is not None:
        panel.axhline(filled, color=GREY, linewidth=1.4, linestyle="-", label="filled without any policy", zorder=1)
    panel.set_title(f"{transfer.source} → {transfer.target}, {transfer.precision}", fontsize=10)
    panel.set_xlim(0, 103)
    panel.set_ylim(bottom=0)
    _plain(panel)
