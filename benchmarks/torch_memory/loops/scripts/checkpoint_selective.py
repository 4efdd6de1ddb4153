"""Compiled layers inside of a selective checkpoint, which keeps what matrix products made.

After https://github.com/pytorch/pytorch/issues/161889 (selective checkpoints around compiled functions).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from benchmarks.torch_memory.loops.parts import WIDTH, Block
from benchmarks.torch_memory.loops.run import Run


def keeps(_: Any, operator: Any, *__: Any, **___: Any) -> Any:
    is_product = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return checkpoint.CheckpointPolicy.MUST_SAVE if is_product else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE


def contexts() -> Any:
    return checkpoint.create_selective_checkpoint_contexts(keeps)


def loop(run: Run) -> Iterator[Any]:
    network = nn.Sequential(*(Block() for _ in range(3)))
    layers = [run.compile(each) for each in network]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in range(6):
        with run.step():
            x = torch.randn(8, 32, WIDTH, requires_grad=True)
            y = x
            for layer in layers:
                y = checkpoint.checkpoint(layer, y, use_reentrant=False, context_fn=contexts)
            loss = y.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield [loss.item(), x.grad]
