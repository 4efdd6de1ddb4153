"""Hooks of a frozen network keep its inner activations, and a second network learns to match them.

After https://github.com/pytorch/pytorch/issues/91665 (forward hooks and torch.compile).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import images, pictures
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    frozen, inside = images().eval().requires_grad_(False), []
    for number in range(6):
        inside += [nn.Conv2d(8 if number else 3, 8, 3, padding=1), nn.SiLU()]
    network = nn.Sequential(*inside, nn.Conv2d(8, 3, 3, padding=1))
    model, seen = run.compile(network), []
    for layer in frozen[::3][:3]:
        layer.register_forward_hook(lambda _, __, out: seen.append(out))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(5):
        with run.step():
            x = pictures(32)[0]
            with torch.no_grad():
                frozen(x)
                wanted = [*seen]
                seen.clear()
            frozen(model(x))
            loss = sum(functional.l1_loss(one, other) for one, other in zip(seen, wanted, strict=True))
            seen.clear()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
