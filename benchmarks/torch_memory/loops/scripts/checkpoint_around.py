"""Layers are compiled one by one, and each call is inside of torch.utils.checkpoint.

After https://github.com/allenai/OLMo/issues/105 (torch.compile and activation checkpointing).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.utils import checkpoint

from benchmarks.torch_memory.loops.parts import Language, text
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = Language(3, dropout=0.1)
    blocks = [run.compile(each) for each in network.blocks]
    run.models.append(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(6):
        with run.step():
            words, targets = text(12)
            x = network.words(words) + network.places(torch.arange(words.shape[1]))
            for block in blocks:
                x = checkpoint.checkpoint(block, x, use_reentrant=False)
            loss = functional.cross_entropy(network.head(network.norm(x)).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
