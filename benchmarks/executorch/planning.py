"""Arenas of exported models: executorch's greedy planner, first fit by size, and stowplan's, beside the load.

    pip install '.[executorch]'         # and torchvision, timm for the models of theirs
    python -m benchmarks.executorch.planning [--time-limit 10] [--models resnet50,unet8]

Prints one row a model as a table in Markdown: what docs/results/executorch.md shows. The load is the most bytes that live at
once (and what is reserved), which no plan can be below. Models that are not installed, or do not export, are named at the end.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from typing import Any

import torch

from benchmarks.lib.torch_models import MODELS
from stowplan.backends.executorch import memory_planning_pass
from stowplan.backends.fallback import PlanningWarning
from stowplan.portfolio.packing import quick


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each arena")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    options = parser.parse_args()
    rows, failed = [], []
    print("| model | tensors | greedy | first fit | stowplan | load | saved | proven | seconds |")
    print("|---|--:|--:|--:|--:|--:|--:|---|--:|")
    for name in options.models.split(","):
        try:
            row = measure(name, options.time_limit)
        except Exception as error:  # one model of many
            failed.append(f"{name} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"[:200])
            continue
        rows.append(row)
        print(as_line(row), flush=True)
    saved = [row for row in rows if row["stowplan"] < row["greedy"]]
    proven = sum(row["proven"] for row in rows)
    print(f"\n{len(rows)} models, {len(saved)} smaller than greedy, {proven} proven least, none larger", file=sys.stderr)
    for model in failed:
        print(f"left out: {model}", file=sys.stderr)


def measure(name: str, time_limit: float) -> dict[str, Any]:
    """Export a model with the plan of this package; what its arena of activations is by each planner."""
    from executorch.exir import ExecutorchBackendConfig, to_edge

    model, inputs = MODELS[name]()
    edge = to_edge(torch.export.export(model, inputs))
    seen: list[int] = []
    plan_quickly = quick.quick_plan
    memory_pass = memory_planning_pass(time_limit)
    (algorithm,) = memory_pass.memory_planning_algo.algo_list
    plan_unit = algorithm._plan

    def planned(unit: Any, *given: Any, **options: Any) -> Any:
        # First fit is planned for each arena, also where greedy's plan is already least.
        quick_result = plan_quickly(unit.problem)
        seen.append(unit.size(quick_result[1].objective))
        return plan_unit(unit, *given, **options)

    algorithm._plan = planned
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanningWarning)
        edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=memory_pass))
    reports = algorithm.reports
    return {
        "model": name,
        "tensors": sum(report.buffers for report in reports),
        "greedy": sum(report.greedy for report in reports),
        "first_fit": sum(seen),
        "stowplan": sum(report.size for report in reports),
        "load": sum(report.load_bound for report in reports),
        "proven": all(report.is_proven for report in reports),
        "seconds": round(sum(report.seconds for report in reports), 2),
    }


def as_line(row: dict[str, Any]) -> str:
    saved = 1 - row["stowplan"] / row["greedy"]
    sizes = " | ".join(f"{row[key]:,}" for key in ("greedy", "first_fit", "stowplan", "load"))
    words = [f"{saved:.1%}", "yes" if row["proven"] else "no", f"{row['seconds']:.2f}"]
    return f"| {row['model']} | {row['tensors']} | {sizes} | {' | '.join(words)} |"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
