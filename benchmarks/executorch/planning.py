"""Arenas of exported models: executorch's greedy planner, first fit by size, and stowplan's, beside the load.

    pip install '.[executorch]'         # and torchvision, timm for the models of theirs
    python -m benchmarks.executorch.planning [--time-limit 10] [--models resnet50,unet8] [--json out.json]

Prints one row a model as a table in Markdown: what docs/results/executorch.md shows. The load is the most bytes that live at
once (and what is reserved), which no plan can be below. Models that are not installed, or do not export, are named at the end.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
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
    parser.add_argument("--json", help="write the rows to this file as well")
    parser.add_argument("--run", action="store_true", help="run the program, and compare with eager")
    options = parser.parse_args()
    rows, failed = [], []
    print("| model | tensors | greedy | first fit | stowplan | load | saved | proven | seconds |")
    print("|---|--:|--:|--:|--:|--:|--:|---|--:|")
    for name in options.models.split(","):
        try:
            row = measure(name, options.time_limit, options.run)
        except Exception as error:  # one model of many
            failed.append(f"{name} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"[:200])
            continue
        rows.append(row)
        print(as_line(row), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)
    saved = [row for row in rows if row["stowplan"] < row["greedy"]]
    proven = sum(row["proven"] for row in rows)
    print(f"\n{len(rows)} models, {len(saved)} smaller than greedy, {proven} proven least, none larger", file=sys.stderr)
    for each in failed:
        print(f"left out: {each}", file=sys.stderr)


def measure(name: str, time_limit: float, run: bool) -> dict[str, Any]:
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
        found = plan_quickly(unit.problem)
        seen.append(unit.size(found[1].objective))
        return plan_unit(unit, *given, **options)

    algorithm._plan = planned
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanningWarning)
        program = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=memory_pass))
    whole = time.monotonic() - began
    reports = algorithm.reports
    row = {
        "model": name,
        "tensors": sum(each.buffers for each in reports),
        "greedy": sum(each.greedy for each in reports),
        "first_fit": sum(seen),
        "stowplan": sum(each.size for each in reports),
        "load": sum(each.load for each in reports),
        "bound": sum(each.bound for each in reports),
        "proven": all(each.is_proven for each in reports),
        "seconds": round(sum(each.seconds for each in reports), 2),
        "export_seconds": round(whole, 2),
    }
    return row | ({"largest_difference": difference(program, model, inputs)} if run else {})


def difference(program: Any, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> float:
    """Largest difference between what the program and the model compute."""
    from executorch.runtime import Runtime

    found = Runtime.get().load_program(program.buffer).load_method("forward").execute(list(inputs))
    with torch.no_grad():
        expected = model(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    return max(float((one - two).abs().max()) for one, two in zip(found, expected, strict=True))


def as_line(row: dict[str, Any]) -> str:
    saved = 1 - row["stowplan"] / row["greedy"]
    sizes = " | ".join(f"{row[key]:,}" for key in ("greedy", "first_fit", "stowplan", "load"))
    words = [f"{saved:.1%}", "yes" if row["proven"] else "no", f"{row['seconds']:.2f}"]
    words += [f"{row['largest_difference']:.1e}"] if "largest_difference" in row else []
    return f"| {row['model']} | {row['tensors']} | {sizes} | {' | '.join(words)} |"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
