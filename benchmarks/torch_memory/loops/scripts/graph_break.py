"""The model looks at a value in the middle, which ends one graph and begins another.

After https://github.com/pytorch/pytorch/issues/158642 (.item() in a forward pass).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import WIDTH, labelled, mlp
from benchmarks.torch_memory.loops.run import Run


class Looks(nn.Module):
    """Two networks, and a look at what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = mlp(3, out=WIDTH), mlp(3)

    def forward(self, x: Any) -> Any:
        x = self.one(x)
        if x.abs().max().item() > 1e4:
            x = x.clamp(-1e4, 1e4)
        return self.other(x)


def loop(run: Run) -> Iterator[Any]:
    network = Looks()
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(6):
        with run.step():
            x, y = labelled()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
