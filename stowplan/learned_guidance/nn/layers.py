"""Layers that are not about any one problem."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def to_unit_range(hidden: Tensor) -> Tensor:
    """Each row scaled to [0, 1]."""
    low, high = hidden.amin(1, keepdim=True), hidden.amax(1, keepdim=True)
    return (hidden - low) / (high - low + 1e-5)


class Dense(nn.Linear):
    """A linear layer, a layer norm and a ReLU, as one module: calling three takes longer than what a small one does."""

    def __init__(self, inputs: int, width: int):
        super().__init__(inputs, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, also: Tensor | None = None) -> Tensor:
        """(..., inputs) to (..., width); ``also`` (..., width) comes in before the norm."""
        x = functional.linear(x, self.weight, self.bias)
        if also is not None:
            x = x + also
        return torch.relu(torch.layer_norm(x, (self.out_features,), self.scale, self.shift))


def mlp(inputs: int, widths: Sequence[int]) -> tuple[nn.Sequential, int]:
    """Dense layers of these widths, and how many numbers come out."""
    layers = nn.Sequential()
    for width in widths:
        layers.append(Dense(inputs, width))
        inputs = width
    return layers, inputs


class Head(nn.Module):
    """An MLP with a last layer near zero, so that an untrained network prefers nothing."""

    def __init__(self, inputs: int, widths: Sequence[int], outputs: int):
        super().__init__()
        self.layers, width = mlp(inputs, widths)
        self.last = nn.Linear(width, outputs)
        nn.init.normal_(self.last.weight, std=1e-3)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) to (B, outputs)."""
        for layer in self.layers:
            x = layer(x)
        return functional.linear(x, self.last.weight, self.last.bias)


class DynamicsBlock(nn.Module):
    """Residual block of two layers; the action comes in before the first one's norm, as a one-hot input would."""

    def __init__(self, hidden: int, width: int):
        super().__init__()
        self.first = Dense(hidden, width)
        self.second = nn.Linear(width, hidden)

    def forward(self, hidden: Tensor, action: Tensor) -> Tensor:
        """Hidden states (B, H) and embedded actions (B, width)."""
        return hidden + functional.linear(self.first(hidden, action), self.second.weight, self.second.bias)


class LineEncoder(nn.Module):
    """A line of points with channels: patches of neighbouring points, one layer for all patches alike, then one over all."""

    def __init__(self, length: int, channels: int, patch: int, patch_channels: int, outputs: int):
        super().__init__()
        self.patches = length // patch
        self.patch = nn.Linear(patch * channels, patch_channels)
        self.layer = Dense(self.patches * patch_channels, outputs)

    def forward(self, line: Tensor) -> Tensor:
        """(B, length, channels) to (B, outputs)."""
        patches = line.reshape(line.shape[0], self.patches, -1)
        layer: Tensor = self.layer(torch.relu(self.patch(patches)).flatten(1))
        return layer


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions, normalised over channels and cells of each image (a layer norm), around a shortcut."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.first_norm = nn.GroupNorm(1, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.second_norm = nn.GroupNorm(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape: (B, channels, rows, columns)."""
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(inner)))
