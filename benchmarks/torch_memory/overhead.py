"""What counting every operator of a training step costs on a CPU, beside ``aot_eager``.

    pip install '.[learned]'
    python -m benchmarks.torch_memory.overhead [--width 64 256] [--batch 8 16] [--steps 25]

Four layers of a transformer, one thread. Times are the least processor time of a step: as ``aot_eager`` runs it, with a memory
that counts nothing (``check_every``), and with one that counts all operators; ``added`` is what the last adds to the first.
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from itertools import chain
from typing import Any

import torch
from torch import nn

from benchmarks.lib.tables import table
from stowplan.backends.torch import TrainingMemory


def milliseconds(width: int, batch: int, steps: int, memory: TrainingMemory | str) -> float:
    """Least processor time of a step."""
    torch._dynamo.reset()
    gc.collect()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    compiled: Any = torch.compile(model, backend=memory)
    x, least = torch.randn(batch, 64, width), float("inf")
    for number in range(steps + 4):
        began = time.process_time()
        compiled(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        least = min(least, time.process_time() - began) if number >= 4 else least
    return 1000 * least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[64, 256], help="widths of a layer")
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 16], help="sequences of 64, one number for each width")
    parser.add_argument("--steps", type=int, default=25, help="of which the quickest counts")
    options = parser.parse_args()
    rows = []
    for width, batch in zip(options.width, options.batch, strict=True):
        memories = (TrainingMemory("8 GiB", outside=0, time_limit=2, check_every=every) for every in (10**6, 1))
        found = [milliseconds(width, batch, options.steps, each) for each in chain(["aot_eager"], memories)]
        rows.append((width, batch, *(f"{each:.1f}" for each in found), f"{found[2] / found[0] - 1:.0%}"))
    print(table(rows, ["width", "batch", "aot_eager ms", "not counted ms", "counted ms", "added"]))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
