"""nanoGPT's loop: a rate by warmup and cosine, an estimate of the loss every few steps, accumulation, scaler, clipping.

After https://github.com/karpathy/nanoGPT/blob/master/train.py (the loop itself, in our own words).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import Language, text
from benchmarks.torch_memory.loops.run import Run


def rate(number: int) -> float:
    return 1e-3 * (number + 1) / 3 if number < 3 else 1e-4 + 0.45e-3 * (1 + math.cos(math.pi * (number - 3) / 6))


def loop(run: Run) -> Iterator[Any]:
    network = Language(2, dropout=0.1)
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def losses(words: Any, targets: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.cross_entropy(model(words).flatten(0, 1), targets.flatten())

    batch = text()
    for number in range(7):
        for group in optimizer.param_groups:
            group["lr"] = rate(number)
        if number % 3 == 0:
            with run.step(), torch.no_grad():
                network.eval()
                estimate = torch.stack([losses(*text()) for _ in range(3)]).mean()
                network.train()
            yield estimate.item()
        with run.step():
            for _ in range(2):
                loss = losses(*batch) / 2
                batch = text()
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        yield loss.item()
