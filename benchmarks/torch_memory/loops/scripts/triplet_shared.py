"""One encoder embeds an anchor, a positive and a negative example before one backward pass.

After https://ai.stackexchange.com/questions/33901/triplet-loss-three-forward-pass-and-one-backward-passpropagation
(three forward passes, one backward pass).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.torch_memory.loops.parts import WIDTH, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp(3, out=WIDTH, dropout=0.1)
    encoder = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    criterion = nn.TripletMarginLoss(margin=0.5)
    for _ in range(5):
        with run.step():
            anchor = torch.randn(256, WIDTH)
            near, far = anchor + 0.1 * torch.randn(256, WIDTH), torch.randn(256, WIDTH)
            loss = criterion(encoder(anchor), encoder(near), encoder(far))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
