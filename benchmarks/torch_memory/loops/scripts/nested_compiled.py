"""A compiled model has a part that was compiled before, and that part is used alone as well.

After https://github.com/pytorch/pytorch/issues/156308 (a compiled function inside of another).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import WIDTH, labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    part, head = mlp(3, out=WIDTH), mlp(2)
    inside = run.compile(part)
    network = nn.Sequential(inside, nn.LayerNorm(WIDTH), head)
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for number in range(6):
        with run.step():
            x, y = labelled()
            loss = functional.cross_entropy(model(x), y)
            if number % 2:
                loss = loss + 0.01 * inside(x.flip(0)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
