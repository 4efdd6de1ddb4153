"""Seconds that a plan takes: models of 100 layers on one to four unlike devices.

    python -m benchmarks.llama.times [--time-limit SECONDS]

Prints, for each model and number of devices, the seconds to the first plan within 1 % of the best one, to the best one and to
its proof (or to the limit), and how many times as long as the plan ``--fit`` would take by the speeds of the machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.lib.tables import table
from benchmarks.llama.architectures import SHAPES
from benchmarks.llama.gguf_files import write_gguf
from stowplan.backends import llama
from stowplan.backends.llama.machine import Machine, machine_of
from stowplan.kernel.context import Options
from stowplan.result import Result

#: Free MiB, GB/s, TFLOP/s and GB/s of the link of each device.
DEVICES = ((24000, 750, 60, 12), (11900, 288, 25, 12), (16000, 430, 40, 6), (9800, 608, 50, 3))


def machine(count: int) -> Machine:
    """The first ``count`` devices, and a host with 250 GB."""
    host = {"free_mib": 250_000, "weight_gbs": 40, "cache_gbs": 2.2, "tflops": 0.3}
    rows = [
        {"name": f"CUDA{number}", "free_mib": free, "weight_gbs": speed, "tflops": flops, "link_gbs": link}
        for number, (free, speed, flops, link) in enumerate(DEVICES[:count])
    ]
    return machine_of({"host": host, "device": rows, "calibration": {"error": 0.0}}, f"{count} devices")


def _seconds_to(result: Result, objective: int) -> float:
    """Seconds to the first plan that is at most as long as ``objective``, in picoseconds."""
    return min(step.seconds for step in result.history if step.objective is not None and step.objective <= objective)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=30.0, help="Seconds for each plan.")
    limit = parser.parse_args().time_limit
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("llama-3-70b", "qwen-3-30b-a3b"):
            shape = replace(SHAPES[name], layers=100)
            path = Path(folder) / f"{name}.gguf"
            write_gguf(path, shape.metadata(name), [*shape.tensors()])
            for count in range(1, 1 + len(DEVICES)):
                began = time.perf_counter()
                options = Options(time_limit=limit, candidates=("heuristic", "exact"))
                planned = llama.plan(path, machine(count), context=16384, prompt=2048, generate=512, options=options)
                seconds = time.perf_counter() - began
                result, summary = planned.result, planned.summary
                assert result is not None
                assert result.objective is not None
                near, first = (_seconds_to(result, int(factor * result.objective)) for factor in (1.01, 1.0))
                gain = (summary.fit_ps or 0) / (summary.plan_ps or 1)
                proof = "yes" if summary.is_proven else "no"
                row = (f"{each:.2f}" for each in (near, first, seconds))
                rows.append([f"{name}, 100 layers", str(count), *row, proof, f"{gain:.2f}"])
    print(table(rows, ["model", "devices", "within 1 %, s", "best plan, s", "end, s", "proven", "--fit / plan"]))


if __name__ == "__main__":
    main()
