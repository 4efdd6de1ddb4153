"""A pretrained backbone is frozen, its norms stay in evaluation, and only a head learns; later its last layer does, too.

After https://github.com/lightly-ai/lightly/issues/1438 (what freezing a backbone with norms means).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import WIDTH, images, mlp, pictures
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    backbone, head = images(out=WIDTH), mlp(2)
    backbone.requires_grad_(False).eval()
    network = nn.Sequential(backbone, head)
    model = run.compile(network)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for number in range(8):
        if number == 4:
            backbone[-1].requires_grad_(True)
            optimizer.add_param_group({"params": backbone[-1].parameters(), "lr": 1e-4})
        with run.step():
            x, y = pictures(64)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
