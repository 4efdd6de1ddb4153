"""Gradients of a large table are sparse and have an optimizer of their own; the dense part is compiled.

After https://github.com/pytorch/pytorch/issues/84537 (what SparseAdam is for).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import CLASSES, WIDTH, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    table, network = nn.EmbeddingBag(400, WIDTH, sparse=True), mlp(4)
    model = run.compile(network)
    run.models.append(table)
    sparse = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
    dense = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(6):
        with run.step():
            chosen, y = torch.randint(0, 400, (384, 2)), torch.randint(0, CLASSES, (384,))
            loss = functional.cross_entropy(model(table(chosen)), y)
            loss.backward()
            for optimizer in (sparse, dense):
                optimizer.step()
                optimizer.zero_grad()
        yield loss.item()
