"""Roll-outs of a player over initiation intervals, counted as the other heuristics count."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from stowplan.learned_guidance.modulo_scheduling.rollouts import Player
from stowplan.learned_guidance.modulo_scheduling.state import Body, Mapping
from stowplan.portfolio.modulo_scheduling.search import Tally

#: Roll-outs of a batch: of the first, so that there is a plan soon, and at most.
FIRST_BATCH, BATCH = 8, 64

#: Batches without a complete mapping before an interval is left for the next, as long as there is no plan.
PATIENCE = 2

#: Temperatures of the draws, in turn.
TEMPERATURES = (1.0, 0.5, 1.0, 1.5)


class RollOuts:
    """Roll-outs over initiation intervals (IIs), from the least upwards until one has a mapping, then downwards again.

    Each roll-out is one evaluation, complete or not; each complete one that is offered to the tally costs another for its list
    scheduling, as in random play.

    Parameters
    ----------
    look_ahead, resample
        Whether masks look ahead, and whether roll-outs that are stuck go on as copies of others.
    """

    def __init__(self, tally: Tally, player: Player, seed: int, *, look_ahead: bool = True, resample: bool = True):
        self.tally, self.player = tally, player
        self._chance = np.random.default_rng(seed)
        self._look_ahead, self._resample = look_ahead, resample
        problem = tally.body.problem
        rules = msgspec.structs.replace(problem.rules, pass_through=False)
        # Single links only: where that makes a plan worse, candidates do not come this far.
        self.problem = msgspec.structs.replace(problem, rules=rules)
        """As the player sees it."""
        self._body = Body(self.problem)
        self._batch = FIRST_BATCH
        self._ii, self._failed, self._number = 0, 0, 0

    def step(self, least: int, stop: Callable[[], bool], evaluations: int | None = None) -> int:
        """One batch at one II, ``least`` or more, of so many roll-outs at most; how many of them were complete."""
        ii = self._interval(least)
        size = self._batch if evaluations is None else max(1, min(self._batch, evaluations))
        first = Mapping(self._body, ii, look_ahead=self._look_ahead)
        temperature = TEMPERATURES[self._number % len(TEMPERATURES)]
        self._number += 1
        found = self.player.place(
            [first, *(first.copy() for _ in range(size - 1))],
            self._chance,
            temperature=temperature,
            resample=self._resample,
            stop=stop,
        )
        self.tally.placements += size * self.tally.body.count
        seen: set[tuple[int, ...]] = set()
        for mapping in found:
            places = (*mapping.tile.tolist(), *mapping.slot.tolist())
            if mapping.current < 0 and places not in seen:
                seen.add(places)
                self.tally.offer(ii, mapping.tile.tolist(), mapping.time.tolist())
        self._failed = 0 if seen else self._failed + 1
        if self.tally.best is not None:
            self._batch = min(BATCH, 2 * self._batch)
        return len(seen)

    def _interval(self, least: int) -> int:
        best, depth = self.tally.best, self.tally.body.problem.machine.spoke_depth
        if best is not None:
            if best.ii <= least:
                return best.ii
            # Just below the best mostly, for that is the easiest; now and then the best again, for a shorter iteration.
            draw = self._chance.random()
            if draw < 0.5:
                return best.ii - 1
            return int(self._chance.integers(least, best.ii)) if draw < 0.8 else best.ii
        if self._ii < least:
            self._ii, self._failed = least, 0
        elif self._failed >= PATIENCE:
            # Further up in larger steps: smaller intervals are tried again once there is a plan.
            self._ii, self._failed = self._ii + max(1, self._ii // 8), 0
        if self._ii > depth:
            self._ii = min(least, depth)
        return self._ii
