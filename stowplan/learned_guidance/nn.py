"""Layers for networks of several agents; and values and rewards as categorical distributions over a fixed support.

The *support* of a distribution is a list of numbers, its *atoms*. A number is represented by its *two-hot* distribution, which
gives a probability only to the two nearest atoms, such that its mean is the number. A distribution represents its mean
(Schrittwieser et al. 2020, appendix F). Of the classes and functions here, only :class:`Support` raises an error of its own.

In shapes, B is the number of samples of a batch, and H is the width of hidden states. ``...`` stands for any further
dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from stowplan.errors import InputError


class Support(nn.Module):
    """Atoms of a distribution over ``[-limit, limit]``: the signed squares of a uniform grid, which are denser around 0.

    Most rewards of a long game are far smaller than its return, so a uniform grid would not separate them.

    Parameters
    ----------
    bins
        Number of atoms; odd and at least 3, so that 0 is one of them.
    limit
        Largest absolute value that can be represented; larger numbers are clipped.

    Raises
    ------
    InputError
        If ``bins`` is even or less than 3, or ``limit`` is not positive and finite.
    """

    atoms: Tensor
    """The atoms in ascending order: float32 (bins,). They are not stored with the weights."""

    def __init__(self, bins: int, limit: float):
        super().__init__()
        if bins < 3 or bins % 2 == 0:
            raise InputError(f"found {bins} bins, expected an odd number of at least 3", place="bins")
        if not 0 < limit < float("inf"):
            raise InputError(f"found a limit of {limit}, expected a positive number", place="limit")
        self.bins, self.limit = bins, limit
        grid = torch.linspace(-1.0, 1.0, bins, dtype=torch.float64)
        # The negative half mirrors the positive half exactly, so that the mean of a uniform distribution is exactly 0.
        half = grid[bins // 2 + 1 :].square() * limit
        atoms = torch.cat([-half.flip(0), torch.zeros(1, dtype=torch.float64), half]).to(torch.float32)
        self.register_buffer("atoms", atoms, persistent=False)

    def two_hot(self, x: Tensor) -> Tensor:
        """Return distributions (..., bins) with means ``x`` (...), each over at most two neighbouring atoms."""
        atoms = self.atoms
        # Atoms are float32: a float64 number of the caller must not be beyond the last atom after rounding.
        x = x.to(torch.float32).clamp(-self.limit, self.limit).clamp(atoms[0], atoms[-1])
        upper = torch.searchsorted(atoms, x.contiguous(), right=True).clamp(1, self.bins - 1)
        low, high = atoms[upper - 1], atoms[upper]
        share = ((x - low) / (high - low)).unsqueeze(-1)
        result = torch.zeros(*x.shape, self.bins, device=x.device)
        result.scatter_(-1, (upper - 1).unsqueeze(-1), 1.0 - share)
        result.scatter_(-1, upper.unsqueeze(-1), share)
        return result

    def mean(self, logits: Tensor) -> Tensor:
        """Return the means (...) of the distributions with these logits (..., bins)."""
        return torch.softmax(logits, dim=-1) @ self.atoms


def to_unit_range(hidden: Tensor) -> Tensor:
    """Scale each row (B, H) of hidden states to [0, 1]; a constant row becomes 0."""
    low, high = hidden.amin(1, keepdim=True), hidden.amax(1, keepdim=True)
    return (hidden - low) / (high - low + 1e-5)


class Dense(nn.Linear):
    """A linear layer, a layer norm and a ReLU in one module. For small layers, calling three modules would take longer than the
    computation."""

    def __init__(self, inputs: int, width: int):
        super().__init__(inputs, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, also: Tensor | None = None) -> Tensor:
        """Map (..., inputs) to (..., width). ``also`` (..., width) is added before the norm."""
        x = functional.linear(x, self.weight, self.bias)
        if also is not None:
            x = x + also
        return torch.relu(torch.layer_norm(x, (self.out_features,), self.scale, self.shift))


def mlp(inputs: int, widths: Sequence[int]) -> tuple[nn.Sequential, int]:
    """Return dense layers of these widths, and the width of their output."""
    layers = nn.Sequential()
    for width in widths:
        layers.append(Dense(inputs, width))
        inputs = width
    return layers, inputs


class Head(nn.Module):
    """An MLP with hidden layers of ``widths`` whose last layer begins near zero, so that an untrained network has no
    preferences."""

    def __init__(self, inputs: int, widths: Sequence[int], outputs: int):
        super().__init__()
        self.layers, width = mlp(inputs, widths)
        self.last = nn.Linear(width, outputs)
        nn.init.normal_(self.last.weight, std=1e-3)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs) to (B, outputs)."""
        for layer in self.layers:
            x = layer(x)
        return functional.linear(x, self.last.weight, self.last.bias)


class DynamicsBlock(nn.Module):
    """Residual block of two layers. The action is added before the first norm, which is equivalent to a one-hot input."""

    def __init__(self, hidden: int, width: int):
        super().__init__()
        self.first = Dense(hidden, width)
        self.second = nn.Linear(width, hidden)

    def forward(self, hidden: Tensor, action: Tensor) -> Tensor:
        """Return the next hidden states from hidden states (B, H) and embedded actions (B, width)."""
        return hidden + functional.linear(self.first(hidden, action), self.second.weight, self.second.bias)


class LineEncoder(nn.Module):
    """Encodes a sequence of points with channels. One layer is shared by all patches of neighbouring points, and another one
    follows over all patches.

    Parameters
    ----------
    length, channels
        Number of points, and of channels of each point.
    patch
        Number of points of a patch; it must divide ``length``.
    patch_channels, outputs
        Widths of the two layers.
    """

    def __init__(self, length: int, channels: int, patch: int, patch_channels: int, outputs: int):
        super().__init__()
        self.patches = length // patch
        self.patch = nn.Linear(patch * channels, patch_channels)
        self.layer = Dense(self.patches * patch_channels, outputs)

    def forward(self, line: Tensor) -> Tensor:
        """Map (B, length, channels) to (B, outputs)."""
        patches = line.reshape(line.shape[0], self.patches, -1)
        layer: Tensor = self.layer(torch.relu(self.patch(patches)).flatten(1))
        return layer


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a layer norm over the channels and cells of each image, and a shortcut."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.first_norm = nn.GroupNorm(1, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.second_norm = nn.GroupNorm(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, channels, rows, columns) to the same shape."""
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(inner)))
