"""Gradients are clipped by their norm, and a step whose norm is not finite is left out.

After https://github.com/meta-pytorch/torchtune/issues/2517 (clipping by the norm as foreach operators).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp()
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, foreach=True)
    for number in range(6):
        with run.step():
            x, y = labelled()
            if number == 3:
                x[0, 0] = float("nan")
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            if torch.isfinite(norm):
                optimizer.step()
            optimizer.zero_grad()
        yield [loss.item(), norm.item()]
