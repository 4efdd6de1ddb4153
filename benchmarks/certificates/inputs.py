"""What is certified of what `solve` proves, over inputs of any kind.

    python -m benchmarks.certificates.inputs --time-limit 10 --json-out orders.json ../shared/corpus/order/*

Each input is solved with a certificate. Results are kept as they come, by path and target: a run that was interrupted goes on
where it was, and the table is of the inputs that were named.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import stowplan
from benchmarks.lib.tables import table
from stowplan import files
from stowplan.certificates.maker import certify
from stowplan.kernel.certification import seconds_after


def measure(path: Path, target: str | None, time_limit: float, workers: int, seconds: float | None) -> dict[str, Any]:
    """Solve an input, certify its bound and check that; plain values. Seconds of making and checking are of the processor."""
    problem: Any = stowplan.read(path, **({} if target is None else {"target": target}))
    result = stowplan.solve(problem, time_limit=time_limit, workers=workers)
    limit = seconds_after(time_limit, time_limit - result.seconds) if seconds is None else seconds
    began = time.process_time()
    found = certify(
        problem,
        bound=result.bound,
        infeasible=result.status == "infeasible",
        plan=result.plan,
        # Others may share the processor.
        seconds=10 * limit,
        should_stop=lambda: time.process_time() - began > limit,
    )
    making, checking = time.process_time() - began, 0.0
    if found.is_proof:
        found.check(problem)
        checking = time.process_time() - began - making
    return {
        "kind": result.kind,
        "status": result.status,
        "objective": result.objective,
        "bound": result.bound,
        "certified": found.bound if found.is_proof else None,
        "proof": found.form,
        "less %": None if not found.bound or not result.bound else round(100 * (1 - found.bound / result.bound), 4),
        "making s": round(making, 2),
        "checking s": round(checking, 2),
        # Of two numbers the first decides.
        "scale": 1 if result.unit.pair is None else result.unit.pair.scale,
    }


def is_certified(row: dict[str, Any]) -> bool:
    """Whether the certificate shows the optimum, of two numbers the first."""
    if row["status"] == "infeasible":
        return bool(row["proof"] != "trusted")
    return row["certified"] is not None and row["certified"] // row["scale"] == row["objective"] // row["scale"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("--target")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each")
    parser.add_argument(
        "--proof-seconds", type=float, help="of the processor, for each proof; by default as many as solve --certificate takes"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json-out", type=Path, default=Path("certified-inputs.json"))
    options = parser.parse_args()
    rows = json.loads(options.json_out.read_text()) if options.json_out.exists() else {}
    keys = {path: f"{path} for {options.target}" for path in options.inputs}
    for path, key in keys.items():
        if key in rows:
            continue
        try:
            rows[key] = measure(path, options.target, options.time_limit, options.workers, options.proof_seconds)
        except stowplan.StowplanError as error:
            print(f"{path.name}: left out: {error}")
            continue
        files.write_atomic(options.json_out, files.encode(rows))
    head = ("input", "status", "objective", "bound", "certified", "proof", "less %", "making s", "checking s")
    named = [(path.name, rows[key]) for path, key in keys.items() if key in rows]
    print(table([(name, *(row[each] for each in head[1:])) for name, row in named], head))
    proven = [row for _, row in named if row["status"] in ("optimal", "infeasible")]
    print(f"\n{len(named)} inputs, {len(proven)} proven by solve, {sum(map(is_certified, proven))} of these certified")


if __name__ == "__main__":
    main()
