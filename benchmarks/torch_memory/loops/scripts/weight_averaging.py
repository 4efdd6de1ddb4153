"""Weights are averaged over the last epochs, and then norms are computed anew for the average.

After https://github.com/pytorch/pytorch/pull/35032 (averaged weights, and update_bn).
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
    average = torch.optim.swa_utils.AveragedModel(network)
    model, mean = run.compile(network), run.compile(average)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*pictures(96)), batch_size=32)
    for epoch in range(3):
        for x, y in loader:
            with run.step():
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if epoch:
                    average.update_parameters(network)
            yield loss.item()
    with run.step():
        torch.optim.swa_utils.update_bn(loader, mean)
    with run.step(), torch.no_grad():
        mean.eval()
        found = [mean(x).argmax(1) for x, _ in loader]
    yield torch.cat(found)
