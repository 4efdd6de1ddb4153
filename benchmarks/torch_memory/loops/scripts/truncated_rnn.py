"""A recurrent cell runs over a long sequence; every few steps there is a backward pass, and the state is detached.

After https://github.com/Lightning-AI/pytorch-lightning/issues/17848 (truncated backpropagation by hand).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import CLASSES, WIDTH
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    cell, head = nn.LSTMCell(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
    one, read = run.compile(cell), run.compile(head)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-3)
    state = torch.zeros(64, WIDTH), torch.zeros(64, WIDTH)
    for _ in range(5):
        with run.step():
            state, loss = (state[0].detach(), state[1].detach()), torch.zeros(())
            for _ in range(6):
                state = one(torch.randn(64, WIDTH), state)
                loss = loss + functional.cross_entropy(read(state[0]), torch.randint(0, CLASSES, (64,)))
            loss.backward()
            nn.utils.clip_grad_value_(cell.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
