"""Weights are made anew in each forward pass: weight norm, and spectral norm, which writes to its buffers.

After https://github.com/pytorch/pytorch/issues/66363 (spectral norm, run twice before a backward pass).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import CLASSES, WIDTH, labelled
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    norms = nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm
    layers = [norms[number % 2](nn.Linear(WIDTH, WIDTH)) for number in range(6)]
    network = nn.Sequential(*(each for layer in layers for each in (layer, nn.LeakyReLU(0.1))), nn.Linear(WIDTH, CLASSES))
    model = run.compile(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(5):
        with run.step():
            x, y = labelled(512)
            loss = functional.cross_entropy(model(x), y) + functional.cross_entropy(model(x + 0.1), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
