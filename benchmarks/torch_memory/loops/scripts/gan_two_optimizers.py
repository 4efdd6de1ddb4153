"""A generator and a discriminator, each compiled and with an optimizer of its own, train in turns.

After https://github.com/pytorch/pytorch/issues/91542 (torch.compile and the DCGAN loop, which runs as eager).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.torch_memory.loops.parts import WIDTH, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    networks = mlp(3, out=WIDTH), mlp(3, out=1, dropout=0.1)
    generator, critic = (run.compile(each) for each in networks)
    optimizers = [torch.optim.Adam(each.parameters(), lr=2e-4, betas=(0.5, 0.999)) for each in networks]
    criterion, ones, zeros = nn.BCEWithLogitsLoss(), torch.ones(256, 1), torch.zeros(256, 1)
    for _ in range(5):
        with run.step():
            made = generator(torch.randn(256, WIDTH))
            optimizers[1].zero_grad()
            of_real = criterion(critic(torch.randn(256, WIDTH) + 1), ones)
            of_real.backward()
            of_made = criterion(critic(made.detach()), zeros)
            of_made.backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            fooled = criterion(critic(made), ones)
            fooled.backward()
            optimizers[0].step()
        yield [of_real.item(), of_made.item(), fooled.item()]
