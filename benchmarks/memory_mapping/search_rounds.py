"""Rounds of ruin and recreate for each second of processor time, and a digest of the plans that they end in.

    python -m benchmarks.memory_mapping.search_rounds --rounds 2000
    PYTHONPATH=OTHER_CHECKOUT python -m benchmarks.memory_mapping.search_rounds --rounds 2000

Two checkouts with equal digests find the same plans with the same seed. Modules come from ../shared/corpus/tpu_v4 (or
$STOWPLAN_SHARED/corpus/tpu_v4).
"""

from __future__ import annotations

import argparse
import hashlib
import time
from itertools import islice

import msgspec

import stowplan
from benchmarks.lib.places import SHARED
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_best, export_plan
from stowplan.portfolio.memory_mapping.search import new_search, ruin_and_recreate

MODULES = "resnet101_train_b16,resnet50_train_b32,nmt_attn_train_b32,gpt2s_train_b2_s512,wavenet_inf_b32"

#: What a round may lose (ps): enough that most are accepted.
LOSS = 1e6


def main() -> None:
    """A line a module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default=MODULES)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    for name in arguments.modules.split(","):
        problem = stowplan.read(SHARED / "corpus" / "tpu_v4" / f"{name}.hlo.txt.gz", target="tpu-v4")
        data = arrays.build(problem)
        # The greedy's plan or that of the first insertion.
        built = [heuristics.run(steps, lambda: False)[0] for _, steps in islice(heuristics.constructive(data), 2)]
        state = min(built, key=lambda each: int(each.totals[0].total))
        search = new_search(data, state, heuristics.densities(data, 1), arguments.seed)
        # The first call may compile.
        ruin_and_recreate(data, state, search, 1, 0.0)
        began = time.process_time()
        ruin_and_recreate(data, state, search, arguments.rounds, LOSS)
        rate = arguments.rounds / (time.process_time() - began)
        plans = export_plan(problem, data, state), export_best(problem, data, search)
        digest = hashlib.sha256(b"".join(map(msgspec.json.encode, plans))).hexdigest()[:12]
        print(f"{name:<24} {rate:>7,.0f} rounds/s  best {int(search.status[0].best):,} ps  plans {digest}", flush=True)


if __name__ == "__main__":
    main()
