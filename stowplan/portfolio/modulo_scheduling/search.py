"""List scheduling with eviction, and a search around the best schedule; both counted in evaluations.

An evaluation is as much work as placing every instruction of the loop body once, however the placements are spread: a complete
mapping counts one, and so do as many placements of the list scheduler and as many moves of the annealing.

Schedules that follow a hint are made by list scheduling, too: in the hint's order, and on the tiles that it likes. They are
raced with those that follow nothing, at each initiation interval (II) below the best one, and at that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stowplan.models.hint import TRUST, Hint
from stowplan.models.modulo_scheduling.assemble import list_schedule, make_plan
from stowplan.models.modulo_scheduling.hint import TIME, tile_name
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.mapper import Mapper

if TYPE_CHECKING:
    from stowplan.portfolio.modulo_scheduling.annealing import Annealing


class SearchParameters(Parameters, frozen=True):
    """Parameters of the search."""

    first_ratio: int = 6
    """Placements an instruction before an initiation interval (II) is given up at first: the budget ratio of Rau 1994."""
    most_ratio: int = 100
    """Placements an instruction before an II is given up at most."""
    tries: int = 3
    """Tries of the list scheduler at each II."""
    moves: int = 1_000
    """Moves a group of the first annealing at an II."""
    doublings: int = 9
    """Times that these may double."""
    anneal: float = 0.5
    """Part of the rounds in which an II below the best is looked for by annealing, where places decide it."""
    large: int = 100
    """Instructions above which a loop body is annealed before it is scheduled by list."""
    moves_a_placement: int = 100
    """Moves of the annealing that take as long as one placement of the list scheduler."""
    liking: float = 12.0
    """Clocks that the tile a hint likes best is worth: more than a link that is missing."""


PARAMS = parameters(SearchParameters, __name__)


@dataclass
class Tally:
    """What a heuristic has found, and what it has cost."""

    body: Body
    anneal: bool = True
    """Whether places may be annealed; without it for comparisons."""
    placements: int = 0
    moves: int = 0
    """Of the annealing."""
    best: Plan | None = None
    on_better: Callable[[Plan], None] | None = None
    progress: list[tuple[int, int]] = field(default_factory=list)
    """(evaluations, best objective) at each improvement."""

    @property
    def evaluations(self) -> int:
        """See the module."""
        return -(-(self.placements + self.moves) // max(1, self.body.count))

    @property
    def work(self) -> int:
        """Placements, and moves by the time they take: what is limited where time must not be."""
        return self.placements + self.moves // PARAMS.moves_a_placement

    def within(self, evaluations: int) -> int | None:
        """The best objective found in so many evaluations; None where there was none yet."""
        return min((objective for spent, objective in self.progress if spent <= evaluations), default=None)

    def shortened(self, ii: int, tiles: list[int], times: list[int]) -> list[int]:
        """Times of the same places without the detours that evictions leave behind, where places decide them."""
        if not self.body.places_decide:
            return times
        fixed = _fixed_times(self.body, ii, times)
        known = {number: fixed[number] for number in self.body.structure.recurrent}
        again = list_schedule(self.body.structure, ii, tiles, known)
        self.placements += self.body.count
        return again if again is not None and end(self.body, again) < end(self.body, times) else times

    def offer(self, ii: int, tiles: list[int], times: list[int]) -> bool:
        """Make a plan of a complete schedule and keep it where it is better; whether it was."""
        plan = make_plan(self.body.structure, ii, tiles, self.shortened(ii, tiles, times))
        if plan is None or (self.best is not None and plan.objective >= self.best.objective):
            return False
        self.best = plan
        self.progress.append((self.evaluations, plan.objective))
        if self.on_better is not None:
            self.on_better(plan)
        return True


def end(body: Body, times: Sequence[int]) -> int:
    """Clocks to the last result."""
    return max(map(sum, zip(times, body.latency, strict=True)), default=0)


def _fixed_times(body: Body, ii: int, times: list[int]) -> list[int]:
    """Times of every cycle moved by whole IIs, so that its first is in the first II."""
    first: dict[int, int] = {}
    for number in body.structure.recurrent:
        component = body.structure.component[number]
        first[component] = min(first.get(component, times[number]), times[number])
    return [time - first.get(body.structure.component[number], time) // ii * ii for number, time in enumerate(times)]


def list_scheduling(tally: Tally, seed: int, stop: Callable[[], bool]) -> bool:
    """The first schedule from the least II upwards; whether there is one. The same seed gives the same schedule."""
    body = tally.body
    for ii in body.iis:
        for attempt in range(PARAMS.tries):
            chance = random.Random(f"{seed} {ii} {attempt}")
            if stop():
                return False
            if _attempt(tally, ii, chance, PARAMS.first_ratio, stop, noise=0.1 * attempt):
                return True
    return False


def _attempt(tally: Tally, ii: int, chance: random.Random, ratio: int, stop: Callable[[], bool], noise: float) -> bool:
    """One run of the list scheduler; whether it came to its end."""
    body = tally.body
    mapper = Mapper(body, ii, chance)
    order = [height * (1 + noise * chance.random()) for height in body.heights(ii)]
    done = mapper.run(order, ratio * body.count, stop)
    # An attempt that ends before its first placement has cost something, too: deterministic runs end by what they cost.
    tally.placements += max(1, mapper.steps)
    if done:
        tally.offer(ii, mapper.tiles, mapper.times)
    return done


def begin(tally: Tally, seed: int, stop: Callable[[], bool]) -> str:
    """The first schedule, and what found it: ``list`` or, of large loop bodies whose places can be annealed, ``search``.

    List scheduling takes long there: it fails at one II after the other.
    """
    if not (tally.body.count > PARAMS.large and _can_anneal(tally)):
        list_scheduling(tally, seed, stop)
        return "list"
    run = MappingSearch(tally, seed)
    while tally.best is None and not stop():
        run.step(tally.body.least_ii, stop)
    return "search"


def _can_anneal(tally: Tally) -> bool:
    """Whether rules of places decide the II."""
    return tally.anneal and tally.body.places_decide and tally.body.problem.is_synchronous


class MappingSearch:
    """From the first schedule on: smaller IIs from scratch, and shorter iterations by taking out and putting back."""

    def __init__(self, tally: Tally, seed: int):
        self.tally = tally
        self._chance = random.Random(seed)
        self._ratio = float(PARAMS.first_ratio)
        self._now: Plan | None = None
        self._seed = seed
        self._annealing: Annealing | None = None
        self._doublings: dict[int, int] = {}
        """Annealings that came to nothing, by II."""

    def adopt(self, plan: Plan) -> None:
        """Go on from another's schedule over single links."""
        if all(len(route) <= 1 for route in plan.routes):
            self.tally.best = plan if self.tally.best is None else min(self.tally.best, plan, key=lambda known: known.objective)

    def step(self, least: int, stop: Callable[[], bool]) -> None:
        """One attempt; ``least`` is the least II that is not refuted."""
        best = self.tally.best
        above = self.tally.body.problem.machine.spoke_depth + 1 if best is None else best.ii
        left = self.tally.body.between(least, above)
        if best is not None and not left:
            self._rebuild(stop)
            return
        if _can_anneal(self.tally) and left:
            # Bisection first, for short annealings at large IIs are quick.
            failed = max((ii for ii in self._doublings if least <= ii < above), default=least - 1)
            if above - failed > 1:
                self._anneal((failed + above) // 2, stop)
                return
            if self._chance.random() < PARAMS.anneal:
                self._anneal(self._below(left), stop)
                return
        if best is None:
            ii = self._chance.choice(list(self.tally.body.iis) or [least])
            _attempt(self.tally, ii, self._chance, int(self._ratio), stop, noise=0.5)
        elif self._chance.random() < 0.7:
            ii = self._below(left)
            _attempt(self.tally, ii, self._chance, int(self._ratio), stop, noise=self._chance.choice((0.0, 0.2, 1.0)))
        else:
            self._rebuild(stop)
            return
        self._ratio = min(PARAMS.most_ratio, self._ratio * 1.1)

    def _below(self, left: Sequence[int]) -> int:
        """One of the IIs that are left: the largest mostly, for that is the easiest."""
        return left[-1] if self._chance.random() < 0.7 else self._chance.choice(left)

    def _anneal(self, ii: int, stop: Callable[[], bool]) -> None:
        """Places, and times on recurrences, by annealing, then the other times: longer each time that nothing comes of it."""
        if self._annealing is None:
            # Imported here: what it compiles takes a moment to load, and most loop bodies never need it.
            from stowplan.portfolio.modulo_scheduling.annealing import Annealing

            self._annealing = Annealing(self.tally.body, self._seed)
        tally, body = self.tally, self.tally.body

        def count(moves: int) -> None:
            tally.moves += moves

        doublings = self._doublings.get(ii, 0)
        moves = (PARAMS.moves * len(body.members)) << min(doublings, PARAMS.doublings)
        places = self._annealing.place(ii, moves, stop, count)
        if places is not None:
            tiles, known = places
            tiles_of = [tiles[group] for group in body.group]
            times = list_schedule(body.structure, ii, tiles_of, known)
            tally.placements += body.count
            if times is not None:
                tally.offer(ii, tiles_of, times)
                return
        self._doublings[ii] = doublings + 1

    def _rebuild(self, stop: Callable[[], bool]) -> None:
        """Take some related instructions out of the best schedule and put them back, in an order drawn anew."""
        tally, body, best = self.tally, self.tally.body, self.tally.best
        assert best is not None
        if self._now is None or self._now.ii != best.ii or self._chance.random() < 0.02:
            self._now = best
        now = self._now
        mapper = Mapper(body, now.ii, self._chance)
        mapper.adopt(now.tiles, now.times)
        mapper.take_out(self._some(now))
        order = [height * (1 + 0.3 * self._chance.random()) for height in body.heights(now.ii)]
        done = mapper.run(order, 2 * body.count, stop)
        tally.placements += mapper.steps
        if not done:
            return
        tiles = mapper.tiles
        times = tally.shortened(now.ii, tiles, mapper.times)
        plan = make_plan(body.structure, now.ii, tiles, times)
        # Sideways steps count: most changes leave the longest chain as it is.
        if plan is not None and plan.objective <= now.objective:
            self._now = plan
            tally.offer(now.ii, tiles, times)

    def _some(self, plan: Plan) -> list[int]:
        """A ball of instructions around one, mostly around one that ends late."""
        body = self.tally.body
        late = max(plan.times) - 2 * body.longest
        first = self._chance.randrange(body.count)
        if self._chance.random() < 0.5:
            first = self._chance.choice([number for number, time in enumerate(plan.times) if time >= late])
        size = self._chance.randint(1, max(1, min(body.count, 12)))
        groups, frontier = [first], [first]
        while frontier and len(groups) < size:
            at = frontier.pop(self._chance.randrange(len(frontier)))
            for value in body.values[at]:
                if value.other not in groups:
                    groups.append(value.other)
                    frontier.append(value.other)
        return groups[:size]


def follow(tally: Tally, hint: Hint, seed: int, stop: Callable[[], bool]) -> bool:
    """Try schedules that follow a hint at one II after the other, upwards; whether one is better than the best before.

    Parameters
    ----------
    tally
        Of the loop body; it is told of what is found, and of what that cost.
    hint
        With values, checked.
    seed
        Of ties.
    stop
        Asked between two attempts, and in them.
    """
    body, before = tally.body, tally.best
    above = None if before is None else before.ii
    for ii in body.iis:
        if above is not None and ii > above:
            break
        for attempt, order in enumerate(_orders(body, hint, ii)):
            if stop():
                return tally.best is not before
            mapper = Mapper(body, ii, random.Random(f"{seed} {ii} {attempt}"), liking=_liking(body, hint))
            done = mapper.run(order, PARAMS.first_ratio * body.count, stop)
            tally.placements += max(1, mapper.steps)
            if done:
                tally.offer(ii, mapper.tiles, mapper.times)
        if tally.best is not before:
            return True
    return False


def _orders(body: Body, hint: Hint, ii: int) -> Iterator[list[float]]:
    """Orders to place instructions in, the highest first: the hint's, then that of heights."""
    heights = [float(height) for height in body.heights(ii)]
    longest = max(heights, default=0.0)
    times, sure = hint.values[TIME], hint.confidence or (1.0,) * body.count
    yield [
        longest * (1.0 - time) if trust >= TRUST else height for height, time, trust in zip(heights, times, sure, strict=True)
    ]
    yield heights


def _liking(body: Body, hint: Hint) -> NDArray[np.float64]:
    """[groups, tiles] Clocks that each tile is worth to a group: that of its instruction which is surest."""
    values = np.array([hint.values[tile_name(tile)] for tile in range(body.tiles)], np.float64)
    sure = np.array(hint.confidence, np.float64) if hint.confidence else np.ones(body.count)
    values[:, sure < TRUST] = 0.0
    liking = [values[:, members].max(axis=1) for members in body.members]
    return PARAMS.liking * np.array(liking, np.float64).reshape(len(body.members), body.tiles)
