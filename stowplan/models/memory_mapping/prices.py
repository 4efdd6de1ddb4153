"""Lagrange multipliers of the memory-mapping relaxation, called *prices*, from which certificates of bounds are made.

There are prices for memory during each step, for time on the copy channels, and for fast uses. A *use* is a read or a write of
one tensor by one step; it is fast if it is served from fast memory. By Lagrangian duality, any nonnegative prices prove a lower
bound on the objective (lemma B8 of docs/reference/memory-mapping-models.md). The better the prices, the better the bound.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class CutPrice(msgspec.Struct, array_like=True, frozen=True):
    """The price of a rounding cut of the memory constraint at a step (lemma B4 of docs/reference/memory-mapping-models.md)."""

    step: int
    """Step whose memory the cut is about."""
    rounds: tuple[tuple[int, tuple[int, ...]], ...]
    """The roundings that give the cut, one after the other. Each has a divisor, and the tensors whose 0/1 variable x was
    replaced by 1 - x before rounding."""
    price: float
    """Price in ps of one unit of the cut's right-hand side."""


@dataclass
class Prices:
    """Prices in ps for a program, or for a segment of a program: some consecutive steps.

    Steps and uses are counted from the first step and the first use of the program or the segment. T is the number of steps.
    """

    memory: Floats
    """[T] price of one unit of memory (as many bytes as the alignment) during each step."""
    channel: Floats
    """[T] price of one ps of time on a copy channel during each step."""
    access: Floats
    """[uses] amount in ps that each use earns if it is fast."""
    preload: float = 0.0
    """Price of one preload, that is, of a tensor that is in fast memory before the program starts."""
    cuts: list[CutPrice] = field(default_factory=list)
    """Prices of rounding cuts."""

    @staticmethod
    def none(steps: int, uses: int) -> Prices:
        """Prices that are all zero."""
        return Prices(np.zeros(steps), np.zeros(steps), np.zeros(uses))

    def add(self, other: Prices, step: int = 0, use: int = 0, factor: float = 1.0) -> None:
        """Add ``factor`` times the prices of a segment that begins at this step and this use.

        The price of preloads is added only for a segment at step 0, since only such a segment has preloads of the program.
        """
        steps = slice(step, step + len(other.memory))
        self.memory[steps] += factor * other.memory
        self.channel[steps] += factor * other.channel
        self.access[use : use + len(other.access)] += factor * other.access
        self.preload += factor * other.preload if step == 0 else 0.0
        self.cuts += [CutPrice(cut.step + step, cut.rounds, factor * cut.price) for cut in other.cuts]

    def copied(self) -> Prices:
        """A copy with arrays of its own."""
        arrays = {name: getattr(self, name).copy() for name in ("memory", "channel", "access")}
        return replace(self, cuts=[*self.cuts], **arrays)

    def encode(self) -> bytes:
        """The prices as bytes, for :meth:`decode`."""
        return msgspec.msgpack.encode([field.tolist() if isinstance(field, np.ndarray) else field for field in astuple(self)])

    @staticmethod
    def decode(data: bytes) -> Prices:
        """The prices that :meth:`encode` wrote. Raises :class:`msgspec.DecodeError` for other bytes."""
        shape = tuple[list[float], list[float], list[float], float, list[CutPrice]]
        memory, channel, access, preload, cuts = msgspec.msgpack.decode(data, type=shape)
        return Prices(np.array(memory), np.array(channel), np.array(access), preload, cuts)
