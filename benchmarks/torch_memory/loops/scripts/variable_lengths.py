"""Each batch is padded to its longest sentence, so that lengths differ from step to step.

After https://github.com/pytorch/pytorch/issues/188150 (batches padded to their longest sentence).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import Language, text
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = Language()
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    lengths = random.Random(0)
    for _ in range(9):
        with run.step():
            words, targets = text(8, lengths.choice([24, 32, 40, 48]))
            targets = targets.masked_fill(torch.rand(targets.shape) < 0.1, -100)
            loss = functional.cross_entropy(model(words).flatten(0, 1), targets.flatten(), ignore_index=-100)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
