"""The cyclic replay buffer that all policies fill: maps and rewards, by network."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]


class Replay:
    """Keeps the last maps of each network; the oldest leave first.

    Parameters
    ----------
    layers
        Of each network.
    size
        Maps of all networks together.
    """

    def __init__(self, layers: list[int], size: int):
        self._room = max(1, size // len(layers))
        self._maps = [np.zeros((0, count, 2), np.int8) for count in layers]
        self._rewards = [np.zeros(0, np.float32) for _ in layers]
        self._added = [0] * len(layers)

    def count(self, network: int) -> int:
        """Maps of a network that are kept."""
        return min(self._added[network], self._room)

    def add(self, network: int, tiers: Ints, reward: float) -> None:
        """Keep a map ``[N, 2]``."""
        place = self._added[network] % self._room
        if place >= len(self._rewards[network]):
            grown = min(self._room, max(256, 2 * len(self._rewards[network])))
            self._maps[network] = _grown(self._maps[network], grown)
            self._rewards[network] = _grown(self._rewards[network], grown)
        self._maps[network][place] = tiers
        self._rewards[network][place] = reward
        self._added[network] += 1

    def sample(self, network: int, size: int, chance: np.random.Generator) -> tuple[Ints, npt.NDArray[np.float32]]:
        """Maps ``[size, N, 2]`` and rewards ``[size]``, drawn evenly."""
        drawn = chance.integers(self.count(network), size=size)
        return self._maps[network][drawn].astype(np.int64), self._rewards[network][drawn]

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values and tensors."""
        counts = [self.count(network) for network in range(len(self._added))]
        return {
            "added": list(self._added),
            "maps": [torch.from_numpy(each[:count].copy()) for each, count in zip(self._maps, counts, strict=True)],
            "rewards": [torch.from_numpy(each[:count].copy()) for each, count in zip(self._rewards, counts, strict=True)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; ValueError where it is another replay's."""
        added = [int(each) for each in state["added"]]
        maps = [each.numpy().copy() for each in state["maps"]]
        rewards = [each.numpy().copy() for each in state["rewards"]]
        for count, mine, found, values in zip(added, self._maps, maps, rewards, strict=True):
            kept = min(count, self._room)
            if found.shape != (kept, *mine.shape[1:]) or values.shape != (kept,):
                raise ValueError(f"found maps of shape {found.shape}, expected {(kept, *mine.shape[1:])}")
        self._added, self._maps, self._rewards = added, maps, rewards


def _grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    grown = np.zeros((size, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
