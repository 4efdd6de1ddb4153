r"""PyTorch's partitioner at several activation memory budgets, with its own knapsack solver and with the one of this package.

    pip install '.[learned]'
    python -m benchmarks.torch_memory.budgets [--models llama16,gpt8] [--budgets 0.5,0.1] [-o FILE.jsonl] [--table]
    python -m benchmarks.torch_memory.budgets --models llama32 --without-parameters -o FILE.jsonl --budgets \
        0.0,0.05,0.1,0.15,0.2,0.25,0.3,0.35,0.4,0.5,0.6,0.7,0.8,0.9,1.0

Both plans come from the same partitioner (``min_cut_rematerialization_partition`` of the installed torch); only
``activation_memory_budget_solver`` differs. Peaks are of the operators of the forward and the backward graph in the order in
which PyTorch runs them, before any fusion; parameters and gradients count. ``FLOP`` is what is computed again, in percent of
one step. ``rise`` is the largest factor by which the peak of a lower budget is above that of a higher one: 1 if the peak
never rises as the budget falls. It is of budgets above 0 and below 1, since PyTorch asks no solver at these. A line of JSON is
written for each model; those that are there are not run again.

The second command has the model and the budgets of https://github.com/pytorch/pytorch/issues/197838: the Llama of
``transformers`` with 32 layers of width 256, 2 x 1024 words, the sum of the last layer's outputs in place of a loss. There a
step on a GPU allocated 4.17 times as much at a budget of 0.05 as at 0.15. What exists before the step does not count
(``--without-parameters``).
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config

from benchmarks.lib.tables import table
from benchmarks.torch_memory.limits import judged, lines, traced
from benchmarks.torch_memory.models import MODELS, Model
from benchmarks.torch_memory.variants.decoders import Block, Choices
from benchmarks.torch_memory.variants.parts import SwiGlu, angles, by_cat
from stowplan.backends.torch import stock
from stowplan.backends.torch.budget import knapsack
from stowplan.backends.torch.partition import prepared
from stowplan.backends.torch.reader import Counted, read
from stowplan.models.rematerialization.structure import build

TEN = "llama16,gpt8,vit8,resnet50,unet,densenet,convnext,lstm,mixture8,detector"

BUDGETS = (0.7, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05)

SOLVERS: dict[str, Any] = {"dp": "dp", "stowplan": knapsack}


class Summed(nn.Module):
    """A Llama without a head, and the sum of its outputs."""

    def __init__(self, layers: int = 32, width: int = 256):
        super().__init__()
        feed = partial(SwiGlu, inner=688)
        self.choices = Choices(layers=layers, width=width, heads=8, key_heads=8, feed=feed, rotary=by_cat)
        self.embedding, self.norm = nn.Embedding(1000, width), self.choices.norm(width)
        self.blocks = nn.ModuleList(Block(self.choices) for _ in range(layers))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        angle = angles(words.shape[1], x.shape[2] // self.choices.heads, words.device)
        for block in self.blocks:
            x = block(x, angle)
        return self.norm(x).sum()  # type: ignore[no-any-return]


def summed(layers: int) -> Model:
    """The model of the issue, and a batch: 32 words for each layer, as there."""
    torch.manual_seed(0)
    return Summed(layers), (torch.randint(0, 1000, (2, 32 * layers)),)


ALL: dict[str, Callable[[], Model]] = {**MODELS, "llama32": partial(summed, 32), "llama8": partial(summed, 8)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=TEN, help="names, separated by commas")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="numbers from 0 to 1, separated by commas")
    parser.add_argument("--without-parameters", action="store_true", help="inputs do not count: parameters and the batch")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/torch_budgets.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the tables of what the file has, and run nothing")
    options = parser.parse_args()
    if not options.table:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        for name in options.models.split(","):
            run(name, options)
    print(shown(lines(options.output)))


def run(name: str, options: argparse.Namespace) -> None:
    """Append the line of a model that the file does not have."""
    if name in {row["model"] for row in lines(options.output)}:
        return
    module, joint_inputs, kwargs = traced(*ALL[name]())
    counted = Counted(parameters=not options.without_parameters)
    reading = read(prepared(module).graph, kwargs["num_fwd_outputs"], counted)
    structure = build(reading.problem)
    row: dict[str, Any] = {"model": name, "operators": structure.ops, "flops": sum(reading.flops), "solvers": {}}
    for solver, setting in SOLVERS.items():
        plans = []
        for budget in map(float, options.budgets.split(",")):
            began = time.monotonic()
            with config.patch(activation_memory_budget_solver=setting):
                halves = stock.partition(module, joint_inputs, kwargs, budget)
            seconds = time.monotonic() - began
            sequence = stock.sequence_of(reading, [half.graph for half in halves])
            plans.append(
                {"budget": budget, "seconds": round(seconds, 2), **((sequence and judged(reading, structure, sequence)) or {})}
            )
        row["solvers"][solver] = plans
    with options.output.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print("#", json.dumps(row), flush=True)


def rise(plans: list[dict[str, Any]]) -> float:
    """The largest factor by which a lower budget has a higher peak."""
    asked = [plan for plan in plans if "peak" in plan and 0 < plan["budget"] < 1]
    peaks = [plan["peak"] for plan in sorted(asked, key=lambda plan: -plan["budget"])]
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
    budgets = [str(plan["budget"]) for plan in rows[0]["solvers"]["dp"]] if rows else []
    return "\n\n".join([table(cells, ["model", "solver", *budgets, "rise", "seconds, most"]), *gained(rows)])


def gained(rows: list[dict[str, Any]]) -> list[str]:
    """What the solver of this package gains at equal budgets, and within the peaks of PyTorch's plans."""
    peaks, within = [], []
    for row in rows:
        own, ours = row["solvers"]["dp"], [plan for plan in row["solvers"]["stowplan"] if "peak" in plan]
        for plan in own:
            if "peak" not in plan or not 0 < plan["budget"] < 1:
                continue
            equal = [each for each in ours if each["budget"] == plan["budget"]]
            peaks += [each["peak"] / plan["peak"] for each in equal]
            lower = [each["cost"] for each in ours if each["peak"] <= plan["peak"]]
            within += [min(lower, default=math.inf) / plan["cost"]] if plan["cost"] else []
    if not within:
        return []
    return [
        f"At equal budgets: {median(peaks):.2f} times the peak (median of {len(peaks)}; {min(peaks):.2f} to {max(peaks):.2f}).",
        f"Within the peak of PyTorch's plan: {median(within):.2f} times what it computes again (median of {len(within)}); "
        f"more in {sum(each > 1 for each in within)}, of which {within.count(math.inf)} have no plan.",
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
