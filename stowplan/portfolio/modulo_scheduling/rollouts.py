"""Roll-outs of a player over initiation intervals, counted as the other heuristics count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from stowplan.errors import InputError
from stowplan.learned_guidance.modulo_scheduling.body import Body
from stowplan.learned_guidance.modulo_scheduling.state import Mapping, Player
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.modulo_scheduling.search import Tally


class RollOutsParameters(Parameters, frozen=True):
    """Parameters of roll-outs of a policy."""

    first_batch: int = 8
    """Roll-outs of the first batch, so that there is a plan soon."""
    batch: int = 64
    """Roll-outs of a batch at most."""
    patience: int = 16
    """Roll-outs without a complete mapping before an interval is left for the next, as long as there is no plan."""
    temperatures: tuple[float, ...] = (1.0, 0.5, 1.0, 1.5)
    """Temperatures of the draws, in turn."""
    repairs: float = 0.5
    """Part of the batches that begin with what was placed before."""
    tries: int = 4
    """Tries to find what to take out of it."""


PARAMS = parameters(RollOutsParameters, __name__)


#: (tile, slot) of instructions by number.
Places: TypeAlias = dict[int, tuple[int, int]]


def _places(tiles: Sequence[int], slots: Sequence[int]) -> Places:
    return {number: place for number, place in enumerate(zip(tiles, slots, strict=True)) if place[0] >= 0}


class RollOuts:
    """Roll-outs over initiation intervals (IIs), from the least upwards until one has a mapping, then downwards again.

    Each roll-out is one evaluation, complete or not; each complete one that is offered to the tally costs another for its list
    scheduling, as in random play.

    Parameters
    ----------
    look_ahead, resample
        Whether masks look ahead, and whether roll-outs that are stuck go on as copies of others.
    repair
        Whether half of the batches begin with what was placed before: the mapping that came furthest before it was stuck, or
        the best plan, less some related instructions, which the player places anew. Only those are counted.
    """

    def __init__(
        self,
        tally: Tally,
        player: Player,
        seed: int,
        *,
        look_ahead: bool = True,
        resample: bool = True,
        repair: bool = False,
    ):
        self.tally, self.player = tally, player
        self._chance = np.random.default_rng(seed)
        self._look_ahead, self._resample, self._repair = look_ahead, resample, repair
        self._furthest: dict[int, Places] = {}
        """Of each interval, what is placed of the mapping that came furthest."""
        problem = tally.body.problem
        rules = msgspec.structs.replace(problem.rules, pass_through=False)
        # Single links only: where that makes a plan worse, candidates do not come this far.
        self.problem = msgspec.structs.replace(problem, rules=rules)
        """As the player sees it."""
        self._body = Body(self.problem)
        self._batch = PARAMS.first_batch
        self._ii, self._failed, self._number = 0, 0, 0

    def step(self, least: int, stop: Callable[[], bool], evaluations: int | None = None) -> int:
        """One batch at one II, ``least`` or more, of so many roll-outs at most; how many of them were complete."""
        ii = self._interval(least)
        size = self._batch if evaluations is None else max(1, min(self._batch, evaluations))
        first = self._begin(ii)
        left = self.tally.body.count - first.placed
        temperature = PARAMS.temperatures[self._number % len(PARAMS.temperatures)]
        self._number += 1
        mappings = self.player.place(
            [first, *(first.copy() for _ in range(size - 1))],
            self._chance,
            temperature=temperature,
            resample=self._resample,
            stop=stop,
        )
        self.tally.placements += size * left
        seen: set[tuple[int, ...]] = set()
        for mapping in mappings:
            places = (*mapping.tile.tolist(), *mapping.slot.tolist())
            if mapping.current < 0 and places not in seen:
                seen.add(places)
                self.tally.offer(ii, mapping.tile.tolist(), mapping.time.tolist())
        if self._repair and not seen:
            self._remember(ii, max(mappings, key=lambda mapping: mapping.placed))
        self._failed = 0 if seen else self._failed + size * left
        if self.tally.best is not None:
            self._batch = min(PARAMS.batch, 2 * self._batch)
        return len(seen)

    def _remember(self, ii: int, mapping: Mapping) -> None:
        known = self._furthest.get(ii)
        # Sideways steps count: so the search does not stay with one mapping for ever.
        if known is None or mapping.placed >= len(known):
            self._furthest[ii] = _places(mapping.tile.tolist(), mapping.slot.tolist())

    def _begin(self, ii: int) -> Mapping:
        """Nothing placed; or most of what was placed before."""
        best = self.tally.best
        known = self._furthest.get(ii)
        if best is not None and ii == best.ii:
            known = _places(best.tiles, best.slots)
        if self._repair and known and self._chance.random() < PARAMS.repairs:
            for _ in range(PARAMS.tries):
                gone = self._ball(known)
                rest = {number: place for number, place in known.items() if number not in gone}
                fixed = {self.problem.instructions[number].id: place for number, place in rest.items()}
                try:
                    return Mapping(self._body, ii, fixed=fixed, look_ahead=self._look_ahead)
                except InputError:  # what is left leads nowhere, as far as masks look ahead
                    continue
        return Mapping(self._body, ii, look_ahead=self._look_ahead)

    def _ball(self, known: Places) -> set[int]:
        """Related instructions: in the graph, around one that is not placed where there is one; and around it on the tiles."""
        body = self.tally.body
        count, draw = body.count, self._chance
        missing = [number for number in range(count) if number not in known]
        first = int(draw.choice(missing)) if missing else int(draw.integers(count))
        wanted = int(draw.integers(2, max(3, count // 2) + 1))
        ball, frontier = {first}, [first]
        while frontier and len(ball) < wanted:
            at = frontier.pop(int(draw.integers(len(frontier))))
            for value in body.values[at]:
                if value.other not in ball:
                    ball.add(value.other)
                    frontier.append(value.other)
        tiles = {known[number][0] for number in ball if number in known}
        part = draw.random() ** 2
        return ball | {number for number, (tile, _) in known.items() if tile in tiles and draw.random() < part}

    def _interval(self, least: int) -> int:
        best, body = self.tally.best, self.tally.body
        depth = body.problem.machine.spoke_depth
        if best is not None:
            left = body.between(least, best.ii)
            if not left:
                return best.ii
            # Just below the best mostly, for that is the easiest; now and then the best again, for a shorter iteration.
            draw = self._chance.random()
            if draw < 0.5:
                return left[-1]
            return left[int(self._chance.integers(len(left)))] if draw < 0.8 else best.ii
        if self._ii < least:
            self._ii, self._failed = least, 0
        elif self._failed >= PARAMS.patience * body.count:
            # Further up in larger steps: smaller intervals are tried again once there is a plan.
            self._ii, self._failed = self._ii + max(1, self._ii // 8), 0
        left = body.between(self._ii, depth + 1) or body.between(least, depth + 1)
        self._ii = left[0] if left else min(least, depth)
        return self._ii
