"""Each parameter is updated in the backward pass, as soon as its gradient is there, and the gradient is dropped.

After https://github.com/pytorch/tutorials/pull/2568 (the tutorial on optimizers in the backward pass).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp(6)
    model = run.compile(network)
    optimizers = {each: torch.optim.AdamW([each], lr=1e-3) for each in network.parameters()}

    def update(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in network.parameters():
        each.register_post_accumulate_grad_hook(update)
    for _ in range(6):
        with run.step():
            x, y = labelled()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
        yield loss.item()
