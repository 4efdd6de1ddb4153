"""An average of the weights is kept in a second model, which is also what is evaluated.

After https://github.com/mosaicml/composer/pull/1941 (what an average of the weights takes beside the model).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import images, pictures
from benchmarks.torch_memory.loops.run import Run


@torch.no_grad()
def follow(average: Any, network: Any) -> None:
    for kept, now in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
        kept.copy_(0.9 * kept + 0.1 * now if kept.is_floating_point() else now)


def loop(run: Run) -> Iterator[Any]:
    network = images()
    average = copy.deepcopy(network).eval().requires_grad_(False)
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for number in range(6):
        with run.step():
            x, y = pictures()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            follow(average, network)
            if number % 3 == 2:
                with torch.no_grad():
                    loss = functional.cross_entropy(average(x), y)
        yield loss.item()
