"""The model is given labels and returns a dictionary with its loss and its logits, as in transformers.

After https://github.com/pytorch/torchtitan/pull/551 (the cast to float32 within a loss that is compiled with the model).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import Language, text
from benchmarks.torch_memory.loops.run import Run

ONE_LINE = True


class WithLoss(nn.Module):
    """A language model that computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.language = Language(2, dropout=0.1)

    def forward(self, words: Any, labels: Any = None) -> Any:
        logits = self.language(words)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits}


def loop(run: Run) -> Iterator[Any]:
    network = WithLoss()
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(5):
        with run.step():
            words = text()[0].contiguous()
            found = model(words, labels=words.masked_fill(torch.rand(words.shape) < 0.2, -100))
            found["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        yield found["loss"].item(), found["logits"].mean()
