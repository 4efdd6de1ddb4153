"""Whether a learned rule could end runs of memory mapping sooner: ``python -m benchmarks.guidance.stop_rule RESULTS ...``.

RESULTS are files of ``benchmarks.memory_mapping.modules --json-out``, which have the history of every run. At every half second
a logistic regression on how large the program is, how far the run has come, its gap, and what it has gained lately says whether
the plan will be better by more than 0.05 % at the end; the run ends where that is less likely than a threshold. Weights and
threshold are of the runs of all other families: the threshold is the one that ends those soonest with at most 0.05 % lost in
the mean. Runs that are proven before that end as they did.

The controls are the same with a clock alone (every run ends after the same part of the limit, chosen in the same way), and with
hindsight: the first moment of a plan within 0.05 % of the last.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.guidance.data import family
from benchmarks.lib.tables import table

Floats = NDArray[np.float64]

#: Seconds between two decisions; the loss that is none; strength of the regression's penalty.
EVERY, NOTHING, RIDGE = 0.5, 5e-4, 1.0

THRESHOLDS = tuple(np.linspace(0.02, 0.98, 49))


class Run(NamedTuple):
    """One run: when it had which objective and bound."""

    module: str
    uses: int
    limit: float
    seconds: float
    history: list[tuple[float, int | None, int | None]]

    def at(self, seconds: float) -> tuple[int, int]:
        """Objective and bound at a moment."""
        known = [each for each in self.history if each[0] <= seconds and each[1] is not None] or [
            each for each in self.history if each[1] is not None
        ][:1]
        return int(known[-1][1] or 0), int(known[-1][2] or 0)

    @property
    def moments(self) -> list[float]:
        """At which it may be ended."""
        return [EVERY * number for number in range(1, int(self.seconds / EVERY) + 1)]

    def lost(self, seconds: float) -> float:
        """Part of the last objective that is lost where it ends then."""
        last = self.at(math.inf)[0]
        return self.at(seconds)[0] / last - 1.0

    def features(self, seconds: float) -> list[float]:
        """What is known at a moment."""
        now, bound = self.at(seconds)
        changes = [each[0] for each in self.history if each[0] <= seconds and each[1] is not None]
        gains = [(self.at(seconds - back)[0] - now) / now for back in (1.0, 3.0)]
        logs = [math.log10(1e-6 + each) for each in ((now - bound) / now, *gains)]
        return [1.0, math.log10(self.uses), seconds / self.limit, *logs, (seconds - max(changes, default=0.0)) / seconds]


Rule = Callable[[Run], float]


def fitted(runs: list[Run]) -> tuple[Floats, Floats, Floats]:
    """Weights of the regression by Newton's method, with the means and scales of the features."""
    rows = [(run.features(at), run.lost(at) > NOTHING) for run in runs for at in run.moments]
    x, y = np.array([row for row, _ in rows]), np.array([float(label) for _, label in rows])
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
    mean[0], scale[0] = 0.0, 1.0
    x = (x - mean) / scale
    weights = np.zeros(x.shape[1])
    penalty = RIDGE * np.eye(len(weights))
    penalty[0, 0] = 1e-6
    for _ in range(30):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = x.T @ (chance - y) + penalty @ weights
        curve = (x * (chance * (1 - chance))[:, None]).T @ x + penalty
        weights -= np.linalg.solve(curve, slope)
    return weights, mean, scale


def learned(model: tuple[Floats, Floats, Floats], threshold: float) -> Rule:
    """Ends where a gain is less likely than the threshold."""
    weights, mean, scale = model

    def rule(run: Run) -> float:
        for at in run.moments:
            score = float(((np.array(run.features(at)) - mean) / scale) @ weights)
            if 1 / (1 + math.exp(-max(-30.0, min(30.0, score)))) < threshold:
                return at
        return run.seconds

    return rule


def after(part: float) -> Rule:
    """Ends after a part of the limit."""
    return lambda run: min(run.seconds, part * run.limit)


def hindsight(run: Run) -> float:
    """The first moment of a plan that is as good as the last."""
    return min((at for at in run.moments if run.lost(at) <= NOTHING), default=run.seconds)


def measured(runs: list[Run], rule: Rule) -> tuple[float, float]:
    """Mean part of the time, and mean loss."""
    ends = [rule(run) for run in runs]
    parts = [min(1.0, end / run.seconds) for run, end in zip(runs, ends, strict=True)]
    return statistics.fmean(parts), statistics.fmean(run.lost(end) for run, end in zip(runs, ends, strict=True))


def chosen(runs: list[Run], rules: list[Rule]) -> Rule:
    """The rule that ends these soonest without a loss in the mean; the last one where none does."""
    good = [(part, number) for number, rule in enumerate(rules) for part, loss in [measured(runs, rule)] if loss <= NOTHING]
    return rules[min(good, default=(1.0, len(rules) - 1))[1]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    arguments = parser.parse_args()
    runs: list[Run] = []
    for path in arguments.results:
        found: dict[str, dict[str, Any]] = json.loads(path.read_bytes())
        for name, row in found.items():
            history = [(at, objective, bound) for at, objective, bound in row["history"]]
            runs.append(Run(name, row["uses"], row["time_limit"], row["seconds"], history))
    ends: dict[str, list[tuple[Run, float]]] = {"learned": [], "clock": [], "hindsight": []}
    for left_out in sorted({family(run.module) for run in runs}):
        others = [run for run in runs if family(run.module) != left_out]
        model = fitted(others)
        rules = {
            "learned": chosen(others, [learned(model, float(threshold)) for threshold in THRESHOLDS[::-1]]),
            "clock": chosen(others, [after(part / 20) for part in range(1, 21)]),
            "hindsight": hindsight,
        }
        for run in runs:
            if family(run.module) == left_out:
                for name, rule in rules.items():
                    ends[name].append((run, rule(run)))
    rows = []
    for which, is_open in (("all", None), ("not proven at the end", True)):
        for name, found_ends in ends.items():
            of = [(run, end) for run, end in found_ends if is_open is None or run.seconds >= 0.9 * run.limit]
            parts = [100 * min(1.0, end / run.seconds) for run, end in of]
            lost = [100 * run.lost(end) for run, end in of]
            same = sum(each <= 100 * NOTHING for each in lost)
            rows.append(
                [
                    which,
                    name,
                    str(len(of)),
                    f"{statistics.fmean(parts):.0f}",
                    f"{statistics.fmean(lost):.3f}",
                    f"{max(lost):.2f}",
                    str(same),
                ]
            )
    print(table(rows, ("runs", "rule", "number", "time, %", "lost, mean %", "lost, most %", "within 0.05 %")))


if __name__ == "__main__":
    main()
