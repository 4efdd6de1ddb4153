"""The plan of one graph within rooms (:mod:`stowplan.backends.torch.rooms`) that may send values to the host.

With what each use keeps at most, a room is a limit like that of a graph alone, and the portfolio plans for it. Where nothing
waits while the graph runs, what it keeps does not change its room, and one limit says all.
"""

from __future__ import annotations

from collections.abc import Callable

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch.offload import as_run
from stowplan.backends.torch.planning import Choice, Chooser
from stowplan.backends.torch.room_plans import LEAST, in_rooms, with_report
from stowplan.backends.torch.rooms import Rooms, taken, within
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify

#: Where uses wait while the graph runs: what each of them keeps at most, in parts of what leaves no room to work.
PARTS = (0.75, 0.5, 0.25)


class HostRoomChooser(Chooser):
    """Finds a plan with a host within rooms; its reading is one of :func:`~stowplan.backends.torch.offload.with_host`."""

    rooms: Rooms

    def choose_within(self, rooms: Rooms, choose_alone: Callable[[], Choice]) -> Choice:
        """The plan that adds least.

        Parameters
        ----------
        choose_alone
            Finds one that sends nothing, or raises the error.

        Raises
        ------
        MemoryLimitError
            No plan was found, with the host or without.
        """
        self.rooms = rooms
        self.best: Plan | None = None
        self.bound = 0
        self._search((), LEAST)
        alone, least = None, 0
        if self.best is None or self.best.objective:
            try:
                alone = choose_alone()
                self._search(self._with_arrival(alone.plan.sequence), self._left())
            except MemoryLimitError as error:
                # The error itself would hold all frames up to the caller's, and with them results of a step to come.
                least = error.least
            if alone is None:
                self._search((), self._left())
        if self.best is None and alone is None:
            text = f"the least peak found of a step is {least} bytes, and the limit is {rooms.limit}"
            raise MemoryLimitError(f"{text} (no plan found in time, with the host or without)", rooms.limit, least, 0)
        if alone is not None and (self.best is None or alone.plan.objective <= self.best.objective):
            # What is proven of plans that send nothing is not of all.
            return with_report(alone, bound=min(alone.report.bound, self.bound * self.reading.unit))
        assert self.best is not None
        choice = self._choice(self.best, "rooms with a host", self.bound)
        uses = max(row.waiting + row.runs for row in rooms.rows)
        choice = with_report(choice, host_bytes=uses * choice.report.host_bytes)
        return in_rooms(choice, rooms, taken(self.reading, self.best))

    def _search(self, known: tuple[int, ...], seconds: float) -> None:
        """Take the best plan that the portfolio finds, from known runs on."""
        rooms = self.rooms
        waiting = [row.most // row.waiting for row in rooms.rows if row.runs and row.waiting]
        kept = [rooms.constant + int(part * min(waiting)) for part in PARTS] if waiting else [rooms.limit]
        for size in kept:
            if self.best is not None and not self.best.objective:
                return
            room = rooms.room(size)
            problem = within(self.reading, room)
            alone = build(problem).made(known) if known else None
            plans = {} if alone is None or not verify(problem, alone).ok else {"alone": alone}
            result = self._solved(problem, plans, seconds / len(kept))
            # A problem of less room in the backward pass than in the forward pass leaves no plan out.
            if not waiting and room.backward <= room.forward:
                self.bound = max(self.bound, int(result.bound or 0))
            if result.plan is not None:
                self._offer(as_run(self.reading, self.free.made(result.plan.sequence, result.plan.moves or ())))

    def _offer(self, plan: Plan) -> None:
        fits = verify(self.free.problem, plan).ok and self.rooms.peak(taken(self.reading, plan)) <= self.rooms.limit
        if fits and (self.best is None or plan.objective < self.best.objective):
            self.best = plan

    def _with_arrival(self, sequence: tuple[int, ...]) -> tuple[int, ...]:
        """Runs of the graph without a host as runs of it with one."""
        border = sequence.index(self.reading.border)
        return (*sequence[:border], *self.reading.arrival, *sequence[border:])
