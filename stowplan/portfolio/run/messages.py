"""What a run and its workers say to each other, and the view of the run that a candidate has of it.

Messages are MessagePack with a length in front, over pipes.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple, Self

import msgspec

from stowplan import kinds
from stowplan.child_process import write_encoded
from stowplan.models.hint import Hint
from stowplan.portfolio.context import Context, Options, Report
from stowplan.portfolio.kind import kind

#: Worker messages that wait at most. A candidate that reports faster than plans are verified waits itself.
QUEUE_SIZE = 64


class CandidateId(msgspec.Struct, frozen=True):
    """A candidate, for a process that knows it by name alone."""

    kind: str
    name: str
    place: str | None
    """``module:name`` of the kind, which the parent's program may have registered."""

    @classmethod
    def of(cls, kind: str, name: str) -> Self:
        """Of a kind that this process knows."""
        return cls(kind, name, kinds.place_of(kind))

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


class Incumbent(msgspec.Struct, tag="incumbent"):
    """Parent to worker: the best plan and bound of all, and what else others hand on."""

    plan: bytes | None = None
    bound: int | None = None
    hint: bytes | None = None
    closed: bool = False
    """As in :class:`Job`."""


class Stop(msgspec.Struct, tag="stop"):
    """Parent to worker: the run is over. What the candidate still reports goes nowhere."""


class Load(msgspec.Struct, tag="load"):
    """Parent to a worker without a job: import what the next one will probably need."""

    candidate: CandidateId


ToWorker = Job | Incumbent | Stop | Load


class WorkerMessage(NamedTuple):
    """A report of worker ``number``; None when its process has ended."""

    number: int
    report: Report | None


MessageQueue = queue.Queue[WorkerMessage]


class Turn:
    """A candidate's turn in a process or a thread, as the run sees it.

    Parameters
    ----------
    number
        What its messages carry.
    messages
        Where its reports go.
    """

    def __init__(self, number: int, messages: MessageQueue):
        self._number, self._messages = number, messages
        self._is_unwanted = threading.Event()
        """The run is over: what is still reported goes nowhere."""

    def post(self, report: Report | None) -> None:
        """Hand a report on, None for the end of a process; waits where those before it have not been taken."""
        while not self._is_unwanted.is_set():
            with contextlib.suppress(queue.Full):
                self._messages.put(WorkerMessage(self._number, report), timeout=0.1)
                return


def write_message(stream: BinaryIO, message: object) -> None:
    """Send one message.

    Parameters
    ----------
    stream
        A pipe; it is flushed.
    message
        To a worker one of :data:`ToWorker`, from it a :class:`Report`.

    Raises
    ------
    OSError
        Nobody reads at the other end.
    """
    write_encoded(stream, msgspec.msgpack.encode(message))


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
        self._kind = kinds.named(job.candidate.kind)
        super().__init__(job.options, None if job.start_plan is None else self._kind.plan.decode(job.start_plan))
        self._end = job.end
        self._is_closed = job.closed
        self.send = send
        self._incumbent: tuple[Any, int | None] = (self.start_plan, job.start_bound)
        self._hints = tuple(map(Hint.decode, job.hints))

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
            plan = self._kind.plan.decode(message.plan)
        if message.hint is not None:
            self._hints = (*self._hints, Hint.decode(message.hint))
        self._incumbent = (plan, bound if message.bound is None else message.bound)

    def last_word(self) -> str:
        """The last report of a candidate that returned."""
        return "stopped" if self.remaining() < _CLOSE else "done"
