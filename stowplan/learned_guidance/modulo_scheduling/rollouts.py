"""Who places instructions: the loop of all players, and a control that knows nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from stowplan.learned_guidance.modulo_scheduling.state import Mapping

#: Says of mappings that go on (in which something is left to place, and can be placed) the tile and slot of what is next.
Choice: TypeAlias = Callable[[Sequence[Mapping]], Sequence[tuple[int, int]]]


class Player(ABC):
    """Places what is left of many mappings, side by side: the likeliest place or one drawn at each step, none taken back.

    Of mappings of one problem at one interval, one that is stuck can go on as a copy of one that is not (a particle filter's
    resampling): all placements then lead somewhere.
    """

    @abstractmethod
    def choice(self, mappings: Sequence[Mapping], rng: np.random.Generator, temperature: float) -> Choice:
        """How places are chosen while these mappings are placed; what it is asked about are some of them, or copies."""

    def place(
        self,
        mappings: Sequence[Mapping],
        rng: np.random.Generator,
        *,
        temperature: float = 1.0,
        resample: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Mapping]:
        """Place until each mapping is complete or stuck.

        Parameters
        ----------
        mappings
            Of one problem at one interval, with as much to place, where ``resample``; any others may be mixed. They are placed
            in place.
        temperature
            Of the draws; 0 takes the likeliest.
        resample
            Whether a mapping that is stuck becomes a copy of one of the others that is not.
        stop
            Asked at each step; what is placed by then is returned as it is.

        Returns
        -------
        list
            As many mappings, in their order, copies in place of those that were replaced.
        """
        rollouts = list(mappings)
        choose = self.choice(rollouts, rng, temperature) if rollouts else None
        while choose is not None and not stop():
            going = [at for at, mapping in enumerate(rollouts) if mapping.current >= 0 and not mapping.stuck]
            if not going:
                break
            if resample:
                for at, mapping in enumerate(rollouts):
                    if mapping.stuck:
                        rollouts[at] = rollouts[going[int(rng.integers(len(going)))]].copy()
                going = [at for at, mapping in enumerate(rollouts) if mapping.current >= 0]
            for at, place in zip(going, choose([rollouts[at] for at in going]), strict=True):
                rollouts[at].place(*place)
        return rollouts


class Uniform(Player):
    """Any legal place is as likely as any other: the control beside every policy."""

    def choice(self, mappings: Sequence[Mapping], rng: np.random.Generator, temperature: float) -> Choice:
        """Draws of legal places; the temperature has no effect."""

        def drawn(going: Sequence[Mapping]) -> list[tuple[int, int]]:
            legal = [np.flatnonzero(mapping.mask()) for mapping in going]
            return [divmod(int(at[int(rng.integers(len(at)))]), mapping.ii) for at, mapping in zip(legal, going, strict=True)]

        return drawn
