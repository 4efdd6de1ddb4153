"""Two views of a batch go through a network with norms and through its lagging average, which predicts nothing of its own.

After https://github.com/lightly-ai/lightly/issues/1471 (a momentum encoder).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import WIDTH, images, pictures
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network, lagging = images(out=WIDTH), images(out=WIDTH)
    lagging.load_state_dict(network.state_dict())
    lagging.requires_grad_(False)
    guess = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    online, target, head = run.compile(network), run.compile(lagging), run.compile(guess)
    optimizer = torch.optim.SGD([*network.parameters(), *guess.parameters()], lr=0.05, momentum=0.9)
    for _ in range(5):
        with run.step():
            x = pictures(24)[0]
            views = x + 0.1 * torch.randn_like(x), x.flip(3)
            loss = torch.zeros(())
            for one, other in (views, views[::-1]):
                with torch.no_grad():
                    aim = functional.normalize(target(other), dim=1)
                loss = loss - (functional.normalize(head(online(one)), dim=1) * aim).sum(1).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                torch._foreach_lerp_([*lagging.parameters()], [*network.parameters()], 0.1)
        yield loss.item()
