"""Beams with restarts: of many widths, forwards and backwards in time, at the bound and between bound and height."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from stowplan.portfolio.packing import canonical
from stowplan.portfolio.packing.beam import Beam

#: States side by side in the narrowest beam at the bound, or at the capacity; and at heights above it, which are found sooner.
#: Restarts follow Luby's sequence.
AT_BOUND, ABOVE = 1000, 300

#: Where to aim between bound and height: a beam that misses the bound mostly finds what it aims at.
_AIMS = (0.5, 0.8, 0.3)

#: How much long lives count (twice a power), and how far the worth of a state may be off, run by run.
_HALVES = (5, 6, 4, 5, 8)
_NOISES = (0.0, 0.1, 0.1, 0.05)


@dataclass
class Part(canonical.Part):
    """Beams for one independent part, with data that :attr:`~stowplan.portfolio.packing.arrays.Data.is_plain`."""

    should_stop: Callable[[], bool] = lambda: False
    """Asked after each buffer that all states of a beam have placed."""
    _beams: tuple[Beam, Beam] = field(init=False)

    def __post_init__(self) -> None:
        self._beams = Beam(self.data), Beam(self.data, mirrored=True)
        self._chance = np.random.default_rng(self.seed)
        self._turn = 0
        self._at_bound = True
        self._turns = {at_bound: itertools.count() for at_bound in (True, False)}
        self._spent = {True: 0, False: 0}

    def aim(self, capacity: int | None, floor: int) -> tuple[int, int]:
        """Height to try next, and width of the beam.

        The capacity where there is one; else the bound, and heights between it and the plan at hand, both for the same time.
        """
        self._at_bound = capacity is not None or self.best is None or self._spent[True] <= self._spent[False]
        turn = self._turn = next(self._turns[self._at_bound])
        low = max(self.bound, floor)
        if self._at_bound or self.best is None:
            return low if capacity is None else capacity, AT_BOUND * canonical.luby(turn + 1)
        return low + int(_AIMS[turn % len(_AIMS)] * (self.best - 1 - low)), ABOVE * canonical.luby(turn // len(_AIMS) + 1)

    def run(self, height: int, length: int) -> int:
        """One beam of ``length`` states for a plan within ``height``; returns its states, all told, but its width at least.

        A beam that dies at once has cost the arrays of its width.
        """
        turn = self._turn
        self.runs += 1
        beam = self._beams[turn % 2]
        halves, noise = _HALVES[turn % len(_HALVES)], _NOISES[turn // 2 % len(_NOISES)]
        offsets, states = beam.pack(height, length, halves, self._chance, noise, self.should_stop)
        cost = max(states, min(length, beam.widest))
        self._spent[self._at_bound] += cost
        if offsets is not None:
            self.adopt(offsets)
        return cost
