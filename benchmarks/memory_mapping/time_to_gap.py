"""Cost as programs grow: seconds until a plan is proven to be within a gap, against uses, on logarithmic axes.

    python -m benchmarks.memory_mapping.modules --time-limit 60 --json-out results.json
    python -m benchmarks.memory_mapping.time_to_gap results-60s.json --gap 0.02 --png docs/results/time-to-gap.png

Modules that did not come so far within their limit are drawn apart, at the limit, and are left out of the fitted power law,
which is therefore that of the modules that did; the numbers of both are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

#: Seconds below which times say more of starting processes than of solving.
SHORTEST = 0.1


def seconds_to_gap(row: dict[str, Any], gap: float) -> float | None:
    """Seconds after which objective and bound were first within the gap; None where they never were."""
    for seconds, objective, bound in row["history"]:
        if objective is not None and bound is not None and objective - bound <= gap * objective:
            return max(SHORTEST, float(seconds))
    return None


def fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Exponent and factor of the power law that fits best in logarithms: seconds = factor * uses ** exponent."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    exponent = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return exponent, math.exp(mean_y - exponent * mean_x)


def draw(rows: dict[str, dict[str, Any]], gap: float, path: Path) -> None:
    """The plot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    reached = [(row["uses"], found) for row in rows.values() if (found := seconds_to_gap(row, gap)) is not None]
    missed = [(name, row) for name, row in rows.items() if seconds_to_gap(row, gap) is None]
    figure, axes = plt.subplots(figsize=(7.2, 4.8), dpi=130)
    axes.scatter(
        *zip(*reached, strict=True), color="#1f6f8b", label=f"gap of {100 * gap:g} % proven ({len(reached)})", zorder=3
    )
    if missed:
        axes.scatter(
            [row["uses"] for _, row in missed],
            [row["time_limit"] for _, row in missed],
            marker="^", facecolors="none", edgecolors="#b5403a", label=f"not within the limit ({len(missed)})", zorder=3,
        )  # fmt: skip
        for name, row in missed:
            text = f"{name.split('_b')[0]} {100 * row['gap']:.1f} %"
            where = (row["uses"], row["time_limit"])
            axes.annotate(text, where, xytext=(0, 6), textcoords="offset points", fontsize=7, rotation=35, color="#b5403a")
    exponent, factor = fit(reached)
    ends = [min(uses for uses, _ in reached), max(uses for uses, _ in reached)]
    label = f"seconds ∝ uses^{exponent:.2f}"
    axes.plot(ends, [factor * end**exponent for end in ends], color="#8a8a8a", linestyle="--", label=label)
    axes.set(xscale="log", yscale="log", xlabel="uses of tensors in the program", ylabel="seconds")
    axes.set_ylim(top=4 * max(row["time_limit"] for row in rows.values()))
    axes.set_title(f"Seconds until a plan is proven within {100 * gap:g} % of optimal")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, help="what benchmarks/memory_mapping/modules.py --json-out wrote")
    parser.add_argument("--gap", type=float, default=0.02)
    parser.add_argument("--png", type=Path, help="where to draw the plot")
    options = parser.parse_args()
    rows = json.loads(options.results.read_bytes())
    if not all("history" in row for row in rows.values()):
        sys.exit(f"{options.results}: results without history; run benchmarks/memory_mapping/modules.py again with --fresh")
    for name, row in sorted(rows.items(), key=lambda item: item[1]["uses"]):
        seconds = seconds_to_gap(row, options.gap)
        shown = f"> {row['time_limit']:g}" if seconds is None else f"{seconds:.2f}"
        print(f"{row['uses']:>7,}  {shown:>7} s  {name}")
    reached = [(row["uses"], found) for row in rows.values() if (found := seconds_to_gap(row, options.gap)) is not None]
    if len({uses for uses, _ in reached}) < 2:
        sys.exit("too few modules reached the gap for a power law")
    exponent, factor = fit(reached)
    print(f"{len(reached)} of {len(rows)} within {100 * options.gap:g} %; seconds = {factor:.2g} * uses^{exponent:.2f}")
    if options.png:
        draw(rows, options.gap, options.png)


if __name__ == "__main__":
    main()
