"""Large models planned with a host's memory, and without: nothing runs.

    pip install '.[learned]'
    python -m benchmarks.torch_memory.host [--models llama16,gpt24] [--bandwidth 25e9] [--time-limit 20] [-o FILE.jsonl]

Models and limits are those of :mod:`benchmarks.torch_memory.large`, costs are times at peak rates of a device. Added time is in
percent of a step's operators: ``alone`` of the plan that sends nothing, ``host`` of the one that may send values over a channel
of so many bytes per second each way, both after as many seconds of planning, beside their bounds. A line of JSON is written for
each model and limit; those that are there are not run again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.lib.tables import table
from benchmarks.torch_memory.large import CHECKPOINT, joint
from benchmarks.torch_memory.limits import lines
from stowplan.backends.torch.devices import device
from stowplan.backends.torch.offload import with_host
from stowplan.backends.torch.seconds import RateCosts
from stowplan.kernel.solve import solve
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.verify import verify

MODELS = "llama16,llama32,gpt24,vit24,t5-24,moe16"

GIB = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS, help="a family and its number of layers each, separated by commas")
    parser.add_argument("--device", default="h100", help="whose rates costs are of")
    parser.add_argument("--bandwidth", type=float, default=25e9, help="bytes per second to the host, and back")
    parser.add_argument("--bytes", type=int, default=512 * GIB, help="of the host")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of planning for each plan")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/torch_memory_host.jsonl"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for name in options.models.split(","):
        run(name, options)
    print(shown(lines(options.output)))


def run(name: str, options: argparse.Namespace) -> None:
    """Append a line for each limit of a model that the file does not have."""
    known = {(row["model"], row["part"], row["bandwidth"]) for row in lines(options.output)}
    parts = [part for part in CHECKPOINT if (name, part, options.bandwidth) not in known]
    if not parts:
        return
    prices = RateCosts(device(options.device))
    reading, structure, _ = joint(name, prices=prices)
    _, layers, _ = joint(name, is_checkpointed=True)
    peak, once = layers.ordering.peak(layers.order), sum(structure.cost)
    hosted = with_host(reading, options.bytes, options.bandwidth)
    for part in parts:
        row = {"model": name, "part": part, "bandwidth": options.bandwidth, "limit": int(part * peak)}
        for way, problem in ("alone", reading.problem), ("host", hosted.problem):
            row |= planned(way, msgspec.structs.replace(problem, limit=row["limit"]), once, options.time_limit)
        with options.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print("#", json.dumps(row), flush=True)


def planned(way: str, problem: Problem, once: int, time_limit: float) -> dict[str, Any]:
    """What came of one plan: parts of the time that operators take once, and bytes on the host."""
    result = solve(problem, time_limit=time_limit)
    plan = result.plan
    figures = {} if plan is None else verify(problem, plan).figures
    return {
        f"{way}_status": result.status,
        f"{way}_added": None if plan is None else plan.objective / once,
        f"{way}_bound": (result.bound or 0) / once,
        f"{way}_sent": figures.get("host_peak", 0),
        f"{way}_seconds": round(result.seconds, 1),
    }


def shown(rows: list[dict[str, Any]]) -> str:
    """The table in Markdown."""

    def percent(row: dict[str, Any], way: str) -> list[str]:
        if row[f"{way}_added"] is None:
            return [row[f"{way}_status"], "-"]
        return [f"{100 * row[f'{way}_{what}']:.2f}" for what in ("added", "bound")]

    cells = [
        (
            row["model"],
            row["part"],
            f"{row['limit'] / GIB:.1f}",
            *percent(row, "alone"),
            *percent(row, "host"),
            f"{row['host_sent'] / GIB:.1f}",
            row["alone_seconds"],
            row["host_seconds"],
        )
        for row in rows
    ]
    heads = [
        "model",
        "of a checkpoint's peak",
        "GiB",
        "alone %",
        "bound %",
        "host %",
        "bound %",
        "sent GiB",
        "s",
        "s with a host",
    ]
    return table(cells, heads)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
