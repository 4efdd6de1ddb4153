"""Losses are kept in a list, and added up, with all that autograd knows of them: a common leak.

After https://github.com/pytorch/pytorch/issues/64586 (memory grows until .item() is added).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run

ONE_LINE = True


def loop(run: Run) -> Iterator[Any]:
    network = mlp()
    model = run.compile(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses, total = [], torch.zeros(())
    for _ in range(8):
        with run.step():
            x, y = labelled()
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
            total = total + loss
        yield total.item(), len(losses)
