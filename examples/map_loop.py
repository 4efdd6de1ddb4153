"""A loop body written in Python, mapped to the tiles of the Streaming Engine and run in its simulator.

Run it: ``python examples/map_loop.py [MACHINE]``; ``stowplan targets`` lists the machines.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import stowplan
from stowplan.frontends.dfg import carried, lower, maximum, trace
from stowplan.hardware.se import compare, configure
from stowplan.hardware.se.machines import load_machine


def smoothed_peak(sample: Any, decay: float = 0.9, gain: float = 2.0) -> Any:
    """An exponential average of a stream, and the largest it has been."""
    average, peak = carried(0.0), carried(-1e9)
    now = average.becomes(decay * average + gain * sample)
    return peak.becomes(maximum(peak, now))


def main() -> None:
    machine = load_machine(sys.argv[1] if len(sys.argv) > 1 else "se")
    problem = lower(trace(smoothed_peak), machine)
    result = stowplan.solve(problem, time_limit=20)
    print(result.summary())
    if result.plan is None:
        sys.exit(result.exit_code)
    print(configure(problem, result.plan).table())

    samples = np.random.default_rng(0).normal(size=(16, 4))
    data = {"sample": samples, "decay": np.full(4, 0.9), "gain": np.full(4, 2.0)}
    run = compare(problem, result.plan, iterations=16, data=data)
    print(f"16 iterations in {run.clocks} clocks, as NumPy computes them")
    result.plan.save("plan.json")


if __name__ == "__main__":
    main()
