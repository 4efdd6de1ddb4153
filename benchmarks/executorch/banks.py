"""A small fast bank beside a large slow one: its share of the traffic by executorch's ``BankedGreedy`` and by stowplan.

    pip install '.[executorch]'         # and torchvision, timm for the models of theirs
    python -m benchmarks.executorch.banks [--time-limit 10] [--cases unet8:256,resnet50:2048] [--tight nasnet_cells]

Prints one row for each model and size (KiB) of the fast bank, as a table in Markdown: what docs/results/executorch.md shows.
``--tight`` names models that are exported into a single bank as large as their load: whether each planner finds a plan.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.banked_memory_planning import Bank, TargetMemoryMap
from executorch.exir.banked_memory_planning import banked_memory_planning_pass as stock_pass

from benchmarks.lib.torch_models import MODELS
from stowplan.backends.executorch import memory_planning_pass

CASES = (
    "unet8:256,unet8:768,unet8:1024,nasnet_cells:512,nasnet_cells:1024,randwire:256,randwire:512,transformer:128,transformer:256,"
    "lstm_unrolled:64,mtl_towers:64,resnet18:1024,resnet50:2048,mobilenet_v2:512,mobilenet_v3_large:1024,densenet121:1024,"
    "shufflenet_v2_x1_0:512,squeezenet1_1:1024,efficientnet_b0:2048,ghostnet_100:1024"
)
TIGHT = "nasnet_cells,randwire,transformer,resnet50,mobilenet_v3_large"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each graph")
    parser.add_argument("--cases", default=CASES, help="NAME:KIB, separated by commas")
    parser.add_argument("--tight", default=TIGHT, help="names, separated by commas")
    options = parser.parse_args()
    print("| model | fast bank, KiB | tensors | executorch | stowplan | proven | seconds |")
    print("|---|--:|--:|--:|--:|---|--:|")
    for case in filter(None, options.cases.split(",")):
        name, size = case.split(":")
        memory = TargetMemoryMap([Bank("fast", int(size) << 10, 1), Bank("slow", 1 << 29, 2)])
        report = export(name, memory_planning_pass(options.time_limit, target=memory)).reports[0]
        total = sum(report.traffic.values())
        stock = "no plan" if report.stock_traffic is None else f"{report.stock_traffic['fast'] / total:.1%}"
        words = [stock, f"{report.traffic['fast'] / total:.1%}", "yes" if report.is_proven else "no", f"{report.seconds:.1f}"]
        print(f"| {name} | {size} | {report.buffers} | {' | '.join(words)} |", flush=True)
    print("\n| one bank as large as the load | executorch | stowplan |\n|---|---|---|")
    for name in filter(None, options.tight.split(",")):
        room = export(name, memory_planning_pass(options.time_limit)).reports[0].size
        memory = TargetMemoryMap([Bank("only", room, 1)])
        found = [exports(name, make) for make in (stock_pass(memory), memory_planning_pass(target=memory))]
        print(f"| {name}, {room:,} bytes | {' | '.join('exports' if each else 'no plan' for each in found)} |", flush=True)


def export(name: str, memory_pass: Any) -> Any:
    """Export a model; the planner, with its reports where it is one of ours."""
    model, inputs = MODELS[name]()
    to_edge(torch.export.export(model, inputs)).to_executorch(ExecutorchBackendConfig(memory_planning_pass=memory_pass))
    return memory_pass.memory_planning_algo.algo_list[0]


def exports(name: str, memory_pass: Any) -> bool:
    """Whether a model can be exported so."""
    try:
        export(name, memory_pass)
    except Exception:  # whatever a planner raises where it has no plan
        return False
    return True


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
