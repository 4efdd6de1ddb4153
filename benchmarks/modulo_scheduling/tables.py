"""Tables of runs on loop bodies, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.lib.tables import table
from benchmarks.modulo_scheduling.runs import Record


def delay_name(max_delay: int | None) -> str:
    """As ``--max-delay`` takes it."""
    return "unlimited" if max_delay is None else str(max_delay)


def kernel_table(rows: Sequence[tuple[Record, Mapping[str, Sequence[Record]]]]) -> str:
    """A row for each graph: the run that proves, and beside it, by method, runs with several seeds."""
    methods = list(rows[0][1]) if rows else []
    proven = ("II", "II proven", "II proven after", "latency, clocks", "latency proven", "seconds")
    head = ("graph", "instructions", "MII", *proven, *methods)
    return table(
        (
            (
                proof.graph,
                proof.instructions,
                proof.mii,
                "–" if proof.ii is None else proof.ii,
                _verdict(proof),
                "" if proof.proven_after is None else f"{proof.proven_after:.1f} s",
                "–" if proof.makespan is None else proof.makespan,
                _latency_verdict(proof),
                f"{proof.seconds:.0f}",
                *(_seeds(others[method]) for method in methods),
            )
            for proof, others in rows
        ),
        head,
    )


def _verdict(record: Record) -> str:
    if record.status == "infeasible":
        return "infeasible"
    return "minimal" if record.is_proven else f"{record.ii_bound} or more"


def _latency_verdict(record: Record) -> str:
    if record.makespan is None or not record.is_proven:
        return ""
    bound = record.makespan_bound or 0
    return "minimal" if record.makespan <= bound else f"{max(bound, record.path)} or more"


def _seeds(records: Sequence[Record]) -> str:
    """Intervals and the latency of the best; of several seeds the smallest and the largest interval."""
    plans = [record for record in records if record.ii is not None]
    if not plans:
        return "none"
    intervals = [record.ii for record in plans if record.ii is not None]
    low, high = min(intervals), max(intervals)
    best = min(record.makespan or 0 for record in plans if record.ii == low)
    missing = f"; none with {len(records) - len(plans)} of {len(records)} seeds" if len(plans) < len(records) else ""
    return (f"{low}" if low == high else f"{low} to {high}") + f" ({best}){missing}"


def outcome_table(records: Mapping[str, Sequence[Record]]) -> str:
    """Columns by limit of delays: how many graphs came to which end, and when."""
    rows = []
    for title, test in (
        ("initiation interval proven minimal", lambda each: each.is_proven),
        ("proven infeasible", lambda each: each.status == "infeasible"),
        ("mapping found, minimum not proven", lambda each: each.ii is not None and not each.is_proven),
        ("neither mapping nor proof", lambda each: each.ii is None and each.status != "infeasible"),
    ):
        rows.append((title, *(sum(map(test, column)) for column in records.values())))
    for title, part in (
        ("time after which half of all graphs are proven", 50),
        ("time after which nine of ten graphs are proven", 90),
    ):
        rows.append((title, *(_quantile(column, part) for column in records.values())))
    rows.append(
        ("II divided by MII, mean over graphs with a proven minimum", *(_over_mii(column) for column in records.values()))
    )
    return table(rows, ("outcome", *(f"delays {name}" for name in records)))


def _quantile(records: Sequence[Record], part: int) -> str:
    """Seconds after which so many of 100 graphs were settled; those that were not count as never."""
    times = sorted(each.proven_after for each in records if each.proven_after is not None)
    at = int(np.ceil(len(records) * part / 100))
    return f"{times[at - 1]:.1f} s" if 0 < at <= len(times) else "not within the limit"


def _over_mii(records: Sequence[Record]) -> str:
    ratios = [each.ii / each.mii for each in records if each.is_proven and each.ii is not None]
    return f"{statistics.fmean(ratios):.2f}" if ratios else ""


def suite_table(records: Mapping[str, Sequence[Record]]) -> str:
    """Rows by suite, columns by limit of delays: proven, proven infeasible, only found, neither."""
    suites = sorted({each.suite for column in records.values() for each in column})
    rows = []
    for suite in suites:
        cells = []
        for column in records.values():
            here = [each for each in column if each.suite == suite]
            infeasible = sum(each.status == "infeasible" for each in here)
            cells.append(f"{sum(each.is_proven for each in here)}, {infeasible}, {sum(each.ii is not None for each in here)}")
        rows.append((suite, max(sum(each.suite == suite for each in column) for column in records.values()), *cells))
    return table(rows, ("suite", "graphs", *(f"delays {name}" for name in records)))


def open_table(records: Mapping[str, Sequence[Record]]) -> str:
    """The graphs whose initiation interval is not settled, by limit of delays."""
    rows = [
        (
            f"{each.graph} ({each.suite})",
            name,
            each.instructions,
            each.mii,
            "–" if each.ii is None else each.ii,
            f"{each.ii_bound} or more",
        )
        for name, column in records.items()
        for each in column
        if not each.is_proven and each.status != "infeasible"
    ]
    return table(rows, ("graph", "delays", "instructions", "MII", "II", "proven")) if rows else "None."
