"""Noise is added to pictures at random times, and a network learns to predict it; an average of the weights is kept.

After https://github.com/huggingface/diffusers/issues/6503 (training scripts with torch.compile).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_memory.loops.parts import pictures
from benchmarks.torch_memory.loops.run import Run


class Denoiser(nn.Module):
    """A network that is given the time, too."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.into = nn.Sequential(nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 8)), nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norms, self.out = nn.ModuleList(nn.GroupNorm(2, 8) for _ in range(3)), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Any, time: Any) -> Any:
        angles = time[:, None] * torch.exp(-torch.arange(8) / 2)
        wave, x = self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None], self.into(x)
        for stage, norm in zip(self.stages, self.norms, strict=True):
            x = x + stage(functional.silu(norm(x) + wave))
        return self.out(x)


def loop(run: Run) -> Iterator[Any]:
    network = Denoiser()
    average = torch.optim.swa_utils.AveragedModel(network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    model = run.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    kept = torch.linspace(0.999, 0.9, 50).cumprod(0)
    for _ in range(5):
        with run.step():
            x, time = pictures(24)[0], torch.randint(0, 50, (24,))
            noise, share = torch.randn_like(x), kept[time][:, None, None, None]
            loss = functional.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, time), noise)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(network)
        yield loss.item()
