"""Hooks add noise to gradients while the backward pass runs, and a scheduler lowers it.

After https://github.com/rwth-i6/returnn/pull/1595 (noise on gradients).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp(5, dropout=0.1)
    model = run.compile(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    spread = 0.01
    for each in network.parameters():
        each.register_hook(lambda gradient: gradient + spread * torch.randn_like(gradient))
    for _ in range(5):
        with run.step():
            x, y = labelled()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            spread *= 0.7
        yield loss.item()
