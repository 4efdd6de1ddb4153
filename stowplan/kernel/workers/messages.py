"""What a run and its workers say to each other, and the view of the run that a candidate has of it.

Messages are MessagePack with a length in front, over pipes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Self

import msgspec

from stowplan import kinds
from stowplan.kernel.context import Context, Options, Report
from stowplan.kernel.kind import kind
from stowplan.models.hint import Hint

#: A candidate that returns this close to its end (seconds) was stopped by time: solvers look at the clock now and then.
_CLOSE = 0.05


class CandidateId(msgspec.Struct, frozen=True):
    """A candidate, for a process that knows it by name alone."""

    kind: str
    name: str
    place: str | None
    """``module:name`` of the kind, which the parent's program may have registered."""

    @classmethod
    def of(cls, kind: str, name: str) -> Self:
        """Of a kind that this process knows."""
        return cls(kind, name, kinds.import_path(kind))

    def load(self) -> Callable[[Any, Any], None]:
        """What it does, with all that this needs."""
        return kind(self.kind).function(self.name)


class Job(msgspec.Struct, tag="job"):
    """What a worker is to do."""

    candidate: CandidateId
    options: Options
    problem: bytes
    end: float
    """When to stop, on the monotonic clock, which all processes of a machine share."""
    start_plan: bytes | None = None
    start_bound: int | None = None
    hints: tuple[bytes, ...] = ()
    closed: bool = False
    """Nothing is left to find, and the run waits for others: the candidate returns at once."""
    latest: float = 0.0
    """The latest that :attr:`News.end` may be, where that is after the end."""


class News(msgspec.Struct, tag="news"):
    """Parent to worker: the best plan and bound of all, what else others hand on, and what is left to do."""

    plan: bytes | None = None
    bound: int | None = None
    hint: bytes | None = None
    closed: bool = False
    """As in :class:`Job`."""
    end: float | None = None
    """When the candidate is to stop from now on: nobody needs the time that was set aside for others. None changes nothing."""
    is_over: bool = False
    """The run is over: what the candidate still reports goes nowhere."""


class Load(msgspec.Struct, tag="load"):
    """Parent to a worker without a job: import what the next one will probably need."""

    candidate: CandidateId


ToWorker = Job | News | Load


class WorkerContext(Context):
    """That of a run; ``send`` takes the reports, and is called from the candidate's threads."""

    def __init__(self, job: Job, send: Callable[[Report], None]):
        self._kind = kinds.by_name(job.candidate.kind)
        super().__init__(job.options, None if job.start_plan is None else self._kind.plan.decode(job.start_plan))
        self._end, self._latest = job.end, max(job.end, job.latest)
        self._told = math.inf
        self._is_closed = job.closed
        self.send = send
        self._incumbent = (self.start_plan, job.start_bound)
        self._hints = tuple(map(Hint.decode, job.hints))

    def closed(self) -> bool:
        """Whether time is up, the run is over, or waits for others alone."""
        return self._is_closed or time.monotonic() >= self._end

    def remaining(self) -> float:
        """Seconds left."""
        self._told = self._end
        return max(0.0, self._end - time.monotonic())

    def longest(self) -> float:
        """Seconds left where the candidate gets all the time that others do not need."""
        return max(0.0, self._latest - time.monotonic())

    def take(self, message: News) -> None:
        """Take in what others have found, and whether the run is over."""
        if message.is_over:
            self._end = 0.0
        elif message.end is not None and time.monotonic() < self._end:
            # Whoever has been stopped before the message came has its next turn as one that was stopped.
            self._end = message.end
        if self.options.deterministic:
            return
        self._is_closed = message.closed
        plan, bound = self._incumbent
        if message.plan is not None:
            plan = self._kind.plan.decode(message.plan)
        if message.hint is not None:
            self._hints = (*self._hints, Hint.decode(message.hint))
        self._incumbent = (plan, bound if message.bound is None else message.bound)

    def last_word(self, waits: bool = False) -> Report:
        """The last report of a candidate that returned: time has stopped it where the end has come that it knew of."""
        return Report("stopped" if time.monotonic() > min(self._end, self._told) - _CLOSE else "done", waits=waits)
