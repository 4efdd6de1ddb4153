"""A language model writes a few words after every third step: lengths grow, without gradients.

After https://github.com/karpathy/build-nanogpt/issues/79 (a compiled model that writes in between).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import Language, text
from benchmarks.torch_memory.loops.run import Run

ONE_LINE = True


def loop(run: Run) -> Iterator[Any]:
    network = Language(2)
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for number in range(7):
        with run.step():
            words, targets = text()
            loss = functional.cross_entropy(model(words).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield loss.item()
        if number % 3 == 2:
            with run.step(), torch.no_grad():
                words = torch.zeros(1, 4, dtype=torch.long)
                for _ in range(6):
                    words = torch.cat([words, model(words)[:, -1].softmax(1).multinomial(1)], 1)
            yield words
