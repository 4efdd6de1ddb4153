"""One layer compiled and used 16 to 80 times, at the size that people train, planned on ``meta`` tensors: nothing runs.

    pip install '.[learned]'
    python -m benchmarks.torch_memory.repeated [--layers llama,gpt] [--repeats 16,80] [--time-limit 20]

Layers are those of :mod:`benchmarks.torch_memory.large`. Limits are parts of the peak where each keeps its inputs alone, as
with a checkpoint a layer; parameters and gradients count. Costs and bounds are percent of what each operator costs once. The
bound is of all plans that are the same in each repeat.
"""

from __future__ import annotations

import argparse
import time
import warnings
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.lib.tables import table
from benchmarks.torch_memory.large import Mixture, T5Block, flash, traced
from benchmarks.torch_memory.models import GptBlock, LlamaBlock
from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch.allowance import footprint, repeated_allowance, with_reservations
from stowplan.backends.torch.planning import Chooser, Settings
from stowplan.backends.torch.reader import Reading
from stowplan.models.rematerialization.structure import build

#: Limits: times the peak with a checkpoint a layer.
PARTS = "0.9,1,1.25,1.5,2"

LAYERS = "llama,gpt,vit,moe,t5-encoder,t5-decoder"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default=LAYERS, help="separated by commas")
    parser.add_argument("--repeats", default="16,32,80")
    parser.add_argument("--parts", default=PARTS, help="limits, times the peak with a checkpoint a layer")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of planning for each limit")
    options = parser.parse_args()
    rows = []
    for name in options.layers.split(","):
        reading, static = joint(name)
        for repeats in map(int, options.repeats.split(",")):
            for row in planned(reading, repeats, static, [*map(float, options.parts.split(","))], options.time_limit):
                rows.append((name, len(reading.problem.ops), repeats, *row))
                print("#", *rows[-1], flush=True)
    heads = ["layer", "operators", "repeats", "eager GiB", "limit", "GiB", "peak", "cost %", "bound %", "ratio", "s"]
    print(table(rows, heads))


def joint(name: str) -> tuple[Reading, set[int]]:
    """The joint graph of a layer, and the numbers of its parameters among the inputs."""
    layer, inputs = made(name)
    with mock.patch.object(F, "scaled_dot_product_attention", flash):
        reading, _ = traced(layer, inputs)
    placeholders = [node for node in reading.graph.nodes if node.op == "placeholder"]
    given = {tensor.shape for tensor in inputs}
    return reading, {at for at in reading.input_bytes() if placeholders[at].meta["val"].shape not in given}


def made(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer and what it is called with, in bfloat16."""
    with torch.device("meta"):
        x = torch.empty(4, 4096, 4096, dtype=torch.bfloat16, requires_grad=True)
        pictures = torch.empty(128, 257, 1280, dtype=torch.bfloat16, requires_grad=True)
        layer: nn.Module
        layer, *inputs = {
            "llama": lambda: (LlamaBlock(4096, 14336, 32), x),
            "gpt": lambda: (GptBlock(4096, 32), x),
            "vit": lambda: (GptBlock(1280, 16), pictures),
            "moe": lambda: (Mixture(4096, 14336, 32), x),
            "t5-encoder": lambda: (T5Block(4096, 10240, 64, False), x),
            "t5-decoder": lambda: (T5Block(4096, 10240, 64, True), x, torch.empty_like(x, requires_grad=True)),
        }[name]()
    return layer.bfloat16(), tuple(inputs)


def planned(reading: Reading, repeats: int, static: set[int], parts: list[float], seconds: float) -> list[tuple[object, ...]]:
    """A row for each limit."""
    structure, gib = build(reading.problem), 1 << 30
    order, border = structure.order, structure.order.index(reading.border)
    again = [op for op in order[:border] if not structure.once[op]]
    endless = repeated_allowance(reading, repeats, 1 << 50, static)
    eager, checkpoint = (
        endless.peak(footprint(reading, structure.made(runs)))
        for runs in (order, [*order[: border + 1], *again, *order[border + 1 :]])
    )
    rows: list[tuple[object, ...]] = []
    for part in parts:
        limit, began = int(part * checkpoint), time.monotonic()
        settings = Settings(limit, repeats=repeats, time_limit=seconds)
        beside = with_reservations(reading, repeated_allowance(reading, repeats, limit, static))
        chooser = Chooser(beside, limit, settings, None, lambda should_stop: iter(()), 0.0, began)
        figures: tuple[object, ...]
        try:
            report = chooser.choose(keep_stock=False).report
            cost, bound = report.added_cost / reading.unit, (report.bound or 0) / reading.unit
            once = sum(structure.cost) / 100
            ratio = f"{cost / bound:.3f}" if bound else ""
            figures = f"{report.peak / gib:.2f}", f"{cost / once:.2f}", f"{bound / once:.2f}", ratio
        except MemoryLimitError as error:
            figures = "", "none", "proven" if "proven" in str(error) else "", ""
        rows.append((f"{eager / gib:.2f}", part, f"{limit / gib:.2f}", *figures, f"{time.monotonic() - began:.1f}"))
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
