"""A policy collects a rollout without gradients, which is then used for several epochs of small batches.

After https://github.com/meta-pytorch/torchtune/pull/1005 (several epochs over a rollout).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import CLASSES, WIDTH, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp(4, out=CLASSES + 1)
    policy = run.compile(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4, eps=1e-5)
    for _ in range(4):
        with run.step():
            rows = []
            with torch.no_grad():
                for _ in range(8):
                    state = torch.randn(64, WIDTH)
                    found = policy(state)
                    chosen = torch.distributions.Categorical(logits=found[:, :-1]).sample()
                    rows.append((state, chosen, found[:, :-1].log_softmax(1).gather(1, chosen[:, None])[:, 0], found[:, -1]))
            states, actions, before, values = (torch.cat(column) for column in zip(*rows, strict=True))
            gains = torch.randn(512) - values
        yield gains.sum()
        for epoch in range(2):
            for part in torch.randperm(512).chunk(2):
                with run.step():
                    found = policy(states[part])
                    now = found[:, :-1].log_softmax(1).gather(1, actions[part, None])[:, 0]
                    ratio = (now - before[part]).exp()
                    gain = gains[part]
                    loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                    loss = loss + 0.5 * functional.mse_loss(found[:, -1], gain + values[part])
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(network.parameters(), 0.5)
                    optimizer.step()
                yield loss.item(), epoch
