"""Sharpness-aware minimization: a step up along the gradient, a second pass there, and the step from where it began.

After https://github.com/davda54/sam/issues/8 (two passes to a step).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import images, pictures
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = images()
    model = run.compile(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(5):
        with run.step():
            x, y = pictures()
            functional.cross_entropy(model(x), y).backward()
            norm = torch.stack([each.grad.norm() for each in network.parameters()]).norm()
            up = [0.05 * each.grad / (norm + 1e-12) for each in network.parameters()]
            with torch.no_grad():
                for each, way in zip(network.parameters(), up, strict=True):
                    each.add_(way)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                for each, way in zip(network.parameters(), up, strict=True):
                    each.sub_(way)
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
