"""After every third step the model is evaluated on larger batches, whose outputs are kept in a list.

After https://github.com/huggingface/pytorch-image-models/issues/80 (memory in validation while training).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import images, pictures
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = images()
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for number in range(7):
        with run.step():
            network.train()
            x, y = pictures()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
        if number % 3 == 2:
            with run.step(), torch.no_grad():
                network.eval()
                found = [model(pictures(48)[0]).argmax(1) for _ in range(4)]
            yield torch.cat(found)
