"""Tables of the runs that ``runs.py`` makes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.lib.tables import table
from benchmarks.ppo.runs import BUDGETS, METHODS, NAMED, SECONDS, Run, Setting, proven


def named(runs: Sequence[Run]) -> list[str]:
    """Methods of the runs, in the order of tables."""
    found = {run.name for run in runs} - {"reference"}
    return [name for name in (*METHODS, *NAMED) if name in found] + sorted(found - {*METHODS, *NAMED})


def shared(runs: Sequence[Run]) -> list[Run]:
    """Runs of the graphs that every method has run on, the reference left out."""
    digests = [{run.digest for run in runs if run.name == name} for name in named(runs)]
    both = set.intersection(*digests) if digests else set()
    return [run for run in runs if run.digest in both and run.method != "reference"]


def texts_of(runs: Sequence[Run], setting: Setting, name: str) -> tuple[dict[str, str], int]:
    """Tables of a setting by their markers, and of how many graphs."""
    covered = [run for run in runs if setting.covers(run)]
    judged = covered
    if setting.first == "latency":
        judged = shared(judged)
        texts = {name: by_latency(judged)}
    elif setting.seconds:
        judged = shared(judged)
        texts = {name: by_graph(judged)}
    else:
        least = proven(covered)
        judged = shared([run for run in judged if run.digest in least])
        texts = {f"{name} evaluations": by_budget(judged, least, "evaluations", BUDGETS)}
        if name == "ppo":
            texts[f"{name} seconds"] = by_budget(judged, least, "seconds", SECONDS)
    return texts, len({run.digest for run in judged})


def spread(values: Sequence[float], show: Callable[[float], str], unit: str = "") -> str:
    """The mean, with the least and the largest where they differ."""
    low, high = show(min(values)), show(max(values))
    mean = show(statistics.fmean(values)) + unit
    return mean if low == high else f"{mean} ({low}–{high})"


def percent(parts: Sequence[float]) -> str:
    """Mean and range of parts of a whole."""
    return spread([100 * each for each in parts], lambda each: f"{each:.0f}", "%")


def shares(runs: Sequence[Run], least: dict[str, int], **limit: float) -> tuple[float, float, float]:
    """Parts of the runs with a plan, within 1 of the proven interval, and at it."""
    gaps = [None if (ii := run.ii(**limit)) is None else ii - least[run.digest] for run in runs]
    count = max(1, len(gaps))
    valid = sum(gap is not None for gap in gaps)
    return (valid / count, sum(gap in (0, 1) for gap in gaps) / count, sum(gap == 0 for gap in gaps) / count)


def _repetitions(runs: Sequence[Run]) -> list[list[Run]]:
    every = sorted({run.repetition for run in runs})
    return [[run for run in runs if run.repetition == each] for each in every]


def by_budget(runs: Sequence[Run], least: dict[str, int], what: str, budgets: Sequence[float]) -> str:
    """Rows of methods and budgets, which are not named where there is one."""
    several = len(budgets) > 1
    rows = []
    for budget in budgets:
        for method in named(runs):
            each = [shares(own, least, **{what: budget}) for own in _repetitions([run for run in runs if run.name == method])]
            rows.append([*[budget] * several, method, *(percent(values) for values in zip(*each, strict=True))])
    return table(rows, [*[what] * several, "method", "a plan", "within 1 of the proven II", "at the proven II"])


def by_graph(runs: Sequence[Run]) -> str:
    """Rows of graphs: the interval that each method came to, mean and range of the seeds; ``none`` where a seed had none."""
    rows, methods = [], named(runs)
    keys = {(run.instructions, run.suite, run.graph, run.least, run.digest) for run in runs}
    for instructions, suite, graph, least, digest in sorted(keys):
        row: list[object] = [suite, graph, instructions, least]
        for method in methods:
            values = [run.ii() for run in runs if (run.name, run.digest) == (method, digest)]
            some = [value for value in values if value is not None]
            lacks = f"none of {len(values) - len(some)} seeds" if len(values) > 1 else "none"
            told = spread(some, lambda each: f"{each:.1f}".removesuffix(".0")) if some else ""
            row.append(told if len(some) == len(values) else f"{told}, {lacks}" if told else "none")
        rows.append(row)
    return table(rows, ["suite", "graph", "instructions", "least II of the bounds", *methods])


def by_latency(runs: Sequence[Run]) -> str:
    """Rows of methods, the least latency first: over the critical path, and the interval over its least, means over graphs.

    Means are of the graphs of which every run has a plan.
    """
    lacking = {run.digest for run in runs if run.best() is None}
    rows = []
    for method in named(runs):
        cells: list[list[float]] = [[], [], []]
        for own in _repetitions([run for run in runs if run.name == method]):
            found: list[Any] = [(run, run.best()) for run in own]
            cells[0].append(sum(best is not None for _, best in found) / len(found))
            whole = [(run, best) for run, best in found if run.digest not in lacking]
            if whole:
                cells[1].append(statistics.fmean(best[1] / run.path for run, best in whole))
                cells[2].append(statistics.fmean(best[0] / run.least for run, best in whole))
        ratios = [spread(each, lambda value: f"{value:.3f}") if each else "" for each in cells[1:]]
        rows.append([method, percent(cells[0]), *ratios])
    return table(rows, ["method", "a plan", "latency over the critical path", "II over its least"])
