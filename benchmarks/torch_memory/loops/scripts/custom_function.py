"""Vectors are quantized; a function with a backward pass of its own hands the gradient through.

After https://github.com/pytorch/pytorch/issues/160757 (torch.compile and autograd.Function).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import WIDTH, mlp
from benchmarks.torch_memory.loops.run import Run


class Through(torch.autograd.Function):
    """The nearest of a table's vectors; its gradient is handed to the vector itself, too."""

    @staticmethod
    def forward(ctx: Any, x: Any, table: Any) -> Any:
        chosen = torch.cdist(x, table).argmin(1)
        ctx.save_for_backward(chosen)
        ctx.count = table.shape[0]
        return table[chosen]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (chosen,) = ctx.saved_tensors
        return gradient, torch.zeros(ctx.count, gradient.shape[1]).index_add(0, chosen, gradient)


class Quantized(nn.Module):
    """An encoder, a table of vectors, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(2, out=WIDTH), mlp(2, out=WIDTH)
        self.table = nn.Parameter(torch.randn(24, WIDTH))

    def forward(self, x: Any) -> Any:
        return self.decoder(Through.apply(self.encoder(x), self.table))


def loop(run: Run) -> Iterator[Any]:
    network = Quantized()
    model = run.compile(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(5):
        with run.step():
            x = torch.randn(384, WIDTH)
            loss = functional.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
