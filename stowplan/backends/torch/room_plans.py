"""The plan of one graph that adds least within rooms (:mod:`stowplan.backends.torch.rooms`): branch and bound on what is kept.

Of an interval of bytes kept, the problem that may keep as many as its upper end, with the room of its lower end, is a
relaxation: its bound is one of the interval, and its plan may fit. With the room of its upper end it is none, and plans fit.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterable, Sequence

import msgspec

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch.planning import LEAST_LEFT, LEAST_SHARE, Choice, Chooser, GraphReport
from stowplan.backends.torch.rooms import Rooms, Taken, taken, weighted, within
from stowplan.kernel.solve import solve
from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify
from stowplan.portfolio.rematerialization import peaks
from stowplan.portfolio.rematerialization.greedy import simulate

#: Parts of the time for a plan that saves little, and for each node of the search.
FRUGAL_SHARE, NODE_SHARE = 0.15, 0.08

#: Seconds of a node, at least; and of a plan that saves little.
LEAST, LEAST_FRUGAL = 0.2, 2.0

#: The search ends where the best plan adds no more than this much beyond the bound.
TOLERANCE = 0.005

#: Operators that a bound looks at.
LOOKED_AT = 24

#: How far above its least peak a plan that saves little may be.
SLACK = 1.05


class RoomChooser(Chooser):
    """Finds the plan that adds least within rooms; arguments are as :class:`Chooser` takes them."""

    rooms: Rooms

    def choose_within(self, rooms: Rooms) -> Choice:
        """The plan.

        Raises
        ------
        MemoryLimitError
            No plan was found; says whether it is proven that there is none.
        """
        self.rooms = rooms
        self.best: Plan | None = None
        self.least: int | None = None
        """Least peak of a step, of plans so far."""
        self.takes: dict[tuple[int, ...], Taken] = {}
        given = self.free.made(self.free.order)
        plans = [*([] if self.own is None else [self.own]), given]
        self.ceiling: int | None = None
        for plan in plans:
            self._offer(plan.sequence)
            if self.best is self.own and self.own is not None:
                # Never above torch's own peak, however much is allowed.
                self.ceiling = self.own.peak
        if self.best is not None and self.best.objective == 0:
            return self._chosen(0)
        frugal = self.frugal(FRUGAL_SHARE * self._left())
        self._offer(frugal.sequence)
        if self.best is None:
            # Reading the graph may have taken all the time there was.
            self._offer(self.frugal(max(LEAST_LEFT, LEAST_SHARE * self.settings.time_limit)).sequence)
        highest = max(taken(self.reading, plan).kept for plan in plans)
        bound = self._branched(min(taken(self.reading, frugal).kept, highest), highest)
        if self.best is None:
            least, is_proven = self.least or 0, bound is None
            text = f"the least peak found of a step is {least} bytes, and the limit is {self.limit}"
            why = "proven: no plan is within it" if is_proven else "no plan found in time"
            raise MemoryLimitError(f"{text} ({why})", self.limit, least, self.limit + 1 if is_proven else 0)
        return self._chosen(bound or 0)

    def first(self) -> Choice:
        """A plan that saves little, for steps in which it is measured what lives beside the graph.

        Raises
        ------
        MemoryLimitError
            As :meth:`choose` raises it.
        """
        plan = self.frugal(FRUGAL_SHARE * self._left())
        return self._choice(plan, "first steps", 0) if plan.peak <= self.limit else self.choose(keep_own=False)

    def frugal(self, seconds: float) -> Plan:
        """A plan that saves few bytes, among those whose peak is not far above the least."""
        seconds = max(LEAST_FRUGAL, seconds)
        orders = [] if self.own is None else [[*dict.fromkeys(self.own.sequence)]]
        enough = self.limit // 2
        plan = self.free.made(self.free.order)
        if plan.peak > enough:
            plan, _ = peaks.least_peak(self.reading.problem, orders, seconds / 2, enough=enough)
        border = self.reading.problem.ops[self.reading.border]
        sizes = self.reading.problem.tensors
        stays = sum(sizes[tensor].size for tensor in {*self.reading.problem.inputs, *border.reads, *border.writes})
        between = max(0, int(max(enough, SLACK * plan.peak)) - stays)
        least, _ = peaks.least_peak(weighted(self.reading, 0, between), orders, seconds / 2)
        return min((plan, self.free.made(least.sequence)), key=lambda made: (made.peak > self.limit, self._kept(made)))

    def _kept(self, plan: Plan) -> int:
        return taken(self.reading, plan).kept

    def _offer(self, sequence: Iterable[int]) -> None:
        """Take a sequence as the best plan if it fits and adds less."""
        plan = self.free.made(sequence)
        if not verify(self.free.problem, plan).ok or (self.ceiling is not None and plan.peak > self.ceiling):
            return
        takes = self.takes[plan.sequence] = taken(self.reading, plan)
        peak, room = self.rooms.peak(takes), self.rooms.room(takes.kept)
        self.least = peak if self.least is None else min(self.least, peak)
        fits = takes.forward <= room.forward and takes.backward <= room.backward and takes.kept <= room.saved
        if fits and (self.best is None or (plan.objective, peak) < (self.best.objective, self.rooms.peak(self._takes()))):
            self.best = self.own if self.own is not None and plan.sequence == self.own.sequence else plan

    def _takes(self) -> Taken:
        assert self.best is not None
        return self.takes[self.best.sequence]

    def _branched(self, lowest: int, highest: int) -> int | None:
        """Look at intervals, the least bound first; a bound on all plans, None where it is proven that there are none."""
        number = itertools.count()
        floor = min(self.reading.problem.tensors[0].size, lowest)
        waiting: list[tuple[int, int, int, int]] = []

        def add(low: int, high: int) -> None:
            bound = self._relaxed(low, high)
            if bound is not None:
                heapq.heappush(waiting, (bound, next(number), low, high))

        self._restricted(lowest)
        self._restricted(highest)
        # What is kept below the least that was found is an interval as well.
        add(lowest, highest)
        if floor < lowest:
            add(floor, lowest)
        while waiting and self._left() > 0:
            bound, _, low, high = waiting[0]
            if (self.best is not None and bound >= (1 - TOLERANCE) * self.best.objective) or high - low <= highest // 1000:
                break
            heapq.heappop(waiting)
            middle = (low + high) // 2
            self._restricted(middle)
            add(low, middle)
            add(middle, high)
        return waiting[0][0] if waiting else None if self.best is None else self.best.objective

    def _restricted(self, kept: int) -> None:
        """Offer plans that keep so much at most."""
        self._solved(within(self.reading, self.rooms.room(kept), kept))

    def _relaxed(self, low: int, high: int) -> int | None:
        """A bound on what plans add that keep bytes between these; None where it is proven that there are none."""
        problem = within(self.reading, self.rooms.room(low), high)
        until = time.monotonic() + max(LEAST, NODE_SHARE * self._left())
        bound = bounds.added_cost(
            build(problem), problem.limit or 0, lambda: time.monotonic() >= until, most=min(LOOKED_AT, len(problem.ops))
        )
        return None if bound is None else max(bound, self._solved(problem))

    def _solved(self, problem: Problem) -> int:
        """Offer plans of a problem; a bound on what they add."""
        structure, limit = build(problem), problem.limit or 0
        if bounds.load_bound(structure) > limit:
            return 0
        known: dict[str, Sequence[int]] = {} if self.best is None else {"best": self.best.sequence}
        for order in (structure.order, *([] if self.own is None else [[*dict.fromkeys(self.own.sequence)]])):
            made = simulate(structure, order, limit)
            if made is not None:
                self._offer(made)
                known["simulated"] = made
        plans = {name: structure.made(sequence) for name, sequence in known.items()}
        result = solve(
            problem,
            time_limit=max(LEAST, NODE_SHARE * self._left()),
            candidates=["search"],
            plans={name: plan for name, plan in plans.items() if plan.peak <= limit},
            workers=1,
            seed=self.settings.seed,
        )
        if result.plan is not None:
            self._offer(result.plan.sequence)
        return int(result.bound or 0)

    def _chosen(self, bound: int) -> Choice:
        assert self.best is not None
        choice = self._choice(self.best, "rooms", bound)
        takes = self._takes()
        saved = self.rooms.peak(Taken(takes.kept, takes.kept, takes.kept))
        report: GraphReport = msgspec.structs.replace(choice.report, peak=self.rooms.peak(takes), saved=saved)
        return msgspec.structs.replace(choice, report=report)
