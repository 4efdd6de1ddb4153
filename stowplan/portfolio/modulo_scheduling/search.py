"""List scheduling with eviction, and a search around the best schedule; both counted in evaluations.

An *evaluation* is as much work as placing every instruction of the loop body once. One complete mapping counts as one, and so
do as many single placements of the list scheduler, or moves of parallel tempering (:mod:`.tempering`), as the loop body has
instructions.

The *II* is the initiation interval, the number of clocks from the start of one iteration to the start of the next. A *hint* has
values in [0, 1] for each instruction: its time as a fraction of an iteration, and how likely it is on each tile in a good plan.
Schedules that follow a hint also come from list scheduling, in the order of the hint and with a bonus for the tiles that it
suggests. They are tried at each II up to the best one. Schedules that follow no hint are tried as well. A *group* is a set of
instructions that must share a tile. The *height* of an instruction is the least number of clocks from its issue to the end of
the loop body. A *recurrence* is a cycle of dependences. :mod:`.body` computes all three. Nothing in this module raises an
error, except as stated.
"""

from __future__ import annotations

import math
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
    from stowplan.portfolio.modulo_scheduling.tempering import Tempering


class SearchParameters(Parameters, frozen=True):
    """Parameters of the search."""

    first_ratio: int = 6
    """Number of placements, divided by the number of instructions, after which the first attempts of the list scheduler are
    given up: the budget ratio of Rau 1994."""
    most_ratio: int = 100
    """The same number for the last attempts. The budget grows from attempt to attempt."""
    tries: int = 3
    """Number of attempts of the list scheduler at each II."""
    moves: int = 1_000
    """Number of moves for each group when parallel tempering begins at an II."""
    doublings: int = 9
    """How many times the number of moves at an II doubles, at most. It doubles each time that no plan was found."""
    tempering: float = 0.9
    """Fraction of the work in which parallel tempering looks for an II below the best one, if the placement decides which II is
    possible."""
    first_placements: int = 500
    """Number of placements of the list scheduler without a schedule after which parallel tempering looks for the first
    schedule, if the placement decides which II is possible."""
    moves_a_placement: int = 500
    """Number of moves of parallel tempering that take as long as one placement of the list scheduler."""
    liking: float = 12.0
    """Bonus in clocks of the tile that a hint suggests most: more than the cost of a missing link."""


PARAMS = parameters(SearchParameters, __name__)


