"""For each task a copy of the weights takes two steps; gradients at its end are added up for the shared weights.

After https://github.com/tristandeleu/pytorch-maml/issues/21 (memory of the inner loop).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network, fast = mlp(3), mlp(3)
    model = run.compile(fast)
    run.models.append(network)
    outer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(4):
        with run.step():
            outer.zero_grad()
            for _ in range(3):
                fast.load_state_dict(network.state_dict())
                inner = torch.optim.SGD(fast.parameters(), lr=0.05)
                for _ in range(2):
                    inner.zero_grad()
                    x, y = labelled(192)
                    functional.cross_entropy(model(x), y).backward()
                    inner.step()
                x, y = labelled(192)
                loss = functional.cross_entropy(model(x), y)
                for each, gradient in zip(network.parameters(), torch.autograd.grad(loss, fast.parameters()), strict=True):
                    each.grad = gradient / 3 if each.grad is None else each.grad + gradient / 3
            outer.step()
        yield loss.item()
