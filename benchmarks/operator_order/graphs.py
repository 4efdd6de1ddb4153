"""Orders of least peak: graphs of exported networks and HLO modules, against the order given and three of PyTorch's Inductor.

    python -m benchmarks.operator_order.graphs --time-limit 30 -o results.json ../shared/corpus/order ../shared/corpus/cpu

Each file is solved on its own. A row has the peak of the order given, the best peak of the four orders that Inductor would
compare (given, lpmf, bfs, dfs), ours, the bound, the gap, the arena of our plan, and the seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import stowplan
from stowplan import files
from stowplan.models.operator_order.problem import Op, Problem, Tensor

#: What files are read for; graph files say it themselves.
TARGET = "order"


def inputs(paths: Sequence[Path]) -> Iterator[Path]:
    """Files, and those of folders, by name."""
    for path in paths:
        yield from sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]


def made(operators: int, seed: int) -> Problem:
    """A training step of a made-up network: blocks of branches that widen and narrow, then all of it backwards."""
    chance = random.Random(seed)
    tensors, ops = [Tensor(id="x", size=1 << 16)], []
    needed: list[tuple[int, int]] = []

    def write(name: str, reads: tuple[int, ...], size: int) -> int:
        tensors.append(Tensor(id=f"t{len(tensors)}", size=size))
        ops.append(Op(id=f"{name}{len(ops)}", reads=tuple(dict.fromkeys(reads)), writes=(len(tensors) - 1,)))
        return len(tensors) - 1

    at = 0
    while len(ops) < operators // 3:
        ends = []
        for _ in range(chance.randint(1, 5)):
            now = at
            for _ in range(chance.randint(1, 4)):
                after = write("forward", (now,), chance.choice([1, 2, 4, 8]) << 14)
                needed.append((now, after))
                now = after
            ends.append(now)
        after = write("join", (at, *ends), 1 << 16)
        needed.append((at, after))
        at = after
    gradient = write("loss", (at,), 1 << 16)
    outputs = []
    for before, after in reversed(needed):
        outputs.append(write("weight", (before, gradient), chance.choice([1, 2, 4]) << 8))
        gradient = write("backward", (after, gradient), tensors[before].size)
    return Problem(tensors=tuple(tensors), ops=tuple(ops), inputs=(0,), outputs=tuple(outputs), name=f"made {len(ops)}")


def read(path: Path) -> Problem:
    """Problem of a file."""
    found: Problem = stowplan.read(path) if files.is_json(path) else stowplan.read(path, target=TARGET)
    return found


def row(problem: Problem, name: str, folder: str, time_limit: float, seed: int) -> dict[str, Any]:
    """What came of one problem."""
    began = time.monotonic()
    result = stowplan.solve(problem, time_limit=time_limit, seed=seed)
    assert result.objective is not None
    assert result.plan is not None
    return {
        "name": name,
        "folder": folder,
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
    parser.add_argument("paths", nargs="*", type=Path, help="graph files, ONNX models, HLO modules, or folders of them")
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--made", type=int, nargs="*", default=[], help="operators of made-up training graphs, to be solved as well"
    )
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("-o", "--output", type=Path, help="rows as JSON")
    arguments = parser.parse_args()
    print("| folder | graph | operators | given (MB) | Inductor | ours | bound | arena | proven, or gap | seconds |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    rows = []
    chosen = [path for path in inputs(arguments.paths) if arguments.only in path.name]
    work = [(path.name.split(".")[0], path.parent.name, lambda path=path: read(path)) for path in chosen]
    work += [(f"made {count}", "", lambda count=count: made(count, arguments.seed)) for count in arguments.made]
    for name, folder, problem in work:
        rows.append(row(problem(), name, folder, arguments.time_limit, arguments.seed))
        print(line(rows[-1]), flush=True)
        if arguments.output is not None:
            arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(summary(rows))


if __name__ == "__main__":
    main()
