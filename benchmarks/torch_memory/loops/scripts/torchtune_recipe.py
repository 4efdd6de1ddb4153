"""The steps of torchtune's recipe for one device: losses weighted by tokens, a chunked head, gradients scaled at the end.

After https://github.com/meta-pytorch/torchtune/pull/1875 (losses by tokens in the recipes, in our own words).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import Language, text
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = Language(2)
    for number, block in enumerate(network.blocks):
        network.blocks[number] = run.compile(block)
    run.models.append(network)

    def summed(states: Any, targets: Any) -> Any:
        return functional.cross_entropy(network.head(states).float().flatten(0, 1), targets.flatten(), reduction="sum")

    criterion = run.compile(summed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: min(1.0, (number + 1) / 3))
    for _ in range(5):
        with run.step():
            total, tokens = torch.zeros(()), torch.zeros((), dtype=torch.long)
            for _ in range(2):
                words, targets = text(6)
                targets = targets.masked_fill(torch.rand(targets.shape) < 0.2, -100)
                states = network.hidden(words).chunk(4, dim=1)
                loss = sum(criterion(*pair) for pair in zip(states, targets.chunk(4, dim=1), strict=True))
                tokens += (targets != -100).sum()
                total += loss.detach()
                loss.backward()
            for each in network.parameters():
                each.grad *= 1 / tokens
            norm = nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
        yield [(total / tokens).item(), norm.item()]
