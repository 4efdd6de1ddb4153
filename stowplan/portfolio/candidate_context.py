"""A candidate's view of the run where it really runs: in a worker process or in a thread of the calling one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from stowplan.models.hint import Hint
from stowplan.portfolio.context import Context
from stowplan.portfolio.messages import Incumbent, Job, Report

#: A candidate that returns this close to its end (seconds) was stopped by time: solvers look at the clock now and then.
_CLOSE = 0.05


class WorkerContext(Context):
    """That of a run.

    Parameters
    ----------
    job
        What is to be done.
    send
        Takes the reports; called from the candidate's threads.
    """

    def __init__(self, job: Job, send: Callable[[Report], None]):
        super().__init__(job.options, None if job.start_plan is None else job.kind.decode_plan(job.start_plan))
        self._kind = job.kind
        self._end = job.end
        self._is_closed = job.closed
        self._send = send
        self._incumbent: tuple[Any, int | None] = (self.start_plan, job.start_bound)
        self._hints = tuple(map(Hint.decode, job.hints))

    def plan(self, plan: Any, source: str) -> None:
        """Report a plan."""
        self._send(Report("plan", source, plan=msgspec.json.encode(plan)))

    def bound(self, bound: int, source: str) -> None:
        """Report a bound."""
        self._send(Report("bound", source, bound=bound))

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        """Report a proof that there is no plan."""
        self._send(Report("infeasible", source, why=why))

    def hint(self, hint: Hint) -> None:
        """Hand a hint on to the other candidates."""
        self._send(Report("hint", hint.source, hint=msgspec.json.encode(hint)))

    def follows(self, guide: str) -> None:
        """Report a learned guide."""
        self._send(Report("follows", text=guide))

    def note(self, text: str) -> None:
        """Report a remark."""
        self._send(Report("note", text=text))

    def incumbent(self) -> tuple[Any, int | None]:
        """Best plan and bound of all candidates."""
        return self._incumbent

    def hints(self) -> tuple[Hint, ...]:
        """All hints so far."""
        return self._hints

    def closed(self) -> bool:
        """Whether time is up, the run is over, or waits for others alone."""
        return self._is_closed or time.monotonic() >= self._end

    def remaining(self) -> float:
        """Seconds left."""
        return max(0.0, self._end - time.monotonic())

    def end_now(self) -> None:
        """The run is over."""
        self._end = 0.0

    def take(self, message: Incumbent) -> None:
        """Take in what others have found."""
        if self.options.deterministic:
            return
        self._is_closed = message.closed
        plan, bound = self._incumbent
        if message.plan is not None:
            plan = self._kind.decode_plan(message.plan)
        if message.hint is not None:
            self._hints = (*self._hints, Hint.decode(message.hint))
        self._incumbent = (plan, bound if message.bound is None else message.bound)

    def last_word(self) -> str:
        """The last report of a candidate that returned."""
        return "stopped" if self.remaining() < _CLOSE else "done"
