"""Large contrastive batches: representations first without a graph, then gradients of them, then chunk by chunk backward.

After https://github.com/luyug/GradCache/issues/7 (gradients of a large batch, chunk by chunk).
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
    network = Language(2, dropout=0.1)
    encoder = run.compile(network.hidden)
    run.models.append(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(5):
        with run.step():
            chunks, states = text(64, 16)[0].chunk(4), []
            with torch.no_grad():
                made = []
                for chunk in chunks:
                    states.append(torch.get_rng_state())
                    made.append(encoder(chunk).mean(1))
            whole = functional.normalize(torch.cat(made), dim=1).requires_grad_()
            likeness = (whole @ whole.t() / 0.1).masked_fill(torch.eye(64, dtype=torch.bool), -1e9)
            loss = functional.cross_entropy(likeness, torch.arange(64) ^ 1)
            (wanted,) = torch.autograd.grad(loss, whole)
            for chunk, state, gradient in zip(chunks, states, wanted.chunk(4), strict=True):
                after = torch.get_rng_state()
                torch.set_rng_state(state)
                functional.normalize(encoder(chunk).mean(1), dim=1).backward(gradient)
                torch.set_rng_state(after)
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
