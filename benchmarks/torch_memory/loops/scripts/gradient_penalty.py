"""A critic's gradient is part of its loss (WGAN-GP): torch.compile cannot differentiate a graph twice.

After https://github.com/pytorch/pytorch/issues/91469 (double backward of a compiled function).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.torch_memory.loops.parts import WIDTH
from benchmarks.torch_memory.loops.run import Run

EXPECTED = "does not currently support double backward"


def loop(run: Run) -> Iterator[Any]:
    network = nn.Sequential(*(each for _ in range(3) for each in (nn.Linear(WIDTH, WIDTH), nn.SiLU())), nn.Linear(WIDTH, 1))
    critic = run.compile(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    for _ in range(4):
        with run.step():
            real, made = torch.randn(128, WIDTH), torch.randn(128, WIDTH) + 1
            share = torch.rand(128, 1)
            between = (share * real + (1 - share) * made).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = critic(made).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
