"""What memory, time of the channels and fast uses are worth: prices, from which certificates of bounds are made.

By Lagrangian duality any prices prove a bound; how good it is, is how good they are.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class CutPrice(msgspec.Struct, array_like=True, frozen=True):
    """A price in ps of a unit of memory at a step, as cuts round it (lemma B4 of docs/reference/memory-mapping-models.md)."""

    step: int
    rounds: tuple[tuple[int, tuple[int, ...]], ...]
    """One after the other: divisor, and tensors whose x was replaced by 1 - x before."""
    price: float


@dataclass
class Prices:
    """Prices in ps, of a program or of a segment of one, whose steps and uses then count from its own first."""

    memory: Floats
    """[T] of one unit of memory (of the alignment's bytes) during each step."""
    channel: Floats
    """[T] of one ps of a channel during each step."""
    access: Floats
    """[uses] what each use earns by being fast."""
    preload: float = 0.0
    cuts: list[CutPrice] = field(default_factory=list)

    @staticmethod
    def none(steps: int, uses: int) -> Prices:
        """Everything is free."""
        return Prices(np.zeros(steps), np.zeros(steps), np.zeros(uses))

    def add(self, other: Prices, step: int = 0, use: int = 0, factor: float = 1.0) -> None:
        """Add a multiple of other prices, which begin at a step and a use of these."""
        steps = slice(step, step + len(other.memory))
        self.memory[steps] += factor * other.memory
        self.channel[steps] += factor * other.channel
        self.access[use : use + len(other.access)] += factor * other.access
        self.preload += factor * other.preload if step == 0 else 0.0
        self.cuts += [CutPrice(cut.step + step, cut.rounds, factor * cut.price) for cut in other.cuts]

    def copied(self) -> Prices:
        """Arrays of its own."""
        arrays = {name: getattr(self, name).copy() for name in ("memory", "channel", "access")}
        return replace(self, cuts=[*self.cuts], **arrays)

    def encode(self) -> bytes:
        """For :meth:`decode`."""
        return msgspec.msgpack.encode([field.tolist() if isinstance(field, np.ndarray) else field for field in astuple(self)])

    @staticmethod
    def decode(data: bytes) -> Prices:
        """Prices again."""
        shape = tuple[list[float], list[float], list[float], float, list[CutPrice]]
        memory, channel, access, preload, cuts = msgspec.msgpack.decode(data, type=shape)
        return Prices(np.array(memory), np.array(channel), np.array(access), preload, cuts)
