"""Arenas of exported models, executorch's greedy plan and stowplan's order and offsets, beside what the order alone can give.

    pip install '.[executorch]'         # and torchvision, timm for the models of theirs
    python -m benchmarks.executorch.order [--time-limit 20] [--models nasnet_cells,mtl_towers] [--run]

Prints one row a model as a table in Markdown: what docs/results/executorch.md shows. ``--run`` runs both programs, and says
whether their results are the same to the last bit.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import torch
from executorch.exir import to_edge

from benchmarks.lib.torch_models import MODELS
from stowplan.backends.executorch import plan

DEFAULT = (
    "nasnet_cells,mtl_towers,randwire,unet8,lstm_unrolled,bigru_unrolled,transformer,resnet50,inception_v3,hrnet_w18_small"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each order and each arena")
    parser.add_argument("--models", default=DEFAULT, help="names, separated by commas")
    parser.add_argument("--run", action="store_true", help="run both programs, and compare")
    options = parser.parse_args()
    print("| model | operators | greedy | offsets | order and offsets | saved | peak given | peak | proven | same results |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|---|---|")
    for name in options.models.split(","):
        model, inputs = MODELS[name]()
        model = model.requires_grad_(False)

        def edge(model: Any = model, inputs: Any = inputs) -> Any:
            return to_edge(torch.export.export(model, inputs))

        stock, alone = edge().to_executorch(), plan(edge(), order=False, time_limit=options.time_limit)
        both = plan(edge(), time_limit=options.time_limit)
        greedy, offsets, size = (arena(each) for each in (stock, alone.program, both.program))
        order = both.orders[0]
        same = "not run" if not options.run else "yes" if equal(stock, both.program, inputs) else "NO"
        sizes = f"{greedy:,} | {offsets:,} | {size:,} | {1 - size / greedy:.1%} | {order.given:,} | {order.peak:,}"
        proven = "yes" if order.is_proven else f"at least {order.bound:,}"
        print(f"| {name} | {order.operators} | {sizes} | {proven} | {same} |", flush=True)


def arena(program: Any) -> int:
    """Bytes of all arenas of a program's first method."""
    return int(sum(program.executorch_program.execution_plan[0].non_const_buffer_sizes))


def equal(one: Any, other: Any, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Whether two programs give the same results, to the last bit."""
    from executorch.runtime import Runtime

    results = [Runtime.get().load_program(each.buffer).load_method("forward").execute(list(inputs)) for each in (one, other)]
    return all(torch.equal(first, second) for first, second in zip(*results, strict=True))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
