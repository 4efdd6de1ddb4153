"""Only the repeated layers are compiled, in place and each alone; embedding, head and loss are eager.

After https://github.com/pytorch/torchtitan/pull/268 (torch.compile for each layer, and a report of growing memory).
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
    network = Language(4, dropout=0.1)
    run.models.append(network)
    for number, block in enumerate(network.blocks):
        network.blocks[number] = run.compile(block)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(6):
        with run.step():
            words, targets = text()
            loss = functional.cross_entropy(network(words).flatten(0, 1), targets.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
