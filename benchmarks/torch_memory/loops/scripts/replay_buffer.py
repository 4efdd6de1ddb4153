"""A value network learns from a buffer that grows in each step; targets are those of a copy that lags.

After https://github.com/BY571/IQN-and-Extensions/issues/3 (a buffer that grows until the process is killed).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import WIDTH, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network, lagging = mlp(), mlp().requires_grad_(False)
    model, target = run.compile(network), run.compile(lagging)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    buffer: list[Any] = []
    for number in range(10):
        with run.step():
            with torch.no_grad():
                state = torch.randn(16, WIDTH)
                action = model(state).argmax(1)
                buffer += zip(state, action, torch.randn(16), torch.randn(16, WIDTH), strict=True)
            chosen = [buffer[at] for at in torch.randint(0, len(buffer), (256,)).tolist()]
            states, actions, rewards, after = (torch.stack(column) for column in zip(*chosen, strict=True))
            with torch.no_grad():
                wanted = rewards + 0.9 * target(after).amax(1)
            loss = functional.smooth_l1_loss(model(states).gather(1, actions[:, None]).squeeze(1), wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % 4 == 3:
                lagging.load_state_dict(network.state_dict())
        yield loss.item()
