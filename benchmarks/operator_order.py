"""Orders of least peak: graphs of exported networks and HLO modules, against the order given and three of PyTorch's Inductor.

    python benchmarks/operator_order.py --time-limit 30 -o results.json ../shared/corpus/order ../shared/corpus/cpu

Each file is solved on its own. A row has the peak of the order given, the best peak of the four orders that Inductor would
compare (given, lpmf, bfs, dfs), ours, the bound, the gap, the arena of our plan, and the seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import stowplan
from stowplan import files

#: Inputs without any kept to the end are read for this target; graph files know what they are.
TARGET = "order"


def inputs(paths: Sequence[Path]) -> Iterator[Path]:
    """Files, and those of folders, by name."""
    for path in paths:
        yield from sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]


def row(path: Path, time_limit: float, seed: int) -> dict[str, Any]:
    """What came of one file."""
    problem = stowplan.read(path) if files.is_json(path) else stowplan.read(path, target=TARGET)
    began = time.monotonic()
    result = stowplan.solve(problem, time_limit=time_limit, seed=seed)
    assert result.objective is not None
    assert result.plan is not None
    return {
        "name": path.name.split(".")[0],
        "folder": path.parent.name,
        "operators": len(problem.ops),
        "given": result.baselines["given"],
        "inductor": min(result.baselines.values()),
        "ours": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "proven": result.status == "optimal",
        "arena": result.plan.arena,
        "seconds": round(time.monotonic() - began, 1),
        "candidate": result.provenance.candidate,
    }


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    mega = [f"{found[name] / 1e6:.2f}" for name in ("given", "inductor", "ours", "bound", "arena")]
    proven = "yes" if found["proven"] else f"{100 * found['gap']:.1f} %"
    cells = [found["folder"], found["name"], f"{found['operators']:,}", *mega, proven, f"{found['seconds']:.1f}"]
    return "| " + " | ".join(cells) + " |"


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """What all rows say together."""
    small = [each for each in rows if each["operators"] <= 1500]
    above = [each["name"] for each in rows if each["ours"] > each["inductor"]]
    train = [each for each in rows if "train" in each["name"] and each["operators"] <= 2000]
    wide = [f"{each['folder']}/{each['name']}" for each in train if each["gap"] > 0.15]
    lines = [
        f"{sum(each['proven'] for each in rows)} of {len(rows)} proven; up to 1,500 operators "
        f"{sum(each['proven'] for each in small)} of {len(small)}",
        f"{sum(each['ours'] < each['inductor'] for each in rows)} below the best of Inductor's four, {len(above)} above it",
        f"arena above the peak: {sum(each['arena'] > each['ours'] for each in rows)}",
        f"training graphs up to 2,000 operators with a gap above 15 %: {len(wide)} of {len(train)} {' '.join(wide)}",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run all, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="graph files, ONNX models, HLO modules, or folders of them")
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("-o", "--output", type=Path, help="rows as JSON")
    arguments = parser.parse_args()
    print("| folder | graph | operators | given (MB) | Inductor | ours | bound | arena | proven, or gap | seconds |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    rows = []
    for path in inputs(arguments.paths):
        if arguments.only in path.name:
            rows.append(row(path, arguments.time_limit, arguments.seed))
            print(line(rows[-1]), flush=True)
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(summary(rows))


if __name__ == "__main__":
    main()
