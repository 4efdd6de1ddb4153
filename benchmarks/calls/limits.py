"""Whether limits are met: ``python -m benchmarks.calls.limits [--trials N] [--seed N] [--part I/N]``.

Random trials of all kinds, in one process: an instance of the examples, a limit from 0.2 to 20 s (small ones as often as large
ones), candidates, workers and a seed. Prints a markdown table: by how much limits were overrun, and how many by more than 0.5 s
and 5 %, which is what :func:`stowplan.solve` promises.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections import defaultdict

import stowplan
from benchmarks.lib.places import EXAMPLES

#: Inputs of each kind, with their targets; packings are made up.
INPUTS = {
    "memory mapping": [
        ("alexnet_inf_b1.hlo.txt.gz", "tpu-v4"),
        ("alexnet_train_b32.hlo.txt.gz", "tpu-v4"),
        ("gpt_decode_loop_b8.hlo.txt.gz", "tpu-v4"),
        ("lstm_scan_inf_b32.hlo.txt.gz", "tpu-v4"),
        ("resnet50_inf_b1.hlo.txt.gz", "tpu-v4"),
    ],
    "tier placement": [
        (f"{name}.layers.json", "nnp-i") for name in ("resnet50", "resnet101", "bert_base_s128", "bert_base_s384")
    ],
    "modulo scheduling": [("fir.dfg.json", "se"), ("saxpy.dfg.json", "se"), ("fir.dfg.json", "mesh-2x2")],
    "bank mapping": [("attention.hlo.txt", "inferentia"), ("attention.hlo.txt", "inferentia-tiled")],
    "packing": [("buffers.csv", None)],
    "operator order": [("cells.graph.json", None), ("attention.hlo.txt", "order")],
    "banked packing": [("banks.json", None)],
}

CANDIDATES = ("heuristic,learned,exact", "heuristic,exact", "heuristic", "exact")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=part, default=(1, 1), metavar="I/N", help="every Nth trial alone, from the Ith on")
    parser.add_argument("--least", type=float, default=0.2, help="smallest limit in seconds")
    parser.add_argument("--most", type=float, default=20.0, help="largest limit in seconds")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    overruns: dict[str, list[float]] = defaultdict(list)
    broken: dict[str, int] = defaultdict(int)
    planless: dict[str, int] = defaultdict(int)
    for number in range(arguments.trials):
        kind = list(INPUTS)[number % len(INPUTS)]
        limit = math.exp(chance.uniform(math.log(arguments.least), math.log(arguments.most)))
        problem, name = pick(kind, chance)
        options = {
            "candidates": chance.choice(CANDIDATES),
            "workers": chance.choice((1, 2)),
            "seed": chance.randrange(1000),
        }
        if number % arguments.part[1] != arguments.part[0] - 1:
            continue
        began = time.monotonic()
        result = stowplan.solve(problem, time_limit=limit, **options)
        over = time.monotonic() - began - limit
        overruns[kind].append(over)
        broken[kind] += over > 0.5 + 0.05 * limit
        planless[kind] += result.plan is None
        if over > 0.5 + 0.05 * limit:
            print(f"broken: {name}, limit {limit:.2f} s, {over:.2f} s more, {options}, {result.stop_reason}", flush=True)
    load = os.getloadavg()[1]
    count = sum(map(len, overruns.values()))
    print(f"\n{count} trials, seed {arguments.seed}, load {load:.1f} on {os.cpu_count()} cores\n")
    print("| kind | trials | ended by the limit | largest overrun | over 0.5 s + 5 % | without a plan |")
    print("|---|--:|--:|--:|--:|--:|")
    for kind, each in overruns.items():
        ended = sum(over > -0.5 for over in each)
        print(f"| {kind} | {len(each)} | {ended} | {max(each):+.2f} s | {broken[kind]} | {planless[kind]} |")


def part(text: str) -> tuple[int, int]:
    """``I/N``."""
    which, _, parts = text.partition("/")
    if not 1 <= int(which) <= int(parts):
        raise ValueError
    return int(which), int(parts)


def pick(kind: str, chance: random.Random) -> tuple[object, str]:
    """An instance and its name; every other packing is made up, of up to 3,000 buffers."""
    if kind == "packing" and chance.random() < 0.8:
        from stowplan.models.packing.problem import Buffer, Problem

        count = int(math.exp(chance.uniform(math.log(10), math.log(3000))))
        buffers = []
        for number in range(count):
            start = chance.randrange(count)
            end = start + 1 + int(chance.expovariate(0.1))
            buffers.append(Buffer(id=str(number), lower=start, upper=end, size=chance.randrange(1, 10_000), alignment=1))
        return Problem(name=f"random_{count}", buffers=tuple(buffers)), f"random_{count}"
    file, target = chance.choice(INPUTS[kind])
    return stowplan.read(EXAMPLES / file, target=target), file


if __name__ == "__main__":
    main()
