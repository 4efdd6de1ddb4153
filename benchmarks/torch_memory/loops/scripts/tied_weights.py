"""The head is the embedding, weight decay is for matrices alone, and the loss is computed by the caller.

After https://github.com/allenai/open-instruct/pull/1387 (a head that is the embedding).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import WORDS, Language, text
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = Language(2, dropout=0.1)
    model = run.compile(network)
    matrices = [each for each in network.parameters() if each.dim() > 1]
    others = [each for each in network.parameters() if each.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    for _ in range(5):
        with run.step():
            words, targets = text()
            logits = model(words)
            loss = functional.cross_entropy(logits.reshape(-1, WORDS), targets.reshape(-1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
