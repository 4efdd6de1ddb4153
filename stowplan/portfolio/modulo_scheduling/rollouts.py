"""Lets a player place the instructions of a loop body many times, at smaller and smaller initiation intervals (IIs).

A *player*, such as a learned policy or uniform random play, places one instruction after the other on a tile (a processing
element) and in a *slot*, a clock modulo the II. One such attempt is a *roll-out*. It ends with a complete *mapping*, in which
every instruction has a place, or *stuck* if an instruction is left without one. A *batch* is a number of roll-outs that run
together. Plans and work are collected in a :class:`~.search.Tally`. The work is counted in *evaluations*, the unit that all
heuristics for modulo scheduling share: the work of placing every instruction once.
"""

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
    """Number of roll-outs of the first batch. It is small, so that there is a plan soon."""
    batch: int = 64
    """Largest number of roll-outs of a batch."""
    patience: int = 16
    """Number of roll-outs without a complete mapping after which a larger II is tried, as long as there is no plan."""
    temperatures: tuple[float, ...] = (1.0, 0.5, 1.0, 1.5)
    """Temperatures of the distribution from which places are drawn. Batches use them in turn; higher ones are more random."""
    repairs: float = 0.5
    """Fraction of the batches that start from an earlier mapping, if the option ``repair`` of :class:`RollOuts` is set."""
    tries: int = 4
    """Largest number of attempts to draw the instructions that are removed from an earlier mapping."""


PARAMS = parameters(RollOutsParameters, __name__)


#: The place (tile, slot) of each instruction that has one, by the number of the instruction.
Places: TypeAlias = dict[int, tuple[int, int]]


def _places(tiles: Sequence[int], slots: Sequence[int]) -> Places:
    """The places of the instructions that are placed. Instructions with a negative tile are not."""
    return {number: place for number, place in enumerate(zip(tiles, slots, strict=True)) if place[0] >= 0}


class RollOuts:
    """A search by roll-outs: the II rises from the smallest one until there is a plan, and then falls again.

    Each roll-out counts as one evaluation, whether or not it is complete. A complete roll-out may count as one more, because a
    list scheduler computes new times of its instructions. The best plan is in ``tally.best``.

    Parameters
    ----------
    tally
        Collects the plans and counts the evaluations.
    player
        Chooses the place of each instruction.
    seed
        Seed of the random numbers.
    look_ahead
        Whether places are excluded that leave another instruction without a tile.
    resample
        Whether a roll-out that is stuck is replaced by a copy of one that is not.
    repair
        Whether about half of the batches start from an earlier mapping of this II: from the best plan or, if it has another II,
        from the mapping with the most placed instructions. Some related instructions are removed from it, and the player places
        them again. Then only placements of these instructions are counted as work.

    Raises
    ------
    InputError
        The machine has registers, which players do not support.
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
        """For each II, the places of the mapping in which the most instructions were placed."""
        problem = tally.body.problem
        rules = msgspec.structs.replace(problem.rules, pass_through=False)
        # Players use direct links only. On machines on which values could be faster over several links, the candidate ``ppo``
        # does not run.
        self.problem = msgspec.structs.replace(problem, rules=rules)
        """The problem as the player sees it."""
        self._body = Body(self.problem)
        self._batch = PARAMS.first_batch
        self._ii, self._failed, self._number = 0, 0, 0

    def step(self, least: int, stop: Callable[[], bool], evaluations: int | None = None) -> int:
        """Run one batch at one II, which is at least ``least``; returns the number of different complete mappings.

        Plans are offered to the tally. The batch has at most ``evaluations`` roll-outs (None for no such limit), but always
        one. ``stop`` says whether to give up. Errors of the player are passed on.
        """
        ii = self._choose_ii(least)
        size = self._batch if evaluations is None else max(1, min(self._batch, evaluations))
        first = self._start_mapping(ii)
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
        """Keep a mapping if it has at least as many placed instructions as the one that is kept for this II."""
        furthest = self._furthest.get(ii)
        # A mapping with equally many placed instructions replaces it, so that the search does not stay with one mapping for
        # ever.
        if furthest is None or mapping.placed >= len(furthest):
            self._furthest[ii] = _places(mapping.tile.tolist(), mapping.slot.tolist())

    def _start_mapping(self, ii: int) -> Mapping:
        """The mapping from which the roll-outs of a batch start: an empty one, or an earlier one without some instructions."""
        best = self.tally.best
        places = self._furthest.get(ii)
        if best is not None and ii == best.ii:
            places = _places(best.tiles, best.slots)
        if self._repair and places and self._chance.random() < PARAMS.repairs:
            for _ in range(PARAMS.tries):
                removed = self._draw_related(places)
                rest = {number: place for number, place in places.items() if number not in removed}
                fixed = {self.problem.instructions[number].id: place for number, place in rest.items()}
                try:
                    return Mapping(self._body, ii, fixed=fixed, look_ahead=self._look_ahead)
                except InputError:  # with the remaining places fixed, some instruction has no place
                    continue
        return Mapping(self._body, ii, look_ahead=self._look_ahead)

    def _draw_related(self, places: Places) -> set[int]:
        """Draws a set of related instructions to remove from a mapping.

        It consists of instructions that are connected by values, if possible around one that is not placed, and of random other
        instructions on their tiles.
        """
        body = self.tally.body
        count, draw = body.count, self._chance
        missing = [number for number in range(count) if number not in places]
        first = int(draw.choice(missing)) if missing else int(draw.integers(count))
        wanted = int(draw.integers(2, max(3, count // 2) + 1))
        ball, frontier = {first}, [first]
        while frontier and len(ball) < wanted:
            at = frontier.pop(int(draw.integers(len(frontier))))
            for value in body.values[at]:
                if value.other not in ball:
                    ball.add(value.other)
                    frontier.append(value.other)
        tiles = {places[number][0] for number in ball if number in places}
        part = draw.random() ** 2
        return ball | {number for number, (tile, _) in places.items() if tile in tiles and draw.random() < part}

    def _choose_ii(self, least: int) -> int:
        """The initiation interval of the next batch."""
        best, body = self.tally.best, self.tally.body
        depth = body.problem.machine.spoke_depth
        if best is not None:
            left = body.between(least, best.ii)
            if not left:
                return best.ii
            # In half of the batches, the II is the largest one below the best, which is the easiest. In the others it is any II
            # below the best, or the best II again, to find a shorter iteration.
            draw = self._chance.random()
            if draw < 0.5:
                return left[-1]
            return left[int(self._chance.integers(len(left)))] if draw < 0.8 else best.ii
        if self._ii < least:
            self._ii, self._failed = least, 0
        elif self._failed >= PARAMS.patience * body.count:
            # Larger intervals are tried in larger steps. The ones in between are tried once there is a plan.
            self._ii, self._failed = self._ii + max(1, self._ii // 8), 0
        left = body.between(self._ii, depth + 1) or body.between(least, depth + 1)
        self._ii = left[0] if left else min(least, depth)
        return self._ii
