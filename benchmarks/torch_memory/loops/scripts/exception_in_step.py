"""A batch is bad: the forward pass of a step, or what follows it, raises an error, and the loop goes on with the next.

After https://github.com/Lightning-AI/pytorch-lightning/issues/8531 (skip a batch that fails).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import CLASSES, labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp(4, dropout=0.1)
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for number in range(9):
        x, y = labelled()
        if number in (1, 4):
            y = y + CLASSES
        elif number in (2, 6):
            x = x[:, :7]
        loss = torch.zeros(())
        try:
            with run.step():
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
        except (IndexError, RuntimeError) as error:
            if "bytes" in str(error):  # a limit is no bad batch
                raise
        yield loss.item()
