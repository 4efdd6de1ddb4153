"""Peaks of Inductor's own orders and of ours, by its own estimate, of both halves of a training step.

    pip install '.[learned]'      # and a C++ compiler
    python -m benchmarks.torch_memory.inductor [--models gpt8,unet] [--time-limit 5]

Every model is compiled by Inductor, with our order among those that it tries, and makes a step. Peaks are MB.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._inductor import memory

from benchmarks.lib.tables import table
from benchmarks.torch_memory.models import MODELS
from stowplan.backends.torch import inductor_order


class Row(NamedTuple):
    """A half: the order given, the best and the name of Inductor's own, ours, and whether no order is better."""

    model: str
    half: str
    nodes: int
    given: int
    theirs: int
    method: str
    ours: int
    is_proven: bool
    seconds: float

    def cells(self) -> list[str]:
        """For the table."""
        given, theirs, ours = (f"{each / 1e6:.2f}" for each in (self.given, self.theirs, self.ours))
        proven = "proven" if self.is_proven else ""
        return [self.model, self.half, str(self.nodes), given, theirs, self.method, ours, proven, f"{self.seconds:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt8,vit8,unet,diffusion_unet,hrnet,densenet", help="names, separated by commas")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds of ordering for each half")
    options = parser.parse_args()
    rows = []
    for name in options.models.split(","):
        for row in compiled(name, options.time_limit):
            print("#", *row.cells(), flush=True)
            rows.append(row)
    head = ["model", "half", "nodes", "given", "best of Inductor's", "", "ours", "", "seconds"]
    print(table([row.cells() for row in rows], head))
    print(
        f"{len(rows)} halves: ours is lower in {sum(row.ours < row.theirs for row in rows)}, higher in"
        f" {sum(row.ours > row.theirs for row in rows)}, proven the least in {sum(row.is_proven for row in rows)}."
    )


def compiled(name: str, time_limit: float) -> list[Row]:
    """Both halves of a model, whose compiled step runs once."""
    torch._dynamo.reset()
    model, inputs = MODELS[name]()
    peaks: list[dict[str, int]] = []

    def tell(category: str, name: str, parameters: dict[str, Any]) -> None:
        peaks.append(parameters["orm"])

    with mock.patch.object(memory, "signpost_event", tell), inductor_order(time_limit) as reports:
        torch.compile(model)(*inputs).backward()
    rows = []
    for half, estimates, report in zip(("forward", "backward"), peaks, reports, strict=True):
        theirs = {method: peak for method, peak in estimates.items() if method != "stowplan"}
        method = min(theirs, key=lambda each: theirs[each])
        rows.append(
            Row(
                *(name, half, report.operators, theirs["baseline"], theirs[method], method.removeprefix("topological_sort_")),
                *(estimates["stowplan"], report.peak <= report.bound, report.seconds),
            )
        )
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
