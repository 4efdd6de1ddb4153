"""Messages between a run and its workers, and the candidate's context that is connected to a run.

Messages are encoded as MessagePack, preceded by their length, and sent over pipes.
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

#: A candidate that returns later than this many seconds before its end counts as stopped by the limit: solvers check the clock
#: only now and then, and may stop a little early.
_CLOSE = 0.05


class CandidateId(msgspec.Struct, frozen=True):
    """A candidate's name, from which another process can load it."""

    kind: str
    name: str
    place: str | None
    """Where another process can import the kind, as ``module:name``: the parent's program may have registered a kind that a new
    process does not know. None if the kind is not registered."""

    @classmethod
    def of(cls, kind: str, name: str) -> Self:
        """The identifier of a candidate of a kind that is registered in this process."""
        return cls(kind, name, kinds.import_path(kind))

    def load(self) -> Callable[[Any, Any], None]:
        """Imports the candidate and returns its function, ``(problem, context) -> None``. Raises UsageError if the kind is not
        registered in this process, and whatever importing its modules raises."""
        return kind(self.kind).function(self.name)


class Job(msgspec.Struct, tag="job"):
    """A candidate to run, with everything that it needs."""

    candidate: CandidateId
    options: Options
    problem: bytes
    """The encoded problem; empty for a candidate in a thread."""
    end: float
    """When to stop, in seconds on the monotonic clock, which all processes of a machine share."""
    start_plan: bytes | None = None
    """The encoded plan to start from; None if there is none."""
    start_bound: int | None = None
    """The best bound at the start; None if there is none, or in a deterministic run."""
    hints: tuple[bytes, ...] = ()
    """The encoded hints so far."""
    closed: bool = False
    """Whether nothing is left to find and the run only waits for other candidates. This candidate then returns at once."""
    latest: float = 0.0
    """The latest time to which :attr:`RunUpdate.end` may extend ``end``."""


class RunUpdate(msgspec.Struct, tag="news"):
    """An update from the parent to a worker: a better plan or bound, a hint, or a change of the time limit."""

    plan: bytes | None = None
    """The best plan, encoded; None if it is unchanged."""
    bound: int | None = None
    """The best bound; None if it is unchanged."""
    hint: bytes | None = None
    """Another hint, encoded; None if there is none."""
    closed: bool = False
    """As in :class:`Job`."""
    end: float | None = None
    """New time to stop, because time that was set aside for other candidates is no longer needed; None changes nothing."""
    is_over: bool = False
    """Whether the run is over, so that further reports are ignored."""


class Load(msgspec.Struct, tag="load"):
    """A request to a worker without a job: import a candidate that the next job will probably run."""

    candidate: CandidateId


ToWorker = Job | RunUpdate | Load


class WorkerContext(Context):
    """The context of a candidate in a run. ``send`` is called with the reports, from the candidate's threads.

    Raises
    ------
    UsageError
        The job's kind is not registered in this process.
    InputError
        The start plan or a hint of the job cannot be decoded.
    """

    def __init__(self, job: Job, send: Callable[[Report], None]):
        self._kind = kinds.by_name(job.candidate.kind)
        super().__init__(job.options, None if job.start_plan is None else self._kind.plan.decode(job.start_plan))
        self._end, self._latest = job.end, max(job.end, job.latest)
        self._end_when_asked = math.inf
        self._is_closed = job.closed
        self.send = send
        self._incumbent = (self.start_plan, job.start_bound)
        self._hints = tuple(map(Hint.decode, job.hints))

    def closed(self) -> bool:
        """Whether time is up, the run is over, or the run only waits for other candidates."""
        return self._is_closed or time.monotonic() >= self._end

    def remaining(self) -> float:
        """Seconds until this candidate must stop."""
        self._end_when_asked = self._end
        return max(0.0, self._end - time.monotonic())

    def longest(self) -> float:
        """Seconds until the latest time to which the limit may be extended."""
        return max(0.0, self._latest - time.monotonic())

    def apply(self, message: RunUpdate) -> None:
        """Applies an update. Raises InputError if its plan or hint cannot be decoded."""
        if message.is_over:
            self._end = 0.0
        elif message.end is not None and time.monotonic() < self._end:
            # If the candidate has reached its end already, the extension comes too late, and it counts as stopped.
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

    def last_report(self, is_reusable: bool = False) -> Report:
        """The last report of a candidate that returned. The candidate counts as stopped by the limit if it returned after its
        end, or after the end that applied when it last called :meth:`remaining`."""
        return Report(
            "stopped" if time.monotonic() > min(self._end, self._end_when_asked) - _CLOSE else "done", is_reusable=is_reusable
        )
