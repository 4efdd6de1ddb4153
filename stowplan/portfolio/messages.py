"""What a run and its workers say to each other, and how: MessagePack with a length in front, over pipes."""

from __future__ import annotations

import queue
from typing import Any, BinaryIO, NamedTuple

import msgspec

from stowplan.child_process import write_encoded
from stowplan.kinds import KindModules
from stowplan.portfolio.context import Options

#: Worker messages that wait at most. A candidate that reports faster than plans are verified waits itself.
QUEUE_SIZE = 64


class Job(msgspec.Struct, tag="job"):
    """What a worker is to do."""

    kind: KindModules
    candidate: dict[str, Any]
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

    function: str
    """``module:name`` of a candidate."""


ToWorker = Job | Incumbent | Stop | Load


class Report(msgspec.Struct):
    """Worker to parent."""

    what: str
    """First ``started``, when the candidate is loaded; then ``plan``, ``bound``, ``infeasible``, ``hint``, ``follows``,
    ``note``; the last one: ``done``, ``stopped`` (by time) or ``failed``."""
    source: str = ""
    plan: bytes | None = None
    bound: int | None = None
    text: str = ""
    why: dict[str, Any] | None = None
    """With ``infeasible``: details for the result."""
    hint: bytes | None = None
    waits: bool = False
    """With the last one: the worker is as it was before the job, and takes another."""


class WorkerMessage(NamedTuple):
    """A report of worker ``number``; None when its process has ended."""

    number: int
    report: Report | None


MessageQueue = queue.Queue[WorkerMessage]


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
