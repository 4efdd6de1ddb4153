"""The model is in bfloat16, and the optimizer has its own copy of the weights in float32.

After https://github.com/NVIDIA/Megatron-LM/issues/1821 (memory of separate masters in bfloat16 training).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp().bfloat16()
    masters = [each.detach().clone().float().requires_grad_() for each in network.parameters()]
    model = run.compile(network)
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    for _ in range(5):
        with run.step():
            x, y = labelled(512)
            loss = functional.cross_entropy(model(x.bfloat16()).float(), y)
            loss.backward()
            for master, each in zip(masters, network.parameters(), strict=True):
                master.grad, each.grad = each.grad.float(), None
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for master, each in zip(masters, network.parameters(), strict=True):
                    each.copy_(master)
        yield loss.item()
