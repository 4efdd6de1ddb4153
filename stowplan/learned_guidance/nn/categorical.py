"""Values and rewards as categorical distributions over a fixed support (Schrittwieser et al. 2020, appendix F).

A number between two atoms is the *two-hot* distribution whose mean it is; a distribution stands for its mean.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from stowplan.errors import InputError


class Support:
    """Atoms of a distribution over ``[-limit, limit]``, denser around 0: the signed squares of a uniform grid.

    Most rewards of a long game are far smaller than its return, so that a uniform grid would tell few of them apart.

    Parameters
    ----------
    bins
        Number of atoms; odd and at least 3, so that 0 is one of them.
    limit
        Largest number that can be told; others are clipped.
    """

    def __init__(self, bins: int, limit: float):
        if bins < 3 or bins % 2 == 0:
            raise InputError(f"found {bins} bins, expected an odd number of at least 3", place="bins")
        if not 0 < limit < float("inf"):
            raise InputError(f"found a limit of {limit}, expected a positive number", place="limit")
        self.bins = bins
        self.limit = limit
        self._atoms_on: dict[torch.device, Tensor] = {}

    @cached_property
    def atoms(self) -> Tensor:
        """The atoms, ascending: float32 (bins,)."""
        grid = torch.linspace(-1.0, 1.0, self.bins, dtype=torch.float64)
        # Mirrored exactly, so that even odds mean exactly 0.
        half = grid[self.bins // 2 + 1 :].square() * self.limit
        return torch.cat([-half.flip(0), torch.zeros(1, dtype=torch.float64), half]).to(torch.float32)

    def atoms_on(self, device: torch.device) -> Tensor:
        """The atoms on a device, moved there once."""
        found = self._atoms_on.get(device)
        if found is None:
            found = self._atoms_on[device] = self.atoms.to(device)
        return found

    def two_hot(self, x: Tensor) -> Tensor:
        """Distributions (..., bins) with means ``x`` (...), each over two neighbouring atoms at most."""
        atoms = self.atoms_on(x.device)
        # Atoms are float32: 0.1 * limit of a caller's float64 must not fall beyond the last.
        x = x.to(torch.float32).clamp(-self.limit, self.limit).clamp(atoms[0], atoms[-1])
        upper = torch.searchsorted(atoms, x.contiguous(), right=True).clamp(1, self.bins - 1)
        low, high = atoms[upper - 1], atoms[upper]
        share = ((x - low) / (high - low)).unsqueeze(-1)
        result = torch.zeros(*x.shape, self.bins, device=x.device)
        result.scatter_(-1, (upper - 1).unsqueeze(-1), 1.0 - share)
        result.scatter_(-1, upper.unsqueeze(-1), share)
        return result

    def mean(self, logits: Tensor) -> Tensor:
        """Means (...) of the distributions with these logits (..., bins)."""
        return torch.softmax(logits, dim=-1) @ self.atoms_on(logits.device)
