"""Logits are never there as a whole: head and loss run over chunks of the sequence.

After https://github.com/meta-pytorch/torchtune/pull/1390 (chunks before the head).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import Language, text
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = Language(2)
    hidden = run.compile(network.hidden)
    run.models.append(network)

    def of_chunk(states: Any, targets: Any) -> Any:
        return functional.cross_entropy(network.head(states).flatten(0, 1), targets.flatten(), reduction="sum")

    partial = run.compile(of_chunk)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(5):
        with run.step():
            words, targets = text(8, 32)
            states = hidden(words).chunk(4, dim=1)
            losses = [partial(*pair) for pair in zip(states, targets.chunk(4, dim=1), strict=True)]
            loss = torch.stack(losses).sum() / targets.numel()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
