"""Curves of the best reward over time, as pictures (figures 5 and 7 of Wang et al. 2023) and in tables."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.tables import table
from benchmarks.muzero.runs import Record


def best_at(found: Record, seconds: float) -> float:
    """Best R that a run had by a moment; NaN before its first game."""
    number = bisect_right(found.points, seconds, key=lambda point: point[0])
    return found.points[number - 1][2] if number else math.nan


def over_time(records: Sequence[Record], moments: Sequence[float]) -> str:
    """Mean over seeds of the best R so far, at some moments: one row for each program and method."""
    rows = []
    for program, method in dict.fromkeys((each.program, each.method) for each in records):
        group = [each for each in records if (each.program, each.method) == (program, method)]
        means = [sum(best_at(each, moment) for each in group) / len(group) for moment in moments]
        rows.append([program, method, *("" if math.isnan(mean) else f"{mean:.4f}" for mean in means)])
    return table(rows, ["program", "method", *(f"{moment:g} s" for moment in moments)])


def draw(records: Sequence[Record], path: Path, title: str) -> None:
    """One panel for each program, one line for each method: mean over seeds, shaded from the worst seed to the best."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    programs = list(dict.fromkeys(each.program for each in records))
    methods = list(dict.fromkeys(each.method for each in records))
    columns = min(2, len(programs))
    height = -(-len(programs) // columns)
    figure, axes = plt.subplots(height, columns, figsize=(5.5 * columns, 3.6 * height), squeeze=False, layout="constrained")
    for panel, program in zip(axes.flat, programs, strict=False):
        for number, method in enumerate(methods):
            group = [each for each in records if (each.program, each.method) == (program, method)]
            if not group:
                continue
            times = np.geomspace(0.1, max(each.seconds for each in group), 200)
            curves = np.array([[best_at(each, moment) for moment in times] for each in group])
            # A seed without a game yet would make the mean of the others look better than it is.
            known = ~np.isnan(curves).any(axis=0)
            panel.plot(times[known], curves[:, known].mean(axis=0), label=method, color=f"C{number}")
            panel.fill_between(
                times[known], curves[:, known].min(axis=0), curves[:, known].max(axis=0), color=f"C{number}", alpha=0.2, lw=0
            )
        panel.set(title=program, xscale="log", xlabel="seconds", ylabel="best reward R")
        panel.grid(alpha=0.3)
    for panel in list(axes.flat)[len(programs) :]:
        panel.set_visible(False)
    axes.flat[0].legend(fontsize="small")
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
