"""PyTorch's partitioner at several activation memory budgets, with its own knapsack solver and with the one of this package.

    pip install '.[learned]'
    python -m benchmarks.torch_memory.budgets [--models llama16,gpt8] [-o FILE.jsonl] [--table]

Both plans come from the same partitioner (``min_cut_rematerialization_partition`` of the installed torch); only
``activation_memory_budget_solver`` differs. Peaks are of the operators of the forward and the backward graph in the order in
which PyTorch runs them, before any fusion; parameters and gradients count. ``FLOP`` is what is computed again, in percent of
one step. ``rise`` is the largest factor by which the peak of a lower budget is above that of a higher one: 1 if the peak
never rises as the budget falls. A line of JSON is written for each model; those that are there are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config

from benchmarks.lib.tables import table
from benchmarks.torch_memory.limits import judged, lines, traced
from benchmarks.torch_memory.models import MODELS
from stowplan.backends.torch import stock
from stowplan.backends.torch.budget import knapsack
from stowplan.backends.torch.partition import prepared
from stowplan.backends.torch.reader import read
from stowplan.models.rematerialization.structure import build

TEN = "llama16,gpt8,vit8,resnet50,unet,densenet,convnext,lstm,mixture8,detector"

BUDGETS = (0.7, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05)

SOLVERS: dict[str, Any] = {"dp": "dp", "stowplan": knapsack}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=TEN, help="names, separated by commas")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/torch_budgets.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the tables of what the file has, and run nothing")
    options = parser.parse_args()
    if not options.table:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        for name in options.models.split(","):
            run(name, options.output)
    print(shown(lines(options.output)))


def run(name: str, output: Path) -> None:
    """Append the line of a model that the file does not have."""
    if name in {row["model"] for row in lines(output)}:
        return
    module, joint_inputs, kwargs = traced(*MODELS[name]())
    reading = read(prepared(module).graph, kwargs["num_fwd_outputs"])
    structure = build(reading.problem)
    row: dict[str, Any] = {"model": name, "operators": structure.ops, "flops": sum(reading.flops), "solvers": {}}
    for solver, setting in SOLVERS.items():
        plans = []
        for budget in BUDGETS:
            began = time.monotonic()
            with config.patch(activation_memory_budget_solver=setting):
                halves = stock.partition(module, joint_inputs, kwargs, budget)
            seconds = time.monotonic() - began
            sequence = stock.sequence_of(reading, [half.graph for half in halves])
            plans.append(
                {"budget": budget, "seconds": round(seconds, 2), **((sequence and judged(reading, structure, sequence)) or {})}
            )
        row["solvers"][solver] = plans
    with output.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print("#", json.dumps(row), flush=True)


def rise(plans: list[dict[str, Any]]) -> float:
    """The largest factor by which a lower budget has a higher peak."""
    peaks = [plan["peak"] for plan in sorted(plans, key=lambda plan: -plan["budget"]) if "peak" in plan]
    return max((low / high for high, low in combinations(peaks, 2)), default=1.0)


def shown(rows: list[dict[str, Any]]) -> str:
    """A table with a row for each model and solver, in Markdown; a cell has the peak in MB and what is computed again."""
    cells = []
    for row in rows:
        for solver, plans in row["solvers"].items():
            made = [
                f"{plan['peak'] / 1e6:.1f}, {100 * plan['flops'] / row['flops']:.1f} %" if "peak" in plan else "none"
                for plan in plans
            ]
            cells.append(
                (row["model"], solver, *made, f"{max(1.0, rise(plans)):.2f}", f"{max(plan['seconds'] for plan in plans):.1f}")
            )
    heads = ["model", "solver", *map(str, BUDGETS), "rise", "seconds, most"]
    return table(cells, heads)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
