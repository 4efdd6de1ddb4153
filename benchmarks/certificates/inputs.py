"""What is certified of what `solve` proves, over inputs of any kind.

    python -m benchmarks.certificates.inputs --time-limit 10 --json-out orders.json ../shared/corpus/order/*

Each input is solved with a certificate. Results are kept as they come: a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import stowplan
from benchmarks.lib.tables import table
from stowplan import files
from stowplan.result import two_numbers


def measure(path: Path, target: str | None, time_limit: float, workers: int) -> dict[str, Any]:
    """Solve an input; plain values."""
    problem: Any = stowplan.read(path, **({} if target is None else {"target": target}))
    result = stowplan.solve(problem, time_limit=time_limit, workers=workers, certify=True)
    pair = two_numbers(result.unit)
    return {
        "kind": result.kind,
        "status": result.status,
        "objective": result.objective,
        "bound": result.bound,
        "certified": result.certified_bound,
        "proof": result.proof or "trusted",
        # Of two numbers the first decides.
        "scale": 1 if pair is None else pair[1],
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
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json-out", type=Path, default=Path("certified-inputs.json"))
    options = parser.parse_args()
    rows = json.loads(options.json_out.read_text()) if options.json_out.exists() else {}
    for path in options.inputs:
        if path.name in rows:
            continue
        try:
            rows[path.name] = measure(path, options.target, options.time_limit, options.workers)
        except stowplan.StowplanError as error:
            print(f"{path.name}: left out: {error}")
            continue
        files.write_atomic(options.json_out, files.encode(rows))
    head = ("input", "status", "objective", "bound", "certified", "proof")
    print(table([(name, *(row[each] for each in head[1:])) for name, row in rows.items()], head))
    proven = [row for row in rows.values() if row["status"] in ("optimal", "infeasible")]
    print(f"\n{len(rows)} inputs, {len(proven)} proven by solve, {sum(map(is_certified, proven))} of these certified")


if __name__ == "__main__":
    main()
