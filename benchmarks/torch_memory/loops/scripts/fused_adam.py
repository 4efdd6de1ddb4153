"""The optimizer updates all parameters in one fused operator, and a scheduler changes its rate.

After https://github.com/pytorch/pytorch/issues/97712 (what foreach and fused optimizers take).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run

ONE_LINE = True


def loop(run: Run) -> Iterator[Any]:
    network = mlp(5)
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=8)
    for _ in range(6):
        with run.step():
            x, y = labelled()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            schedule.step()
        yield loss.item()
