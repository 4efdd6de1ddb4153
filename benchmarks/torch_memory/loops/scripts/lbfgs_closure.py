"""LBFGS evaluates the loss several times in each step, by a closure.

After https://github.com/Lightning-AI/pytorch-lightning/issues/246 (LBFGS needs a closure that runs the model).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import WIDTH
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = nn.Sequential(*(each for _ in range(4) for each in (nn.Linear(WIDTH, WIDTH), nn.Tanh())), nn.Linear(WIDTH, 1))
    model = run.compile(network)
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=4, history_size=3, line_search_fn="strong_wolfe")
    x = torch.randn(512, WIDTH)
    y = x.sin().mean(1, keepdim=True)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(4):
        with run.step():
            loss = optimizer.step(closure)
        yield loss.item()