@dataclass
class Tally:
    """The best plan of a heuristic and the work that it has done."""

    body: Body
    """The loop body."""
    tempering: bool = True
    """Whether parallel tempering may be used; False for comparisons."""
    placements: int = 0
    """Number of placements of the list scheduler."""
    moves: int = 0
    """Number of moves of parallel tempering."""
    best: Plan | None = None
    """The best plan so far."""
    on_better: Callable[[Plan], None] | None = None
    """Called with every better plan; None if no function is to be called."""
    progress: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (number of evaluations, best objective) at each improvement."""

    @property
    def evaluations(self) -> int:
        """Number of evaluations, as the module defines them."""
        return -(-(self.placements + self.moves) // max(1, self.body.count))

    @property
    def work(self) -> int:
        """The work in placements, in which deterministic runs are measured. Moves count by the time that they take."""
        return self.placements + self.moves // PARAMS.moves_a_placement

    def within(self, evaluations: int) -> int | None:
        """The best objective after the first ``evaluations`` evaluations; None if there was no plan by then."""
        return min((objective for spent, objective in self.progress if spent <= evaluations), default=None)

    def shorten_delays(self, ii: int, tiles: list[int], times: list[int]) -> list[int]:
        """Times for the same placement without the delays that evictions have left behind.

        If they make the iteration no shorter, or if the placement does not decide the times, ``times`` is returned.
        """
        if not self.body.places_decide:
            return times
        fixed = _fixed_times(self.body, ii, times)
        recurrent_times = {number: fixed[number] for number in self.body.structure.recurrent}
        rescheduled = list_schedule(self.body.structure, ii, tiles, recurrent_times)
        self.placements += self.body.count
        return rescheduled if rescheduled is not None and end(self.body, rescheduled) < end(self.body, times) else times

    def offer(self, ii: int, tiles: list[int], times: list[int]) -> bool:
        """Build the plan of a complete schedule, and keep and report it if it is better; returns whether it is.

        ``tiles`` and ``times`` have an entry for each instruction. A schedule that is no valid plan, for example because its
        values need more registers than there are, is not better.
        """
        plan = make_plan(self.body.structure, ii, tiles, self.shorten_delays(ii, tiles, times))
        if plan is None or (self.best is not None and plan.objective >= self.best.objective):
            return False
        self.best = plan
        self.progress.append((self.evaluations, plan.objective))
        if self.on_better is not None:
            self.on_better(plan)
        return True


def end(body: Body, times: Sequence[int]) -> int:
    """The clock at which the last result of an iteration is available; 0 without instructions."""
    return max(map(sum, zip(times, body.latency, strict=True)), default=0)


def _fixed_times(body: Body, ii: int, times: list[int]) -> list[int]:
    """The times, with every recurrence moved by a multiple of the II so that its first issue is in ``[0, ii)``."""
    first: dict[int, int] = {}
    for number in body.structure.recurrent:
        component = body.structure.component[number]
        first[component] = min(first.get(component, times[number]), times[number])
    return [time - first.get(body.structure.component[number], time) // ii * ii for number, time in enumerate(times)]


def list_scheduling(tally: Tally, seed: int, stop: Callable[[], bool], limit: float = math.inf) -> bool:
    """Find a schedule by trying IIs upwards from the least one; returns whether one was found.

    Once the tally has ``limit`` placements, no further attempt begins. Apart from ``stop``, the result depends on the seed and
    the limit alone.
    """
    body = tally.body
    for ii in body.iis:
        for attempt in range(PARAMS.tries):
            chance = random.Random(f"{seed} {ii} {attempt}")
            if stop() or tally.placements >= limit:
                return False
            if _attempt(tally, ii, chance, PARAMS.first_ratio, stop, noise=0.1 * attempt):
                return True
    return False


def _attempt(tally: Tally, ii: int, chance: random.Random, ratio: int, stop: Callable[[], bool], noise: float) -> bool:
    """Make one attempt of the list scheduler at an II; returns whether it is complete and there is a plan.

    It may make ``ratio`` placements for each instruction. ``noise`` is the largest fraction of a height that is added to it at
    random.
    """
    body = tally.body
    mapper = Mapper(body, ii, chance)
    order = [height * (1 + noise * chance.random()) for height in body.heights(ii)]
    done = mapper.run(order, ratio * body.count, stop)
    # An attempt without a placement counts as one placement, because otherwise a deterministic run might never end.
    tally.placements += max(1, mapper.steps)
    if done:
        tally.offer(ii, mapper.tiles, mapper.times)
    # The list scheduler does not count registers, so a complete schedule may not be a valid plan.
    return done and tally.best is not None


def begin(tally: Tally, seed: int, stop: Callable[[], bool]) -> bool:
    """Look for a first schedule by list scheduling, which is then in ``tally.best``; returns whether it was given up early.

    List scheduling may fail at one II after the other, and then takes long. If parallel tempering applies, it is therefore
    given up after a number of placements (:attr:`SearchParameters.first_placements`); :meth:`MappingSearch.step` goes on.
    """
    limit = PARAMS.first_placements if _may_temper(tally) else math.inf
    list_scheduling(tally, seed, stop, limit)
    return tally.best is None and tally.placements >= limit


def _may_temper(tally: Tally) -> bool:
    """Whether parallel tempering applies: it is permitted, the placement decides which II is possible, and no value is sent
    over the asynchronous fabric."""
    return tally.tempering and tally.body.places_decide and tally.body.problem.is_synchronous


class MappingSearch:
    """Improves the first schedule: it looks for smaller IIs from scratch, and shortens iterations by ruin and recreate.

    The best plan is in ``tally.best``, which may also be None at first. The loop body must have instructions.
    """

    def __init__(self, tally: Tally, seed: int):
        self.tally = tally
        self._chance = random.Random(seed)
        self._ratio = float(PARAMS.first_ratio)
        self._now: Plan | None = None
        self._seed = seed
        self._tempering: dict[int, Tempering] = {}
        """The state of parallel tempering by II."""
        self._doublings: dict[int, int] = {}
        """How many times parallel tempering found no plan, by II."""

    def adopt(self, plan: Plan) -> None:
        """Continue from another candidate's schedule, if it is better and no value takes more than one link."""
        if all(len(route) <= 1 for route in plan.routes):
            self.tally.best = plan if self.tally.best is None else min(self.tally.best, plan, key=lambda each: each.objective)

    def step(self, least: int, stop: Callable[[], bool]) -> None:
        """Make one attempt to improve the schedule, or to find a first one.

        ``least`` is the least II that no bound excludes, and ``stop`` says whether to give up the attempt.
        """
        best = self.tally.best
        above = self.tally.body.problem.machine.spoke_depth + 1 if best is None else best.ii
        left = self.tally.body.between(least, above)
        if best is not None and not left:
            self._rebuild(stop)
            return
        if _may_temper(self.tally) and left:
            # Bisection over the IIs comes first, because a plan with a large II is soon found.
            failed = max((ii for ii in self._doublings if least <= ii < above), default=least - 1)
            if above - failed > 1:
                self._temper((failed + above) // 2, stop)
                return
            tempered = self.tally.work - self.tally.placements
            if tempered <= PARAMS.tempering * self.tally.work:
                self._temper(self._draw_ii(left), stop)
                return
        if best is None:
            ii = self._chance.choice(list(self.tally.body.iis) or [least])
            _attempt(self.tally, ii, self._chance, int(self._ratio), stop, noise=0.5)
        elif self._chance.random() < 0.7:
            ii = self._draw_ii(left)
            _attempt(self.tally, ii, self._chance, int(self._ratio), stop, noise=self._chance.choice((0.0, 0.2, 1.0)))
        else:
            self._rebuild(stop)
            return
        self._ratio = min(PARAMS.most_ratio, self._ratio * 1.1)

    def _draw_ii(self, left: Sequence[int]) -> int:
        """One of the remaining IIs ``left``, mostly the largest, which is the easiest."""
        return left[-1] if self._chance.random() < 0.7 else self._chance.choice(left)

    def _temper(self, ii: int, stop: Callable[[], bool]) -> None:
        """Go on with parallel tempering at an II; if it finds places, compute the times that it does not choose, and offer the
        plan.

        After each failure, the next call at this II makes twice as many moves.
        """
        tally, body = self.tally, self.tally.body
        doublings = self._doublings.get(ii, 0)
        if not body.may_fit(ii):
            self._doublings[ii] = doublings + 1
            return
        if ii not in self._tempering:
            # The module is imported only here, because its compiled code takes a moment to load, and most loop bodies never
            # need it.
            from stowplan.portfolio.modulo_scheduling.tempering import Tempering

            self._tempering[ii] = Tempering(body, ii, (self._seed, ii, doublings))

        def count(moves: int) -> None:
            tally.moves += moves

        moves = (PARAMS.moves * len(body.members)) << min(doublings, PARAMS.doublings)
        places = self._tempering[ii].search(moves, stop, count)
        if places is not None:
            # If these places permit no plan, the next call begins anew.
            del self._tempering[ii]
            tiles, chosen_times = places
            tiles_of = [tiles[group] for group in body.group]
            times = list_schedule(body.structure, ii, tiles_of, chosen_times)
            tally.placements += body.count
            if times is not None and tally.offer(ii, tiles_of, times):
                return
        self._doublings[ii] = doublings + 1

    def _rebuild(self, stop: Callable[[], bool]) -> None:
        """Remove some related instructions from the current schedule and place them again, in a random order."""
        tally, body, best = self.tally, self.tally.body, self.tally.best
        assert best is not None
        if self._now is None or self._now.ii != best.ii or self._chance.random() < 0.02:
            self._now = best
        now = self._now
        mapper = Mapper(body, now.ii, self._chance)
        mapper.adopt(now.tiles, now.times)
        mapper.unschedule(self._draw_related(now))
        order = [height * (1 + 0.3 * self._chance.random()) for height in body.heights(now.ii)]
        done = mapper.run(order, 2 * body.count, stop)
        tally.placements += mapper.steps
        if not done:
            return
        tiles = mapper.tiles
        times = tally.shorten_delays(now.ii, tiles, mapper.times)
        plan = make_plan(body.structure, now.ii, tiles, times)
        # Equally good schedules are accepted, because most changes do not affect the longest chain.
        if plan is not None and plan.objective <= now.objective:
            self._now = plan
            tally.offer(now.ii, tiles, times)

    def _draw_related(self, plan: Plan) -> list[int]:
        """At most twelve instructions that are connected by values, in half of the cases around one that is issued late."""
        body = self.tally.body
        late = max(plan.times) - 2 * body.longest
        first = self._chance.randrange(body.count)
        if self._chance.random() < 0.5:
            first = self._chance.choice([number for number, time in enumerate(plan.times) if time >= late])
        size = self._chance.randint(1, max(1, min(body.count, 12)))
        related, frontier = [first], [first]
        while frontier and len(related) < size:
            at = frontier.pop(self._chance.randrange(len(frontier)))
            for value in body.values[at]:
                if value.other not in related:
                    related.append(value.other)
                    frontier.append(value.other)
        return related[:size]


def follow(tally: Tally, hint: Hint, seed: int, stop: Callable[[], bool]) -> bool:
    """Try schedules that follow a hint, from the least II upwards; returns whether there is a better plan than before.

    Parameters
    ----------
    tally
        Collects plans and work.
    hint
        A hint with values that :func:`stowplan.models.hint.check_hint` has accepted.
    seed
        Seed that breaks ties.
    stop
        Called between two attempts, and during them.
    """
    body, before = tally.body, tally.best
    above = None if before is None else before.ii
    for ii in body.iis:
        if above is not None and ii > above:
            break
        for attempt, order in enumerate(_priority_orders(body, hint, ii)):
            if stop():
                return tally.best is not before
            mapper = Mapper(body, ii, random.Random(f"{seed} {ii} {attempt}"), liking=_tile_bonuses(body, hint))
            done = mapper.run(order, PARAMS.first_ratio * body.count, stop)
            tally.placements += max(1, mapper.steps)
            if done:
                tally.offer(ii, mapper.tiles, mapper.times)
        if tally.best is not before:
            return True
    return False


def _priority_orders(body: Body, hint: Hint, ii: int) -> Iterator[list[float]]:
    """Yield two priorities of the instructions: that of the hint, then that of the heights. The largest number comes first."""
    heights = [float(height) for height in body.heights(ii)]
    longest = max(heights, default=0.0)
    times, sure = hint.values[TIME], hint.confidence or (1.0,) * body.count
    yield [
        longest * (1.0 - time) if trust >= TRUST else height for height, time, trust in zip(heights, times, sure, strict=True)
    ]
    yield heights


def _tile_bonuses(body: Body, hint: Hint) -> NDArray[np.float64]:
    """[groups, tiles] bonus in clocks of each tile for a group: the largest that the hint gives to one of its instructions."""
    values = np.array([hint.values[tile_name(tile)] for tile in range(body.tiles)], np.float64)
    sure = np.array(hint.confidence, np.float64) if hint.confidence else np.ones(body.count)
    values[:, sure < TRUST] = 0.0
    liking = [values[:, members].max(axis=1) for members in body.members]
    return PARAMS.liking * np.array(liking, np.float64).reshape(len(body.members), body.tiles)
