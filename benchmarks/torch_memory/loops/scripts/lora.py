"""Products of two narrow matrices are trained beside frozen layers.

After https://github.com/huggingface/peft/issues/1514 (LoRA that takes more memory than full training).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import Language, text
from benchmarks.torch_memory.loops.run import Run


class Adapted(nn.Module):
    """A frozen layer with a narrow one beside it."""

    def __init__(self, layer: Any):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, 4, bias=False), nn.Linear(4, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Any) -> Any:
        return self.layer(x) + 2 * self.up(functional.dropout(self.down(x), 0.1, self.training))


def loop(run: Run) -> Iterator[Any]:
    network = Language(2).requires_grad_(False)
    for block in network.blocks:
        block.qkv, block.up, block.down = Adapted(block.qkv), Adapted(block.up), Adapted(block.down)
    model = run.compile(network)
    optimizer = torch.optim.AdamW([each for each in network.parameters() if each.requires_grad], lr=1e-2)
    for _ in range(6):
        with run.step():
            words, targets = text()
            loss = functional.cross_entropy(model(words).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
