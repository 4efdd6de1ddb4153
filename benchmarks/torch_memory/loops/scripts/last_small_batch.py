"""A DataLoader without workers shuffles the examples; the last batch of each epoch is smaller.

After https://github.com/saforem2/ezpz/pull/190 (the ragged last batch of an epoch runs out of memory once compiled).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp(dropout=0.1)
    model = run.compile(network)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=1e-3)
    examples = torch.utils.data.TensorDataset(*labelled(900))
    loader = torch.utils.data.DataLoader(examples, batch_size=256, shuffle=True)
    for _ in range(2):
        for x, y in loader:
            with run.step():
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            yield loss.item()
