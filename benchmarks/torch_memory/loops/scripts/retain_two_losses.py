"""Two losses of the same outputs have a backward pass each, and the graph is kept for the second.

After https://github.com/pytorch/xla/issues/1961 (two losses, two backward passes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import CLASSES, WIDTH, labelled, mlp
from benchmarks.torch_memory.loops.run import Run


class Heads(nn.Module):
    """A trunk with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.kind, self.size = mlp(3, out=WIDTH), nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 1)

    def forward(self, x: Any) -> Any:
        inside = self.trunk(x)
        return self.kind(inside), self.size(inside)


def loop(run: Run) -> Iterator[Any]:
    network = Heads()
    model = run.compile(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(5):
        with run.step():
            x, y = labelled(512)
            kind, size = model(x)
            first = functional.cross_entropy(kind, y)
            first.backward(retain_graph=True)
            second = functional.l1_loss(size.squeeze(1), x.mean(1))
            second.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield first.item(), second.item()
