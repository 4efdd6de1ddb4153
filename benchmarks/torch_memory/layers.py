"""What layers that repeat are worth: the search with and without few of them first, for the same processor time.

    python -m benchmarks.torch_memory.layers [--models llama16,gpt8] [--seconds 5] [--seeds 2] [--places 0.3 0.6]

Limits are parts of the way from what stays at the end to the peak of the order given. All begin with the best of three
simulations, repaired; what is left of the time is ruin and recreate. Added costs are in GFLOP.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import msgspec
import torch

from benchmarks.lib.tables import table
from benchmarks.torch_memory.limits import joint
from stowplan.kernel.context import Context, Options
from stowplan.models.rematerialization.bounds import load_bound
from stowplan.portfolio.rematerialization import candidates
from stowplan.portfolio.rematerialization.peaks import POLICIES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama16,gpt8,vit8,mixture8", help="names, separated by commas")
    parser.add_argument("--seconds", type=float, default=5.0, help="of processor time for each run")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--places", type=float, nargs="+", default=[0.3, 0.6])
    options = parser.parse_args()
    rows = []
    for name in options.models.split(","):
        reading, structure = joint(name)
        low, high = load_bound(structure), structure.ordering.peak(structure.order)
        for place in options.places:
            problem = msgspec.structs.replace(reading.problem, limit=low + int(place * (high - low)))
            for seed in range(options.seeds):
                found = [searched(problem, seed, options.seconds, with_layers) for with_layers in (False, True)]
                costs = ["none" if each is None else f"{each * reading.unit / 1e9:.3f}" for row in found for each in row]
                rows.append((name, f"{problem.limit / 1e6:.1f}", seed, costs[0], costs[1], costs[2], costs[3]))
                print("#", *rows[-1], flush=True)
    print(table(rows, ["model", "limit", "seed", "start", "without", "carried over", "with"]))


def searched(problem: Any, seed: int, seconds: float, with_layers: bool) -> tuple[int | None, int | None]:
    """Added cost before ruin and recreate, and at the end."""
    run = candidates._Search(problem, Context(Options(seed=seed)))
    began = time.process_time()
    for policy in POLICIES[:3]:
        run.simulate(run.structure.order, policy, 1.0)
    if with_layers:
        candidates._carry_over(run)
    first = run.best
    while run.best is not None and time.process_time() - began < seconds:
        candidates._recreated(run, 1)
    return (None if first is None else first.objective), (None if run.best is None else run.best.objective)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
