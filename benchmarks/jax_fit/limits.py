"""Limits of HBM for training steps of jax: what is reached, by which policy, and what jax's own policies need.

    python -m benchmarks.jax_fit.limits tpu-v5e --folder DIR --results FILE [--compiles N] [--only PROGRAM ...]
    python -m benchmarks.jax_fit.limits --results FILE --print

A limit is a multiple of the peak of making everything again. Previews are kept in ``--folder``, rows in ``--results``: a run
that was interrupted goes on where it was. Needs jax and libtpu.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks.jax_fit import programs
from benchmarks.lib.tables import table
from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.jax import FitReport, fit

#: Limits, as multiples of the peak of making everything again. The first cannot be met by it.
SHARES = (0.9, 1.1, 1.3, 1.7)

_MIB = 1 << 20


def run(name: str, target: str, share: float, folder: Path, compiles: int) -> dict[str, Any]:
    """One row."""
    loss, arguments, _ = programs.make(name)
    base = fit(loss, arguments, 1 << 50, target, folder=folder, previews=1, compiles=0).report.candidates[0].hbm_bytes
    row = {"program": name, "target": target, "share": share, "limit": int(share * base), "again": base}
    try:
        report = fit(loss, arguments, row["limit"], target, folder=folder, compiles=compiles).report
    except MemoryLimitError as error:
        return row | {"least": error.least}
    return row | _row(report)


def _row(report: FitReport) -> dict[str, Any]:
    within = [each for each in report.candidates if 0 < each.hbm_bytes <= report.limit]
    stock = [each for each in within if each.policy.kind != "planned"]
    best = min(stock, key=lambda each: (not each.cycles, each.cycles, each.recomputed_seconds), default=None)
    return {
        "kind": report.chosen.policy.kind,
        "peak": report.chosen.hbm_bytes,
        "again_ms": round(1e3 * report.chosen.recomputed_seconds, 3),
        "cycles": report.chosen.cycles,
        "stock": best and best.policy.kind,
        "stock_again_ms": best and round(1e3 * best.recomputed_seconds, 3),
        "stock_cycles": best and best.cycles,
        "candidates": len(report.candidates),
        "made": report.previews,
        "processor_seconds": report.processor_seconds,
        "predicted": [
            [each.policy.kind, each.saved_bytes, each.predicted_bytes, each.hbm_bytes]
            for each in report.candidates
            if each.predicted_bytes and each.hbm_bytes
        ],
    }


def show(rows: list[dict[str, Any]]) -> None:
    def mib(size: int | None) -> str:
        return f"{size / _MIB:,.0f}" if size else "-"

    print(
        table(
            [
                (
                    row["program"],
                    row["target"],
                    mib(row["limit"]),
                    mib(row.get("peak")) if "peak" in row else f"least {mib(row['least'])}",
                    row.get("kind", "-"),
                    row.get("again_ms", "-"),
                    row.get("stock", "-"),
                    row.get("stock_again_ms", "-"),
                    row.get("candidates", "-"),
                )
                for row in rows
            ],
            ("program", "chip", "limit, MiB", "peak", "policy", "makes again, ms", "best of jax's", "ms", "candidates"),
        )
    )
    errors = [abs(predicted / peak - 1) for row in rows for _, _, predicted, peak in row.get("predicted", ())]
    if errors:
        print(f"predicted peaks: {len(errors)}, mean error {statistics.mean(errors):.1%}, most {max(errors):.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path("out/jax_fit"))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--compiles", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=programs.PROGRAMS)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    rows = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    done = {(row["program"], row["target"], row["share"]) for row in rows}
    for target in options.targets:
        for name in options.only:
            for share in SHARES:
                if (name, target, share) not in done:
                    rows.append(run(name, target, share, options.folder, options.compiles))
                    with options.results.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
