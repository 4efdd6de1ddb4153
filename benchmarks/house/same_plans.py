"""Whether two checkouts make the same deterministic plans, byte for byte: for changes that must not change a result.

    python -m benchmarks.house.same_plans BEFORE AFTER [INPUT[:TARGET] ...] [--time-limit 4] [--corpus ../shared]

BEFORE and AFTER are folders that hold the package ``stowplan``. Without inputs, all of ``examples/data`` and, where it is
there, a part of the corpus is planned, every kind of problem with it. Both checkouts plan an input one after the other with
``--deterministic``; a row says whether plan, objective and bound agree. The exit code is 1 where something differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

#: Suffix of an example, and the targets it is planned for; an empty one for inputs that take none.
TARGETS = (
    (".hlo.txt.gz", "tpu-v4"),
    (".hlo.txt.gz", "order"),
    (".hlo.txt.gz", "arena"),
    ("attention.hlo.txt", "inferentia"),
    (".layers.json", "nnp-i"),
    (".dfg.json", "se"),
    (".csv", ""),
    (".graph.json", ""),
    (".remat.json", ""),
    ("banks.json", ""),
    (".tflite", "arena"),
)

#: What is taken of the corpus: pattern, how many files at most, target.
CORPUS = (
    ("corpus/tpu_v4/*.hlo.txt.gz", 30, "tpu-v4"),
    ("corpus/unoptimized/*.txt*", 4, "inferentia"),
    ("corpus/layers/*.json", 4, "nnp-i"),
    ("dsa/minimalloc/*.csv", 11, ""),
    ("dfg/**/*.json", 12, "se"),
    ("corpus/order/*.json.gz", 9, ""),
    ("corpus/onnx/*.onnx", 2, "order"),
    ("corpus/onnx/*.onnx", 2, "arena"),
    ("corpus/cpu/*.hlo.txt.gz", 6, "order"),
    ("cases/*/*.onnx", 30, "order"),
    ("cases/*/*.onnx", 30, "arena"),
    ("cases/*/*.tflite", 30, "arena"),
    ("cases/*/*.hlo*", 30, "order"),
    ("tflm/*.tflite", 20, "arena"),
)


class Planned(NamedTuple):
    """What one checkout made of an input."""

    exit_code: int
    plan: bytes | None
    objective: int | None
    bound: int | None


def inputs(checkout: Path, corpus: Path) -> Iterator[tuple[Path, str]]:
    """Examples of a checkout, then files of the corpus, each with its target."""
    for path in sorted((checkout / "examples" / "data").iterdir()):
        for suffix, target in TARGETS:
            if path.name.endswith(suffix):
                yield path, target
    for pattern, count, target in CORPUS:
        for path in sorted(corpus.glob(pattern))[:count]:
            yield path, target


def plan(checkout: Path, path: Path, target: str, seconds: float, capacity: int | None) -> Planned:
    """Plan an input with a checkout's code."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "plan.json"
        command = [sys.executable, "-P", "-c", "from stowplan.cli import main; main()", "solve", str(path.absolute())]
        command += ["--deterministic", "--quiet", "--json", "--time-limit", str(seconds), "-o", str(output)]
        command += ["--target", target] if target else []
        command += ["--capacity", str(capacity)] if capacity is not None else []
        environment = {**os.environ, "PYTHONPATH": str(checkout.absolute())}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
        try:
            result: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            print(done.stderr.strip()[-300:], file=sys.stderr)
            return Planned(done.returncode, None, None, None)
        made = output.read_bytes() if output.exists() else None
        return Planned(done.returncode, made, result["objective"], result["bound"])


def main() -> None:
    """Compare, print a row an input, and exit with 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("inputs", nargs="*", help="INPUT or INPUT:TARGET; the examples and the corpus without any")
    parser.add_argument("--time-limit", type=float, default=4.0)
    parser.add_argument("--corpus", type=Path, default=Path("../shared"))
    arguments = parser.parse_args()
    given = [(Path(text.partition(":")[0]), text.partition(":")[2]) for text in arguments.inputs]
    differing = 0
    for path, target in given or inputs(arguments.after, arguments.corpus):
        capacity = 1048576 if "minimalloc" in path.parts else None
        made = [plan(each, path, target, arguments.time_limit, capacity) for each in (arguments.before, arguments.after)]
        before, after = made
        same_plan = (before.exit_code, before.plan, before.objective) == (after.exit_code, after.plan, after.objective)
        differing += not same_plan
        bound = "" if before.bound == after.bound else f"  bound {before.bound} -> {after.bound}"
        what = "same" if same_plan else f"DIFFERS: objective {before.objective} -> {after.objective}"
        code = "" if before.exit_code == 0 == after.exit_code else f"  exit {before.exit_code}, {after.exit_code}"
        print(f"{path.name:<48} {target:<12} {what}{bound}{code}", flush=True)
    print(f"{differing} plans differ")
    raise SystemExit(1 if differing else 0)


if __name__ == "__main__":
    main()
