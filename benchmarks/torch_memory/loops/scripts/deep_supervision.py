"""Outputs of several depths have losses of their own, whose weighted sum is what is differentiated.

After https://github.com/MIC-DKFZ/nnUNet/issues/1170 (losses at several depths).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import CLASSES, WIDTH, labelled, mlp
from benchmarks.torch_memory.loops.run import Run


class Deep(nn.Module):
    """A network with a head at each depth."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(mlp(1, out=WIDTH) for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(4))

    def forward(self, x: Any) -> Any:
        found = {}
        for number, (stage, head) in enumerate(zip(self.stages, self.heads, strict=True)):
            x = x + stage(x)
            found[f"depth {number}"] = head(x)
        return found


def loop(run: Run) -> Iterator[Any]:
    network = Deep()
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(5):
        with run.step():
            x, y = labelled(384)
            losses = {name: functional.cross_entropy(each, y) for name, each in model(x).items()}
            loss = sum(0.5**number * each for number, each in enumerate(losses.values()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield [each.item() for each in losses.values()]
