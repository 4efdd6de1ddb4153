"""Gradients of four batches are accumulated before each step of the optimizer, and set to zero in place.

After https://github.com/karpathy/nanoGPT/pull/34 (gradient accumulation is asked for and added).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run

ACCUMULATED = 4


def loop(run: Run) -> Iterator[Any]:
    network = mlp()
    model = run.compile(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        with run.step():
            total = 0.0
            for _ in range(ACCUMULATED):
                x, y = labelled()
                loss = functional.cross_entropy(model(x), y) / ACCUMULATED
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        yield total
