"""Which patches are seen is drawn inside of the model, anew in each pass.

After https://github.com/pytorch/pytorch/issues/172207 (random masks inside of a compiled model).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.torch_memory.loops.parts import WIDTH, Block
from benchmarks.torch_memory.loops.run import Run


class Masked(nn.Module):
    """Sees a quarter of the patches, and predicts all."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.ModuleList([Block(), Block()]), Block()
        self.gap, self.out = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        count, length, _ = x.shape
        order = torch.rand(count, length, device=x.device).argsort(1)
        back, seen = order.argsort(1), order[:, : length // 4, None].expand(-1, -1, WIDTH)
        inside = x.gather(1, seen)
        for block in self.encoder:
            inside = block(inside)
        whole = torch.cat([inside, self.gap.expand(count, length - length // 4, -1)], 1)
        guess = self.out(self.decoder(whole.gather(1, back[..., None].expand(-1, -1, WIDTH))))
        return ((guess - x).square().mean(-1) * (back >= length // 4)).mean()


def loop(run: Run) -> Iterator[Any]:
    network = Masked()
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(6):
        with run.step():
            loss = model(torch.randn(12, 32, WIDTH))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
