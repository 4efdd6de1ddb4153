"""The plan of one graph that adds least within rooms (:mod:`stowplan.backends.torch.rooms`), by the MILP in stages.

What each use keeps is what is live at the border, a moment of the program like others; so the least that is kept, where room
for work is short, and what runs again for it are one choice. Moments are added until a draft fits as it is; where none can be
added, the order of what may first run in any order is branched on. From drafts that do not fit a search begins, with what they
keep and the room that this leaves.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch.planning import GAP, LEAST_LEFT, LEAST_SHARE, Choice, Chooser, GraphReport
from stowplan.backends.torch.rooms import Rooms, Taken, taken, tangent_bytes, weighted, within
from stowplan.kernel.solve import solve
from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.bounds import Moments
from stowplan.models.rematerialization.moments import more_moments, orders
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.stages import Stages
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import live_bytes, verify
from stowplan.portfolio.rematerialization import peaks
from stowplan.portfolio.rematerialization.greedy import simulate
from stowplan.portfolio.rematerialization.insertion import Insertion

#: Parts of the time for a plan that saves little, for a program, and for a search with what a draft keeps.
FRUGAL_SHARE, PROGRAM_SHARE, SEARCH_SHARE = 0.15, 0.25, 0.1

#: Seconds of a program or a search, at least; and of a plan that saves little.
LEAST, LEAST_FRUGAL = 0.2, 2.0

#: A draft may be above its bound by this part of it.
DRAFT_GAP = 0.002

#: Operators that bounds by cuts look at, and moments that are added at a time.
LOOKED_AT, ADDED = 24, 2

#: More than anything costs.
ENDLESS = 1 << 62

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
        self.ceiling = self.limit
        """Bytes of the graph alone: never above torch's own peak, however much is allowed."""
        given = self.free.made(self.free.order)
        for plan in [given] if self.own is None else [self.own, given]:
            self._offer(plan.sequence)
            if self.best is self.own and self.own is not None:
                self.ceiling = min(self.limit, self.own.peak)
        if self.best is not None and self.best.objective == 0:
            return self._chosen(0)
        bound = self._branched(self._bound_by_cuts())
        is_proven = self.best is None and bound is None
        if self.best is None:
            # Reading the graph may have taken all the time there was; and errors say what would fit.
            seconds = 0.0 if is_proven else max(LEAST_LEFT, LEAST_SHARE * self.settings.time_limit)
            for plan in (self.frugal(max(seconds, FRUGAL_SHARE * self._left())), given):
                self._offer(plan.sequence)
                if not is_proven:
                    self._search(plan.sequence)
        if self.best is None:
            least = self.least or 0
            text = f"the least peak found of a step is {least} bytes, and the limit is {self.limit}"
            why = "proven: no plan is within it" if is_proven else "no plan found in time"
            raise MemoryLimitError(f"{text} ({why})", self.limit, least, self.limit + 1 if is_proven else 0)
        return self._chosen(bound or 0)

    def first(self, enough: int) -> Choice:
        """The plan of least peak, for steps in which it is measured what lives beside the graph.

        Parameters
        ----------
        enough
            Bytes of a peak below which no smaller one is sought.
        """
        return self._choice(self.frugal(FRUGAL_SHARE * self._left(), enough), "first steps", 0)

    def frugal(self, seconds: float, enough: int | None = None) -> Plan:
        """A plan that saves few bytes, among those whose peak is not far above the least."""
        seconds = max(LEAST_FRUGAL, seconds)
        known = [] if self.own is None else [[*dict.fromkeys(self.own.sequence)]]
        enough = self.limit // 2 if enough is None else enough
        plan = self.free.made(self.free.order)
        if plan.peak > enough:
            plan, _ = peaks.least_peak(self.reading.problem, known, seconds / 2, enough=enough)
        border = self.reading.problem.ops[self.reading.border]
        sizes = self.reading.problem.tensors
        stays = sum(sizes[tensor].size for tensor in {*self.reading.problem.inputs, *border.reads, *border.writes})
        between = max(0, int(max(enough, SLACK * plan.peak)) - stays)
        least, _ = peaks.least_peak(weighted(self.reading, 0, between), known, seconds / 2)
        return min((plan, self.free.made(least.sequence)), key=lambda made: (made.peak > self.limit, self._kept(made)))

    def _kept(self, plan: Plan) -> int:
        return taken(self.reading, plan).kept

    def _offer(self, sequence: Iterable[int]) -> None:
        """Take a sequence as the best plan if it fits and adds less."""
        plan = self.free.made(sequence)
        if not verify(self.free.problem, plan).ok:
            return
        takes = self.takes[plan.sequence] = taken(self.reading, plan)
        peak = self.rooms.peak(takes)
        self.least = peak if self.least is None else min(self.least, peak)
        if peak > self.rooms.limit or plan.peak > self.ceiling:
            return
        if self.best is None or (plan.objective, peak) < (self.best.objective, self.rooms.peak(self._takes())):
            self.best = self.own if self.own is not None and plan.sequence == self.own.sequence else plan

    def _takes(self) -> Taken:
        assert self.best is not None
        return self.takes[self.best.sequence]

    def _bound_by_cuts(self) -> int | None:
        """A bound on what all plans add by single moments; None where it is proven that there are none."""
        structure, moments, border = self.free, Moments(self.free), self.reading.border
        if bounds.load_bound(structure) > self.ceiling:
            return None

        def added_cost(op: int) -> int | None:
            # At the border what waits is what is live; elsewhere it is no less than nothing.
            alone = (most // (1 + times * (op == border)) for times, most in self._limits(moments, op))
            return moments.added_cost(op, min(alone))

        until = time.monotonic() + PROGRAM_SHARE * self._left()
        looked_at = [border, *bounds.fullest_first(structure)[:LOOKED_AT]]
        return bounds.largest(looked_at, added_cost, lambda: time.monotonic() >= until, lambda bound: None)

    def _branched(self, bound: int | None) -> int | None:
        """Branch and bound on the order of first runs: a bound on all plans, None where it is proven that there are none.

        A node is a chain of moments. Its draft is offered; where that does not fit, the chain becomes longer, or it is told in
        which order others of its operators first run.
        """
        if bound is None:
            return None
        number = itertools.count()
        waiting = [(bound, next(number), [self.reading.border], Moments(self.free))]
        least = ENDLESS
        self.searched: set[int] = set()
        """Bytes kept with which a search was made."""
        while waiting and not self._is_done(waiting[0][0]):
            bound, _, chain, moments = heapq.heappop(waiting)
            limits = partial(self._limits, moments)
            draft = Stages(self.free, moments, limits, chain, self.reading.border).solve(
                time_limit=max(LEAST, PROGRAM_SHARE * self._left()), seed=self.settings.seed, gap=DRAFT_GAP * bound
            )
            if draft.is_infeasible:
                continue
            bound, further = max(bound, draft.bound or 0), []
            above = self._above(draft.sequence) if draft.sequence else []
            if above:
                longer = more_moments(moments, chain, draft.sequence, above, 0, ADDED)
                further = [(longer, moments)] if longer != chain else orders(moments, chain, draft.sequence, above, 0)
            for chain, ordered in further:
                heapq.heappush(waiting, (bound, next(number), chain, ordered))
            if not further:
                least = min(least, bound)
        least = min([least, *(bound for bound, *_ in waiting)])
        if self.best is not None:
            return min(least, self.best.objective)
        return None if least == ENDLESS else least

    def _is_done(self, bound: int) -> bool:
        """Whether nothing is left to find, or no time."""
        return self._left() <= 0 or (self.best is not None and bound >= (1 - GAP) * self.best.objective)

    def _limits(self, moments: Moments, op: int) -> list[tuple[int, int]]:
        """Rows of an operator's first run, as :class:`Stages` takes them."""
        border, rooms, rows = self.reading.border, self.rooms, [(0, self.ceiling)]
        if op == border:
            return [*rows, *rooms.limits_at_border(tangent_bytes(self.reading))]
        # Of one that may run in either pass less is known.
        for is_backward, others in ((False, moments.after[op]), (True, moments.before[op])):
            rows += rooms.limits(is_backward) if others >> border & 1 else ()
        return rows

    def _above(self, sequence: Sequence[int]) -> list[int]:
        """Offer a draft and, where it does not fit, what a search makes of it; bytes of its runs above their room, if any."""
        plan = self.free.made(sequence)
        self._offer(sequence)
        if plan.sequence not in self.takes:
            # It breaks a rule.
            return []
        kept = self.takes[plan.sequence].kept
        room, behind = self.rooms.room(kept), sequence.index(self.reading.border)
        above = [
            size - min(self.ceiling, room.backward if at >= behind else room.forward)
            for at, size in enumerate(live_bytes(self.reading.problem, plan))
        ]
        if max(above) > 0 and kept not in self.searched:
            self.searched.add(kept)
            self._search(sequence)
        return above

    def _search(self, sequence: Sequence[int]) -> None:
        """Offer what a search finds that keeps as much as a sequence does, at most."""
        kept = self.takes[tuple(sequence)].kept
        problem = within(self.reading, self.rooms.room(kept), kept)
        structure, limit = build(problem), problem.limit or 0
        if bounds.load_bound(structure) > limit:
            return
        made = simulate(structure, structure.order, limit), Insertion(structure).repaired(sequence, limit)
        plans = {f"draft {at}": structure.made(runs) for at, runs in enumerate(made) if runs is not None}
        result = solve(
            problem,
            time_limit=max(LEAST, SEARCH_SHARE * self._left()),
            candidates=["search"],
            plans={name: plan for name, plan in plans.items() if plan.peak <= limit},
            workers=1,
            seed=self.settings.seed,
        )
        if result.plan is not None:
            self._offer(result.plan.sequence)

    def _chosen(self, bound: int) -> Choice:
        assert self.best is not None
        return in_rooms(self._choice(self.best, "rooms", bound), self.rooms, self._takes())


def in_rooms(choice: Choice, rooms: Rooms, takes: Taken) -> Choice:
    """A choice whose report speaks of a whole step."""
    saved = rooms.peak(Taken(takes.kept, takes.kept, takes.kept))
    return with_report(choice, peak=rooms.peak(takes), saved=saved)


def with_report(choice: Choice, **changes: int) -> Choice:
    """A choice of which more is known."""
    report: GraphReport = msgspec.structs.replace(choice.report, **changes)
    return msgspec.structs.replace(choice, report=report)
