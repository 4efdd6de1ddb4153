"""Gradients of two tasks are taken one by one with the graph kept, and what of one is against the other is removed.

After https://github.com/WeiChengTseng/Pytorch-PCGrad/issues/2 (out of memory because of retain_graph).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import CLASSES, WIDTH, labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    trunk, heads = mlp(4, out=WIDTH), (nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 1))
    model = run.compile(trunk)
    run.models.extend(heads)
    parameters = [*trunk.parameters(), *heads[0].parameters(), *heads[1].parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    for _ in range(5):
        with run.step():
            x, y = labelled(384)
            inside = model(x)
            losses = functional.cross_entropy(heads[0](inside), y), heads[1](inside).squeeze(1).sub(x.mean(1)).abs().mean()
            found = []
            for loss in losses:
                gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
                flat = [
                    torch.zeros_like(one) if each is None else each for one, each in zip(parameters, gradients, strict=True)
                ]
                found.append(torch.cat([each.flatten() for each in flat]))
            against = (found[0] @ found[1]).clamp(max=0) / found[1].square().sum()
            whole = found[0] - against * found[1] + found[1]
            for each, part in zip(parameters, whole.split([each.numel() for each in parameters]), strict=True):
                each.grad = part.view_as(each)
            optimizer.step()
            optimizer.zero_grad()
        yield [loss.item() for loss in losses]
