"""What a run and its workers say to each other, and how: MessagePack with a length in front, over pipes."""

from __future__ import annotations

import queue
import struct
from typing import Any, BinaryIO, NamedTuple

import msgspec

from stowplan.kinds import KindModules
from stowplan.portfolio.context import Options

_LENGTH = struct.Struct("<Q")

#: Longer than any message; a length beyond it means that something else was written.
_MAX_MESSAGE = 1 << 31

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


class Incumbent(msgspec.Struct, tag="incumbent"):
    """Parent to worker: the best plan and bound of all, and what else others hand on."""

    plan: bytes | None = None
    bound: int | None = None
    hint: bytes | None = None


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
    data = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_message(stream: BinaryIO) -> bytes | None:
    """Wait for the next message.

    Parameters
    ----------
    stream
        A pipe.

    Returns
    -------
    bytes or None
        The message, encoded; None at the end, also where the end cuts a message short.

    Raises
    ------
    ValueError
        This is not the beginning of a message.
    """
    head = stream.read(_LENGTH.size)
    if head is None or len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_MESSAGE:
        raise ValueError(f"found a message of {length} bytes, expected at most {_MAX_MESSAGE}")
    data = stream.read(length)
    return data if data is not None and len(data) == length else None
