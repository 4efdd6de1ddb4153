"""Tables of what ``guides.py`` has measured, with intervals of confidence over the seeds."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.lib.tables import table

#: Parts of the budget at which objectives are noted.
PARTS = (0.1, 1 / 3, 1.0)

#: How close to the best plan known of a module, for the times until then.
CLOSE = (0.01, 0.001)

#: Where the relaxation gains less than this (gap %) in the mean of the modules, parts of that say nothing.
LEAST_GAIN = 0.1

#: A guide's worth is counted at this part of the budget: 3 s of 10.
WORTH_AT = 0.3

CONFIDENCE = 0.95


def objective_at(history: list[Any], moment: float, otherwise: int) -> int:
    """The best objective until a moment."""
    return min((objective for seconds, objective in history if seconds <= moment), default=otherwise)


def gap(row: dict[str, Any], history: list[Any], part: float) -> float:
    """Gap (%) to the bound after a part of the budget."""
    return 100 * (1 - row["bound"] / objective_at(history, part * row["seconds"], row["all_slow"]))


def integral(row: dict[str, Any], history: list[Any]) -> float:
    """Mean gap (%) over the budget: the primal integral over the time."""
    moments = [0.0, *(min(seconds, row["seconds"]) for seconds, _ in history), row["seconds"]]
    gaps = [100 * (1 - row["bound"] / value) for value in (row["all_slow"], *(objective for _, objective in history))]
    best = np.minimum.accumulate(gaps)
    return float(np.sum(np.diff(moments) * best) / row["seconds"])


def time_to(row: dict[str, Any], history: list[Any], close: float, best: int) -> float:
    """Processor seconds until a plan is so close to the best known; infinity where the budget ends before."""
    return min((seconds for seconds, objective in history if objective <= (1 + close) * best), default=math.inf)


def interval(values: list[float]) -> str:
    """Mean and half the width of its interval of confidence (Student's t)."""
    mean = statistics.fmean(values)
    if len(values) < 2 or not np.isfinite(values).all():
        return f"{mean:.2f}"
    half = stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.2f} ± {half:.2f}"


def median(values: list[float]) -> str:
    """Median of times, of which some may be infinite."""
    found = statistics.median(values)
    return f"{found:.1f}" if math.isfinite(found) else "–"


def summary(rows: dict[str, Any], guides: list[str]) -> str:
    """A row for each module and guide."""
    lines = []
    for name, row in rows.items():
        histories = row["histories"]
        best = min(h[-1][1] for seeds in histories.values() for h in seeds.values() if h)
        for guide in guides:
            found = [*histories.get(guide, {}).values()]
            if not found:
                continue
            cells = [name, guide, str(len(found))]
            cells += [interval([gap(row, history, part) for history in found]) for part in PARTS]
            cells += [median([time_to(row, history, close, best) for history in found]) for close in CLOSE]
            cells.append(interval([integral(row, history) for history in found]))
            lines.append(cells)
    parts = [f"gap % at {part * next(iter(rows.values()))['seconds']:.1f} s" for part in PARTS] if rows else []
    head = ["module", "guide", "seeds", *parts, "s to 1 %", "s to 0.1 %", "mean gap %"]
    return table(lines, head)


def ends(rows: dict[str, Any], guides: list[str]) -> str:
    """Gaps at the end of the budget, a row for each module."""
    lines = []
    for name, row in rows.items():
        found = [[gap(row, history, 1.0) for history in row["histories"].get(guide, {}).values()] for guide in guides]
        lines.append([name, *(interval(gaps) if gaps else "" for gaps in found)])
    return table(lines, ["module", *guides])


def worth(rows: dict[str, Any], guides: list[str]) -> str:
    """Part of the relaxation's gain that each guide has: mean over the modules, with an interval by bootstrap over seeds."""
    rng = np.random.default_rng(0)
    lines = []
    for guide in guides:
        for part in (PARTS[0], WORTH_AT, PARTS[-1]):
            samples = [
                [[gap(row, h, part) for h in row["histories"].get(each, {}).values()] for each in ("none", "relaxation", guide)]
                for row in rows.values()
            ]
            if guide in ("none", "relaxation") or not samples or any(not each for sample in samples for each in sample):
                continue
            means = [[statistics.fmean(each) for each in sample] for sample in samples]
            if sum(none - relaxed for none, relaxed, _ in means) < LEAST_GAIN * len(means):
                continue

            def share(draw: bool, samples: list[Any] = samples) -> float:
                drawn = [[np.mean(rng.choice(each, len(each)) if draw else each) for each in sample] for sample in samples]
                none, relaxed, found = np.sum(drawn, axis=0)
                return float(100 * (none - found) / (none - relaxed)) if none != relaxed else math.nan

            low, high = np.nanpercentile([share(True) for _ in range(2000)], [2.5, 97.5])
            single = [f"{100 * (n - f) / (n - r):.0f}" if abs(n - r) > 0.02 else "–" for n, r, f in means]
            lines.append([guide, f"{part:.1f}", f"{share(False):.0f} ({low:.0f} to {high:.0f})", *single])
    return table(lines, ["guide", "part of the budget", "all, % of the relaxation's gain", *rows])
