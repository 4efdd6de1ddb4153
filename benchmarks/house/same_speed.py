"""Whether a checkout is as quick as another: seconds to the last plan and to the end of runs of every kind, as ratios.

    python -m benchmarks.house.same_speed BEFORE AFTER [--time-limit 5] [--rounds 2] [--corpus ../shared]

BEFORE and AFTER are folders that hold the package ``stowplan``; in each everything is compiled first. Each input is solved by
both in turn, so many rounds, each time in a process of its own, and the quicker of a checkout's rounds counts. A row has the
seconds of both until the last better plan and until the end, without loading and reading; below are geometric means of their
ratios, AFTER over BEFORE, with a fifth of a second added to both. Beside other work the ratios say less: the load is printed.
Files of the corpus that are not there are left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

#: Inputs: a path in the examples or the corpus, the target, the capacity in bytes.
EXAMPLES = (
    ("alexnet_inf_b1.hlo.txt.gz", "tpu-v4", None),
    ("alexnet_train_b32.hlo.txt.gz", "tpu-v4", None),
    ("gpt_decode_loop_b8.hlo.txt.gz", "tpu-v4", None),
    ("lstm_scan_inf_b32.hlo.txt.gz", "tpu-v4", None),
    ("resnet50_inf_b1.hlo.txt.gz", "tpu-v4", None),
    ("attention.hlo.txt", "inferentia", None),
    ("banks.json", None, None),
    ("bert_base_s128.layers.json", "nnp-i", None),
    ("resnet50.layers.json", "nnp-i", None),
    ("resnet101.layers.json", "nnp-i", None),
    ("branches.tflite", "arena", None),
    ("buffers.csv", None, None),
    ("cells.graph.json", None, None),
    ("fir.dfg.json", "se", None),
    ("saxpy.dfg.json", "se", None),
    ("training.remat.json", None, None),
)
CORPUS = (
    *((f"dsa/minimalloc/{name}.1048576.csv", None, 1048576) for name in "ABGHK"),
    ("dsa/minimalloc/B.1048576.csv", None, None),
    ("corpus/order/inception_v3.graph.json.gz", None, None),
    ("corpus/order/nasnet_cells.graph.json.gz", None, None),
    ("corpus/order/train_cnn.graph.json.gz", None, None),
    ("corpus/layers/bert_base_s128_fine.json", "nnp-i", None),
    ("corpus/layers/bert_base_s384_fine.json", "nnp-i", None),
    ("corpus/tpu_v4/resnet50_train_b32.hlo.txt.gz", "tpu-v4", None),
    ("corpus/tpu_v4/bert_base_inf_b1_s384.hlo.txt.gz", "tpu-v4", None),
    ("corpus/tpu_v4/unet_train_b4.hlo.txt.gz", "tpu-v4", None),
)

#: What compiles the heuristics of a checkout, today and in version 0.1.
COMPILERS = ("stowplan.compiled.build", "stowplan.portfolio.warm_up")

#: Seconds added to both sides of a ratio: below that a difference is none.
FLOOR = 0.2

#: What a process of a checkout runs.
SOLVE = """
import json, sys, time
import stowplan
path, options, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
problem = stowplan.read(path, **options)
began = time.monotonic()
result = stowplan.solve(problem, time_limit=seconds)
end, last, best = time.monotonic() - began, 0.0, None
for entry in result.history:
    if entry.objective != best:
        last, best = entry.seconds, entry.objective
print(json.dumps([result.kind, last, end, result.objective, result.stop_reason]))
"""


class Timed(NamedTuple):
    """What one checkout took for an input, in seconds."""

    kind: str
    last: float
    end: float
    objective: int | None
    stop_reason: str


def run(checkout: Path, arguments: list[str]) -> str:
    """Standard output of Python with a checkout's code; ends this program where that fails."""
    folder = checkout.absolute()
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    # Processes that it starts look for the package in the current folder first.
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr.strip()[-400:]}")
    return done.stdout


def solve(checkout: Path, path: Path, options: dict[str, object], seconds: float) -> Timed:
    """Solve an input with a checkout's code."""
    return Timed(*json.loads(run(checkout, ["-c", SOLVE, str(path.absolute()), json.dumps(options), str(seconds)])))


def ratio(before: float, after: float) -> float:
    """How many times as long."""
    return (after + FLOOR) / (before + FLOOR)


def main() -> None:
    """Compare, and print a row an input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--time-limit", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--corpus", type=Path, default=Path("../shared"))
    arguments = parser.parse_args()
    checkouts = arguments.before, arguments.after
    for checkout, module in itertools.product(checkouts, COMPILERS):
        if (checkout / f"{module.replace('.', '/')}.py").exists():
            run(checkout, ["-m", module])
    folders = arguments.after / "examples" / "data", arguments.corpus
    inputs = [(folder / name, *rest) for folder, rows in zip(folders, (EXAMPLES, CORPUS), strict=True) for name, *rest in rows]
    ratios: list[tuple[float, float]] = []
    for path, target, capacity in inputs:
        if not path.exists():
            print(f"{path.name:<34} is not there")
            continue
        options = {name: each for name, each in (("target", target), ("capacity", capacity)) if each is not None}
        rounds = [[solve(each, path, options, arguments.time_limit) for each in checkouts] for _ in range(arguments.rounds)]
        last, end = ([min(getattr(row[side], name) for row in rounds) for side in (0, 1)] for name in ("last", "end"))
        ratios.append((ratio(*last), ratio(*end)))
        before, after = min(row[0].objective or 0 for row in rounds), min(row[1].objective or 0 for row in rounds)
        plan = "" if before == after else f"  objective {before:,} -> {after:,}"
        seconds = (
            f"{what} {values[0]:6.2f} {values[1]:6.2f} ({part:4.2f})"
            for what, values, part in zip(("last plan", "end"), (last, end), ratios[-1], strict=True)
        )
        print(f"{path.name:<34} {rounds[0][0].kind:<17} {'  '.join(seconds)}  {rounds[-1][1].stop_reason}{plan}", flush=True)
    means = (math.exp(sum(map(math.log, column)) / len(ratios)) for column in zip(*ratios, strict=True))
    print("{} inputs; mean ratio of the last plan {:.3f}, of the end {:.3f}".format(len(ratios), *means))
    print(f"load of the machine {os.getloadavg()[0]:.1f}, with {os.cpu_count()} processors; a run has two")


if __name__ == "__main__":
    main()
