"""Limits of HBM for training steps of jax: what is reached, by which policy, and what jax's own policies need.

    python -m benchmarks.jax_fit.limits tpu-v5e --folder DIR --results FILE [--compiles N] [--only PROGRAM ...]
    python -m benchmarks.jax_fit.limits --results FILE --print

A limit is a multiple of the peak of making everything again. Previews are kept in ``--folder``, rows in ``--results``: a run
that was interrupted goes on where it was. With ``--compiles``, policies within a limit are compared by cycles. Needs jax and
libtpu.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from itertools import groupby
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from benchmarks.jax_fit import programs
from benchmarks.lib.tables import table
from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.jax import FitReport, fit

#: Limits, as multiples of the peak of making everything again.
SHARES = (1.1, 1.3, 1.7)

_MIB = 1 << 20


def run(name: str, target: str, share: float, folder: Path, compiles: int) -> dict[str, Any]:
    """One row."""
    loss, arguments, _ = programs.make(name)
    base = fit(loss, arguments, 1 << 50, target, folder=folder, previews=1, compiles=0).report.candidates[0].hbm_bytes
    row = {"program": name, "target": target, "share": share, "compiles": compiles, "limit": int(share * base), "again": base}
    try:
        report = fit(loss, arguments, row["limit"], target, folder=folder, compiles=compiles).report
    except MemoryLimitError as error:
        return row | {"least": error.least}
    return row | _row(report)


def _row(report: FitReport) -> dict[str, Any]:
    within = [candidate for candidate in report.candidates if 0 < candidate.hbm_bytes <= report.limit]
    stock = [candidate for candidate in within if not candidate.policy.is_planned]
    best = min(
        stock,
        key=lambda seen: (not seen.cycles, seen.cycles, seen.recomputed_seconds + seen.host_seconds),
        default=None,
    )
    return {
        "kind": report.chosen.policy.kind,
        "peak": report.chosen.hbm_bytes,
        "again_ms": round(1e3 * report.chosen.recomputed_seconds, 3),
        "cycles": report.chosen.cycles,
        "stock": best and best.policy.kind,
        "stock_again_ms": best and round(1e3 * best.recomputed_seconds, 3),
        "stock_cycles": best and best.cycles,
        "of_each": [[candidate.policy.kind, candidate.hbm_bytes, candidate.cycles] for candidate in within],
        "candidates": len(report.candidates),
        "made": report.previews,
        "processor_seconds": report.processor_seconds,
        "predicted": [
            [candidate.policy.kind, candidate.saved_bytes, candidate.predicted_bytes, candidate.hbm_bytes]
            for candidate in report.candidates
            if candidate.predicted_bytes and candidate.hbm_bytes
        ],
    }


def show(rows: list[dict[str, Any]]) -> None:
    """A line for each row, then what is to be said of all."""

    def mib(size: int | None) -> str:
        return f"{size / _MIB:,.0f}" if size else "-"

    def mega(cycles: int | None) -> str:
        return f"{cycles / 1e6:,.2f}" if cycles else "-"

    print(
        table(
            [
                (
                    row["program"],
                    row["target"],
                    mib(row.get("limit")),
                    mib(row.get("peak")) if "peak" in row else f"least {mib(row['least'])}",
                    row.get("kind", "-"),
                    row.get("again_ms", "-"),
                    row.get("stock", "-"),
                    row.get("stock_again_ms", "-"),
                    mega(row.get("cycles")),
                    mega(row.get("stock_cycles")),
                    row.get("candidates", "-"),
                )
                for row in rows
            ],
            (
                *("program", "chip", "limit, MiB", "peak", "policy", "makes again, ms", "best of jax's", "ms"),
                *("Mcycles", "of jax's", "candidates"),
            ),
        )
    )
    within = sum("peak" in row for row in rows)
    print(f"within the limit: {within} of {len(rows)}; most previews {max(row.get('candidates', 0) for row in rows)}")
    seconds = [row["processor_seconds"] for row in rows if row.get("made") and not row.get("compiles")]
    if seconds:
        print(f"processor seconds of previews: {statistics.median(seconds):.1f} in the median, {max(seconds):.1f} at most")
    _show_predictions("all", rows)
    for name, group in (("seen", programs.SEEN), ("held out", programs.HELD_OUT)):
        _show_predictions(name, [row for row in rows if row["program"] in group])
    gains = [1 - row["cycles"] / row["stock_cycles"] for row in rows if row.get("cycles") and row.get("stock_cycles")]
    if gains:
        what = f"{statistics.median(gains):.1%} in the median, {min(gains):.1%} at least, {max(gains):.1%} at most"
        print(f"cycles less than the best of jax's within the limit, of {len(gains)}: {what}")


def _show_predictions(name: str, rows: list[dict[str, Any]]) -> None:
    """How far predicted peaks are off, and how they rank those of one program and chip."""
    errors, ranks = [], []
    places = sorted(rows, key=lambda row: (row["program"], row["target"]))
    for _, group in groupby(places, key=lambda row: (row["program"], row["target"])):
        pairs = {(predicted, peak) for row in group for _, _, predicted, peak in row.get("predicted", ())}
        errors += [abs(predicted / peak - 1) for predicted, peak in pairs]
        if len(pairs) > 3:
            ranks.append(float(spearmanr(sorted(pairs)).statistic))
    if errors:
        line = f"{name}: {len(errors)} predicted peaks, mean error {statistics.mean(errors):.1%}, most {max(errors):.1%}"
        print(line + (f"; ranks {statistics.median(ranks):.2f} in the median, {min(ranks):.2f} at least" if ranks else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path("out/jax_fit"))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--compiles", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=(*programs.SEEN, *programs.HELD_OUT))
    parser.add_argument("--shares", nargs="*", type=float, default=SHARES)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    rows = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    done = {(row["program"], row["target"], row["share"], row.get("compiles", 0)) for row in rows}
    for target in options.targets:
        for name in options.only:
            for share in options.shares:
                if (name, target, share, options.compiles) not in done:
                    rows.append(run(name, target, share, options.folder, options.compiles))
                    with options.results.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
