"""Not the model but the function that computes the loss is compiled, and gets the batch as a dictionary.

After https://github.com/allenai/OLMo-core/pull/77 (the loss function is compiled).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp(4)
    run.models.append(network)

    def criterion(batch: Any, weight: float) -> Any:
        logits = network(batch["x"])
        extra = sum(each.square().sum() for each in network.parameters())
        return functional.cross_entropy(logits, batch["y"], label_smoothing=0.1) + weight * extra, logits.argmax(1)

    compiled = run.compile(criterion)
    optimizer = torch.optim.NAdam(network.parameters(), lr=1e-3)
    for number in range(6):
        with run.step():
            loss, chosen = compiled(dict(zip("xy", labelled(), strict=True)), 1e-4 if number < 3 else 1e-5)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item(), chosen
